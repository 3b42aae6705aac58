"""Where the labels of a chart stand: beside their points, and over nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LETTER = 0.6
"""Width of a letter over its size; system fonts stay below it on average."""


@dataclass(frozen=True)
class Box:
    """A rectangle in a panel's coordinates, from the upper left."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        """True where the two share more than an edge."""
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


def place_labels(
    spots: Sequence[tuple[float, float]],
    whiskers: Sequence[Sequence[Box]],
    labels: Sequence[str],
    area: Box,
    *,
    size: float,
    radius: float,
    anywhere: bool,
) -> list[Box | None]:
    """Return a box a label: near its point, in the area, over no other label or point, and over few bars; or None.

    Args:
        spots: the points.
        whiskers: of each point, its bars.
        labels: the texts.
        area: where labels may stand.
        size: of the letters.
        radius: of the points' marks.
        anywhere: whether a label may stand far from its point where there is no room near it.
    """
    marks = [Box(a - radius - 1, b - radius - 1, a + radius + 1, b + radius + 1) for a, b in spots]
    bars = [Box(w.left - 1, w.top - 2, w.right + 1, w.bottom + 2) for own in whiskers for w in own]
    placed: list[Box | None] = []
    leaders: list[tuple[float, float, float, float]] = []
    for number, ((a, b), label) in enumerate(zip(spots, labels, strict=True)):
        width, height = LETTER * size * len(label) + 2, size + 3
        others = [mark for place, mark in enumerate(marks) if place != number]
        best: tuple[float, Box] | None = None
        for cost, box in _candidates(a, b, width, height, area, anywhere=anywhere):
            if best is not None and cost >= best[0]:
                break  # what follows lies farther still
            if any(other is not None and box.overlaps(other) for other in (*marks, *placed)):
                continue
            near = Box(box.left - 12, box.top - 4, box.right + 12, box.bottom + 4)
            line = (a, b, *nearest(a, b, box))
            # A label beside another point, or a line across another label, is read as that one's.
            cost += 14 * sum(box.overlaps(bar) for bar in bars) + 40 * sum(near.overlaps(mark) for mark in others)
            cost += 60 * sum(other is not None and _crosses(line, other) for other in (*others, *placed))
            cost += 60 * sum(_crosses(leader, box) for leader in leaders)
            if best is None or cost < best[0]:
                best = (cost, box)
        placed.append(None if best is None else best[1])
        if best is not None:
            leaders.append((a, b, *nearest(a, b, best[1])))
    return placed


def nearest(a: float, b: float, box: Box) -> tuple[float, float]:
    """Return the point of a box that lies nearest to (a, b)."""
    return min(max(a, box.left), box.right), min(max(b, box.top), box.bottom)


def _crosses(line: tuple[float, float, float, float], box: Box) -> bool:
    """True for a line that enters a box; tried at points along it, closer than a letter is wide."""
    x1, y1, x2, y2 = line
    steps = max(1, math.ceil(math.hypot(x2 - x1, y2 - y1) / 4))
    along = ((x1 + (x2 - x1) * k / steps, y1 + (y2 - y1) * k / steps) for k in range(1, steps))
    return any(box.left < x < box.right and box.top < y < box.bottom for x, y in along)


def _candidates(
    a: float, b: float, width: float, height: float, area: Box, *, anywhere: bool
) -> list[tuple[float, Box]]:
    found = []
    for away in (8.0, 14.0, 24.0, 36.0, 50.0, 68.0, 90.0):
        for number, (dx, dy) in enumerate(((1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (1, 1), (-1, -1), (-1, 1))):
            left = a + dx * away - (width if dx < 0 else width / 2 if dx == 0 else 0)
            top = b + dy * away - (height if dy < 0 else height / 2 if dy == 0 else 0)
            found.append((away + number, Box(left, top, left + width, top + height)))
    if anywhere:
        for row in range(int((area.bottom - area.top) / height)):
            for column in range(int((area.right - area.left) / width)):
                left, top = area.left + column * width, area.top + row * height
                box = Box(left, top, left + width, top + height)
                found.append((200 + math.hypot(left + width / 2 - a, top + height / 2 - b), box))
    inside = [
        (cost, box)
        for cost, box in found
        if area.left <= box.left and box.right <= area.right and area.top <= box.top and box.bottom <= area.bottom
    ]
    return sorted(inside, key=lambda pair: pair[0])
