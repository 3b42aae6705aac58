"""The frontier as SVG: leakage against accuracy, and against scalars. The same points give the same bytes.

Written by hand rather than by matplotlib, so that a page shows it in its own colours, light or dark, with text as text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import ClassVar

from fedpriv.pages.card import differing
from fedpriv.pages.chart_labels import LETTER, Box, nearest, place_labels
from fedpriv.pages.frontier import Frontier, Point, Spread

_WIDTH, _HEIGHT = 400.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 12.0, 30.0, 44.0
_TEXT, _SMALL = 12.0, 11.0
_RADIUS = 5.0
_NAMED = 8  # with more points than this numbers stand for names
_MARK = " †"

_LIGHT = {
    "ink": "#1c2430",
    "soft": "#5b6572",
    "line": "#d9dee5",
    "page": "#ffffff",
    "panel": "#f5f7f9",
    "bar": "#2f5d8a",
}
_DARK = {
    "ink": "#e6eaf0",
    "soft": "#9fabba",
    "line": "#343d49",
    "page": "#14181e",
    "panel": "#1c222a",
    "bar": "#8ab8e6",
}
_STYLE = (
    "text{font-family:system-ui,sans-serif;fill:var(--ink)}.s{fill:var(--soft)}.g{stroke:var(--line)}"
    ".z{fill:var(--panel)}.o{stroke:var(--soft);stroke-dasharray:3 3}.b{fill:var(--bar);stroke:var(--page);stroke-width:1.5}"
    ".w{stroke:var(--bar);stroke-width:2;opacity:.55}.d{fill:var(--page);stroke:var(--soft);stroke-width:1.6}"
    ".v{stroke:var(--soft);stroke-width:1.6;opacity:.5}.l{stroke:var(--soft);stroke-width:.8}"
    ".n{paint-order:stroke;stroke:var(--page);stroke-width:3px;stroke-linejoin:round}"
)


@dataclass(frozen=True)
class Panel:
    """One chart.

    Attributes:
        body: SVG elements without the outer tag.
        width, height: of its coordinates.
        title: what it shows, in one line.
        label_boxes: where the points' labels stand, in the order of the points; None where one found no room.
        numbered: whether labels are numbers in the table, for want of room for names.
    """

    body: str
    width: float
    height: float
    title: str
    label_boxes: tuple[Box | None, ...]
    numbered: bool

    def svg(self, description: str) -> str:
        """Return the chart as an element of a page, whose colours it takes over."""
        return (
            f'<svg class="chart" viewBox="0 0 {self.width:g} {self.height:g}" role="img" '
            f'aria-label="{escape(f"{self.title}. {description}")}">{self.body}</svg>'
        )


def chart_style() -> str:
    """Return the style sheet that panels need within a page."""
    return _STYLE.replace("text{", "svg.chart text{").replace("}.", "}svg.chart .")


def panels(frontier: Frontier) -> tuple[Panel, Panel]:
    """Draw leakage against accuracy, and against scalars (of 32 bits) per client and round."""
    charts = (
        ("Accuracy after training", _Linear, lambda point: point.accuracy),
        ("Scalars up (of 32 bits), per client and round", _Logarithmic, lambda point: point.scalars),
    )
    names = [_name(point) for point in frontier.points]
    numbers = [str(number) for number in range(1, len(names) + 1)]
    if len(names) <= _NAMED:
        first, second = (_panel(frontier, *chart, names, numbered=False) for chart in charts)
        if None not in (*first.label_boxes, *second.label_boxes):
            return first, second
    first, second = (_panel(frontier, *chart, numbers, numbered=True) for chart in charts)
    return first, second


def describe(frontier: Frontier) -> str:
    """Return what the charts show in words, for those who cannot see them."""
    told = []
    for point, best in zip(frontier.points, frontier.best, strict=True):
        fewer = "" if len(point.seeds) == point.attacked else f", strongest attack at {point.seeds_told} seeds"
        told.append(
            f"{point.label}: {point.leakage.mean:+.1f} dB, {100 * point.accuracy.mean:.1f} %, "
            f"{point.scalars.mean:,.0f} scalars{fewer}{'' if best else ' (bettered)'}"
        )
    return "; ".join(told)


def frontier_svg(found: Sequence[Frontier]) -> str:
    """Return all frontiers as a picture file, one row of two panels each."""
    gap, head, foot = 16.0, 26.0, 30.0
    width, row = 2 * _WIDTH + gap, _HEIGHT + head
    parts, settings, marked = [], _settings(found), False
    for number, (frontier, setting) in enumerate(zip(found, settings, strict=True)):
        drawn = panels(frontier)
        marked = marked or (frontier.marked and not drawn[0].numbered)
        top = number * row
        title = _fitting(f"{number + 1}. {setting}", width - 16, _SMALL)
        parts.append(f'<text class="s" x="8" y="{top + 18:g}" font-size="{_SMALL:g}">{escape(title)}</text>')
        for place, panel in enumerate(drawn):
            parts.append(f'<g transform="translate({place * (_WIDTH + gap):g} {top + head:g})">{panel.body}</g>')
    height = len(found) * row + foot
    parts.append(_key(height - 12, marked=marked))
    colours = [";".join(f"--{name}:{value}" for name, value in theme.items()) for theme in (_LIGHT, _DARK)]
    told = escape(" ".join(f"{name}: {describe(one)}." for name, one in zip(settings, found, strict=True)))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-labelledby="t d"><title id="t">Leakage, accuracy and communication'
        f'</title><desc id="d">{told}</desc><style>svg{{{colours[0]}}}@media (prefers-color-scheme:dark){{svg{{'
        f'{colours[1]}}}}}{_STYLE}</style><rect width="{width:g}" height="{height:g}" style="fill:var(--page)"/>'
        f"{''.join(parts)}</svg>\n"
    )


def _settings(found: Sequence[Frontier]) -> list[str]:
    """Name each frontier by its task, and by the grants in which the cards differ."""
    tasks = [
        ", ".join(
            filter(
                None, (frontier.task["dataset"], f"{frontier.task['clients']} clients", frontier.task.get("local work"))
            )
        )
        for frontier in found
    ]
    grants = differing([frontier.card for frontier in found])
    return [f"{task}; {grant}" if grant else task for task, grant in zip(tasks, grants, strict=True)]


def _key(y: float, *, marked: bool) -> str:
    middle = y - 4
    mark = "; †: some targets, representations or other cards tell more" if marked else ""
    return (
        f'<circle class="b" cx="14" cy="{middle:g}" r="{_RADIUS:g}"/><text x="24" y="{y:g}" font-size="{_SMALL:g}">'
        f'no other is better in all three</text><circle class="d" cx="224" cy="{middle:g}" r="{_RADIUS:g}"/>'
        f'<text class="s" x="234" y="{y:g}" font-size="{_SMALL:g}">another is</text>'
        f'<text class="s" x="310" y="{y:g}" font-size="{_SMALL:g}">bar: 95 % interval, or range over seeds{mark}</text>'
    )


def _name(point: Point) -> str:
    return point.label + (_MARK if point.marked else "")


def _fitting(text: str, width: float, size: float) -> str:
    room = int(width / (LETTER * size))
    return text if len(text) <= room else text[: room - 1] + "…"


# ---------------------------------------------------------------- axes


@dataclass(frozen=True)
class _Linear:
    """Positions of values between two ends of an axis, which may run downwards."""

    low: float
    high: float
    start: float
    end: float
    least: ClassVar[float] = 0.01  # half of the smallest span that is drawn
    possible: ClassVar[tuple[float, float]] = (0.0, 1.0)  # outside lie no values, so no ticks

    @classmethod
    def around(cls, values: Sequence[float], start: float, end: float) -> _Linear:
        low, high = min(values), max(values)
        margin = max(0.12 * (high - low), cls.least - (high - low) / 2)
        return cls(low - margin, high + margin, start, end)

    def place(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        step = _step((self.high - self.low) / 4)
        first = math.ceil(self.low / step)
        values = [number * step for number in range(first, first + 9)]
        least, greatest = self.possible
        return [(value, self._written(value, step)) for value in values if least <= value <= greatest + step / 1000]

    @staticmethod
    def _written(value: float, step: float) -> str:
        return f"{100 * value:.{_decimals(100 * step)}f} %"


class _Decibels(_Linear):
    least: ClassVar[float] = 0.5
    possible: ClassVar[tuple[float, float]] = (-math.inf, math.inf)

    @staticmethod
    def _written(value: float, step: float) -> str:
        return f"{value:.{_decimals(step)}f}".replace("-", "−")


class _Logarithmic(_Linear):
    least: ClassVar[float] = 0.3

    @classmethod
    def around(cls, values: Sequence[float], start: float, end: float) -> _Logarithmic:
        logs = [math.log10(max(value, 1.0)) for value in values]
        margin = max(0.12 * (max(logs) - min(logs)), cls.least - (max(logs) - min(logs)) / 2)
        return cls(max(min(logs) - margin, -0.15), max(logs) + margin, start, end)

    def place(self, value: float) -> float:
        return super().place(math.log10(max(value, 1.0)))

    def ticks(self) -> list[tuple[float, str]]:
        mantissas = (1,) if self.high - self.low > 2.2 else (1, 2, 5)
        found = [m * 10**power for power in range(13) for m in mantissas]
        return [(value, _short(value)) for value in found if self.low <= math.log10(value) <= self.high]


def _step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return float(next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999))


def _decimals(step: float) -> int:
    """Return how many decimals multiples of a step need.

    >>> _decimals(2.5), _decimals(10.0), _decimals(0.25), _decimals(0.1)
    (1, 0, 2, 1)
    """
    return next(number for number in range(12) if math.isclose(round(step, number), step, rel_tol=1e-9))


def _short(value: float) -> str:
    for size, prefix in ((10**9, " G"), (10**6, " M"), (10**3, " k")):
        if value >= size:
            return f"{value / size:g}{prefix}"
    return f"{value:g}"


# ---------------------------------------------------------------- one panel


def _panel(
    frontier: Frontier,
    title: str,
    scale: type[_Linear],
    quantity: Callable[[Point], Spread],
    labels: Sequence[str],
    *,
    numbered: bool,
) -> Panel:
    points = frontier.points
    right, floor = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    x = _Decibels.around([0.0, *(v for p in points for v in _ends(p.leakage))], _LEFT, right)
    y = scale.around([v for p in points for v in _ends(quantity(p))], floor, _TOP)
    spots = [(x.place(p.leakage.mean), y.place(quantity(p).mean)) for p in points]
    whiskers = [_whiskers(p, quantity(p), x, y) for p in points]
    boxes = place_labels(
        spots,
        whiskers,
        labels,
        Box(_LEFT + 2, _TOP + 2, right, floor - 2),
        size=_TEXT,
        radius=_RADIUS,
        anywhere=numbered,
    )
    parts = [_backdrop(title, x, y)]
    # Those of the set come last, so that they lie on top.
    for i in sorted(range(len(points)), key=lambda i: frontier.best[i]):
        best = frontier.best[i]
        for bar in whiskers[i]:
            parts.append(_stroke("w" if best else "v", bar.left, bar.top, bar.right, bar.bottom))
        (a, b), box = spots[i], boxes[i]
        parts.append("" if box is None else _leader(a, b, box))
        parts.append(f'<circle class="{"b" if best else "d"}" cx="{a:.1f}" cy="{b:.1f}" r="{_RADIUS:g}"/>')
        if box is None:
            continue
        weight = ' class="n" font-weight="650"' if best else ' class="n s"'
        parts.append(
            f'<text{weight} x="{box.left + 1:.1f}" y="{box.bottom - 3.5:.1f}" font-size="{_TEXT:g}">'
            f"{escape(labels[i])}</text>"
        )
    return Panel("".join(parts), _WIDTH, _HEIGHT, title, tuple(boxes), numbered)


def _ends(spread: Spread) -> list[float]:
    return [value for value in (spread.low, spread.mean, spread.high) if value is not None]


def _whiskers(point: Point, other: Spread, x: _Linear, y: _Linear) -> list[Box]:
    a, b = x.place(point.leakage.mean), y.place(other.mean)
    found = []
    if point.leakage.low is not None and point.leakage.high is not None:
        found.append(Box(x.place(point.leakage.low), b, x.place(point.leakage.high), b))
    if other.low is not None and other.high is not None:
        found.append(Box(a, y.place(other.high), a, y.place(other.low)))
    return found


def _backdrop(title: str, x: _Linear, y: _Linear) -> str:
    right, floor = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    zero = x.place(0.0)
    parts = [f'<rect class="z" x="{_LEFT:g}" y="{_TOP:g}" width="{zero - _LEFT:.1f}" height="{floor - _TOP:g}"/>']
    for value, text in y.ticks():
        place = y.place(value)
        if _TOP - 0.1 <= place <= floor + 0.1:
            parts.append(_stroke("g", _LEFT, place, right, place))
            parts.append(_words(_LEFT - 6, place + 4, text, "end"))
    for value, text in x.ticks():
        place = x.place(value)
        if _LEFT - 0.1 <= place <= right + 0.1:
            parts.append(_stroke("g", place, floor, place, floor + 4))
            parts.append(_words(place, floor + 17, text, "middle"))
    parts.append(_stroke("o", zero, _TOP, zero, floor))
    parts.append(
        _words((_LEFT + right) / 2, _HEIGHT - 8, "leakage: advantage over the floor, dB (dashed: 0)", "middle")
    )
    parts.append(f'<text x="6" y="14" font-size="{_TEXT:g}" font-weight="650">{escape(title)}</text>')
    return "".join(parts)


def _words(x: float, y: float, text: str, anchor: str) -> str:
    return (
        f'<text class="s" x="{x:.1f}" y="{y:.1f}" font-size="{_SMALL:g}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _stroke(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _leader(a: float, b: float, box: Box) -> str:
    """Return a thin line from a point to its label, where the label stands off."""
    x, y = nearest(a, b, box)
    return _stroke("l", a, b, x, y) if math.hypot(x - a, y - b) > 2.4 * _RADIUS else ""
