"""From scores of canaries to counts: how many of those in, and of those left out, lie beyond a threshold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]
"""``(n,)`` scores; who is in is expected to have the higher ones."""


@dataclass(frozen=True)
class Told:
    """Outcome of one rule that calls canaries "in".

    Attributes:
        hits: canaries that are in and were called so.
        included: canaries that are in.
        false: canaries that were left out and were called in.
        left_out: canaries that were left out.
    """

    hits: int
    included: int
    false: int
    left_out: int

    @property
    def canaries(self) -> int:
        """All of them, m."""
        return self.included + self.left_out

    @property
    def reversed(self) -> Told:
        """The rule that calls "out" what this one does not call in, with the parts of in and out exchanged."""
        return Told(self.left_out - self.false, self.left_out, self.included - self.hits, self.included)


def beyond(included: Scores, left_out: Scores, threshold: float) -> Told:
    """Return the outcome of calling in whatever scores at least ``threshold``."""
    hits, false = int((included >= threshold).sum()), int((left_out >= threshold).sum())
    return Told(hits, len(included), false, len(left_out))


def frontier(included: Scores, left_out: Scores) -> tuple[list[Told], list[float]]:
    """Return the thresholds at corners of the ROC curve's upper hull with their outcomes, ascending by threshold.

    Thresholds between two corners are beaten by one of them or by a coin between both. The ends, everybody in and nobody
    in, are among them.

    Args:
        included: ``(n,)`` scores of canaries that are in, n >= 1.
        left_out: ``(n',)`` of those that are not, n' >= 1.

    Raises:
        ValueError: where there are none of either, or one is NaN.
    """
    refuse_unscored(included, left_out)
    thresholds = np.append(np.unique(np.concatenate([included, left_out])), np.inf)
    missed = np.searchsorted(np.sort(included), thresholds, side="left")
    cleared = np.searchsorted(np.sort(left_out), thresholds, side="left")
    corners: list[int] = []
    points = list(zip(missed.tolist(), cleared.tolist(), strict=True))
    for place, point in enumerate(points):
        while len(corners) > 1 and not _above(points[corners[-2]], points[corners[-1]], point):
            corners.pop()
        corners.append(place)
    found = [Told(len(included) - missed[i], len(included), len(left_out) - cleared[i], len(left_out)) for i in corners]
    whole = [Told(int(one.hits), one.included, int(one.false), one.left_out) for one in found]
    return whole, [float(thresholds[i]) for i in corners]


def refuse_unscored(included: Scores, left_out: Scores) -> None:
    """Check that there are scores of both parts, and that all are numbers.

    Raises:
        ValueError: otherwise.
    """
    if not len(included) or not len(left_out):
        raise ValueError(f"expected canaries of both parts, got {len(included)} in and {len(left_out)} left out")
    if np.isnan(included).any() or np.isnan(left_out).any():
        raise ValueError("expected scores that are numbers, got NaN")


def _above(before: tuple[int, int], point: tuple[int, int], after: tuple[int, int]) -> bool:
    """True if ``point`` lies strictly above the line between its neighbours."""
    (x0, y0), (x1, y1), (x2, y2) = before, point, after
    return (y1 - y0) * (x2 - x1) > (y2 - y1) * (x1 - x0)
