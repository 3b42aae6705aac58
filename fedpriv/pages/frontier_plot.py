"""The frontier as SVG: accuracy against each sort of leakage, and against scalars. The same points give the same bytes.

A point stands at the accuracy after training; a line leads to that after the broadcast.
Written by hand rather than by matplotlib, so that a page shows it in its own colours, light or dark, with text as text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedpriv.pages.baselines import gain_words
from fedpriv.pages.card import differing
from fedpriv.pages.chart_axes import Areas, Decibels, Linear, Logarithmic, Shares
from fedpriv.pages.chart_labels import LETTER, Box, nearest, place_labels
from fedpriv.pages.frontier import Frontier, Point
from fedpriv.scoring.pareto import Effect
from fedpriv.scoring.verdict import BADGES
from fedpriv.util.escape import markup

_WIDTH, _HEIGHT = 400.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 12.0, 30.0, 44.0
_TEXT, _SMALL = 12.0, 11.0
_RADIUS = 5.0
_NAMED = 8  # with more points than this numbers stand for names
_ELSEWHERE, _UNADAPTED = " †", " ‡"
_OUTRIGHT = 34.0  # room at the right for what is said outright

WITHOUT_LOCAL = "no run without exchange: give the report one of fedpriv train --method local"
"""The line on a chart that has no baseline."""

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
    ".u{fill:var(--line);stroke:var(--soft);stroke-width:1}.r{stroke:var(--soft);stroke-width:1.2}"
    ".q{stroke-dasharray:2.5 2}.a{stroke:var(--ink);stroke-dasharray:7 4;opacity:.7}"
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
            f'aria-label="{markup(f"{self.title}. {description}")}">{self.body}</svg>'
        )


def chart_style() -> str:
    """Return the style sheet that panels need within a page."""
    return _STYLE.replace("text{", "svg.chart text{").replace("}.", "}svg.chart .")


def panels(frontier: Frontier) -> tuple[Panel, ...]:
    """Draw accuracy against each sort of leakage that was measured, and against scalars per client and round."""
    names = [_name(point) for point in frontier.points]
    if len(names) <= _NAMED:
        drawn = _panels(frontier, names, numbered=False)
        if all(None not in panel.label_boxes for panel in drawn):
            return drawn
    return _panels(frontier, [str(number) for number in range(1, len(names) + 1)], numbered=True)


def _panels(frontier: Frontier, labels: Sequence[str], *, numbered: bool) -> tuple[Panel, ...]:
    found = []
    for name in frontier.measured:
        title, axis, scale = _LEAKS[name]
        places = [_Place.of(point.effects.get(name)) for point in frontier.points]
        if any(place is not None and place.value is not None for place in places):
            found.append(_panel(frontier, title, axis, scale, places, labels, numbered=numbered))
    sent = [_Place(p.scalars.mean, p.scalars.low, p.scalars.high, known=True) for p in frontier.points]
    axis = "scalars up (of 32 bits), per client and round"
    return (*found, _panel(frontier, "Communication", axis, Logarithmic, sent, labels, numbered=numbered))


def describe(frontier: Frontier) -> str:
    """Return the charts in words, for those who cannot see them."""
    told = []
    for point, best in zip(frontier.points, frontier.best, strict=True):
        leaks = [f"{name} {effect_words(name, effect)}" for name, effect in point.effects.items()]
        received = "" if point.received is None else f" ({100 * point.received.mean:.1f} % after broadcast)"
        bought = ", ".join(
            f"{gain_words(one)} points {when.replace('_', ' ')}" for when, one in point.gains.items() if one
        )
        received += f", over local {bought}" if bought else ""
        told.append(
            f"{point.label}: {BADGES[point.kind]}; {', '.join([*leaks, ''])}{100 * point.trained.mean:.1f} %{received}, "
            f"{point.scalars.mean:,.0f} scalars{'' if best else ' (bettered)'}"
        )
    alone = ", ".join(f"{100 * value:.1f} %" for value in frontier.locals)
    return "; ".join([*told, f"without exchange {alone}" if alone else WITHOUT_LOCAL])


def effect_words(name: str, effect: Effect) -> str:
    """Return an attack's value by the measure of a panel beyond the best guess, with its unit."""
    if effect.value is None:
        return effect.attack
    if name == "images":
        return f"{effect.value:+.1f} dB"
    return f"{100 * effect.value:+.0f} %" if name == "representations" else f"{effect.value:+.2f}"


def frontier_svg(found: Sequence[Frontier]) -> str:
    """Return all frontiers as a picture file, two panels a row."""
    gap, head, foot = 16.0, 26.0, 46.0
    width, top = 2 * _WIDTH + gap, 0.0
    parts, settings = [], _settings(found)
    for number, (frontier, setting) in enumerate(zip(found, settings, strict=True)):
        title = _fitting(f"{number + 1}. {setting}", width - 16, _SMALL)
        parts.append(f'<text class="s" x="8" y="{top + 18:g}" font-size="{_SMALL:g}">{markup(title)}</text>')
        for place, panel in enumerate(drawn := panels(frontier)):
            x, y = (place % 2) * (_WIDTH + gap), top + head + (place // 2) * _HEIGHT
            parts.append(f'<g transform="translate({x:g} {y:g})">{panel.body}</g>')
        top += head + math.ceil(len(drawn) / 2) * _HEIGHT
    height = top + foot
    parts.append(_key(height - 28))
    colours = [";".join(f"--{name}:{value}" for name, value in theme.items()) for theme in (_LIGHT, _DARK)]
    told = markup(" ".join(f"{name}: {describe(one)}." for name, one in zip(settings, found, strict=True)))
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


def _key(y: float) -> str:
    middle, size = y - 4, f'font-size="{_SMALL:g}"'
    shown = (("b", 14, "not bettered"), ("d", 110, "bettered"), ("u", 190, "not tested hard enough"))
    marks = "".join(
        f'<circle class="{kind}" cx="{x}" cy="{middle:g}" r="{_RADIUS:g}"/><text class="s" x="{x + 10}" y="{y:g}" {size}>'
        f"{text}</text>"
        for kind, x, text in shown
    )
    rest = (
        "dashed, ‡: adapted attack not run; †: tells more under another card; bar: 95 % interval, or range over seeds"
    )
    return (
        f'{marks}<text class="s" x="350" y="{y:g}" {size}>line: to the accuracy after the broadcast; long dashes: '
        f'without exchange</text><text class="s" x="8" y="{y + 16:g}" {size}>{rest}</text>'
    )


def _name(point: Point) -> str:
    return point.label + (_ELSEWHERE if point.elsewhere else "") + (_UNADAPTED if point.unadapted else "")


def _fitting(text: str, width: float, size: float) -> str:
    room = int(width / (LETTER * size))
    return text if len(text) <= room else text[: room - 1] + "…"


_LEAKS: dict[str, tuple[str, str, type[Linear]]] = {
    "images": ("Images", "PSNR beyond the best guess, dB", Decibels),
    "representations": ("Recovered vectors", "error below the best guess's, of the vector's length", Shares),
    "membership": ("Membership", "AUC beyond the best guess", Areas),
    "property": ("Property", "AUC beyond the best guess", Areas),
}
"""Title, axis and scale of the panel of each sort of leakage."""


# ---------------------------------------------------------------- one panel


@dataclass(frozen=True)
class _Place:
    """Where a point stands across: a value with the ends of its bar, at the right edge without one."""

    value: float | None
    low: float | None
    high: float | None
    known: bool

    @classmethod
    def of(cls, effect: Effect | None) -> _Place | None:
        return None if effect is None else cls(effect.value, effect.low, effect.high, effect.known)

    @property
    def ends(self) -> list[float]:
        return [value for value in (self.low, self.value, self.high) if value is not None]


def _panel(
    frontier: Frontier,
    title: str,
    axis: str,
    scale: type[Linear],
    places: Sequence[_Place | None],
    labels: Sequence[str],
    *,
    numbered: bool,
) -> Panel:
    points = frontier.points
    shown = [(i, place) for i, place in enumerate(places) if place is not None]
    outright = any(place.value is None for _, place in shown)
    right, floor = _WIDTH - _RIGHT - outright * _OUTRIGHT, _HEIGHT - _BOTTOM
    origin = [] if scale is Logarithmic else [0.0]
    x = scale.around([*origin, *(value for _, place in shown for value in place.ends)], _LEFT, right)
    heights = [v for p in points for spread in (p.trained, p.received) if spread is not None for v in spread.ends]
    y = Linear.around([*heights, *frontier.locals], floor, _TOP)
    edge = _WIDTH - _RIGHT - _RADIUS - 4
    across = [edge if place.value is None else x.place(place.value) for _, place in shown]
    spots = [(a, y.place(points[i].trained.mean)) for a, (i, _) in zip(across, shown, strict=True)]
    bars = [_bars(points[i], place, spot, x, y) for spot, (i, place) in zip(spots, shown, strict=True)]
    area = Box(_LEFT + 2, _TOP + 2, _WIDTH - _RIGHT, floor - 2)
    own = [labels[i] for i, _ in shown]
    lines = [[*bar, *_stem(points[i], spot, y)] for bar, spot, (i, _) in zip(bars, spots, shown, strict=True)]
    boxes = place_labels(spots, lines, own, area, size=_TEXT, radius=_RADIUS, anywhere=numbered)
    parts = [_backdrop(title, axis, x, y, frontier.locals, outright=outright)]
    # Those of the set come last, so that they lie on top.
    for n in sorted(range(len(shown)), key=lambda n: frontier.best[shown[n][0]]):
        i, place = shown[n]
        known = place.known and points[i].kind != "untested"
        mark = "u" if not known else "b" if frontier.best[i] else "d"
        parts.append(_mark(points[i], mark, spots[n], bars[n], y))
        box = boxes[n]
        if box is not None:
            weight = ' class="n" font-weight="650"' if mark == "b" else ' class="n s"'
            parts.append(
                f'{_leader(*spots[n], box)}<text{weight} x="{box.left + 1:.1f}" y="{box.bottom - 3.5:.1f}" '
                f'font-size="{_TEXT:g}">{markup(own[n])}</text>'
            )
    return Panel("".join(parts), _WIDTH, _HEIGHT, title, tuple(boxes), numbered)


def _bars(point: Point, place: _Place, spot: tuple[float, float], x: Linear, y: Linear) -> list[Box]:
    a, b = spot
    found = []
    if place.low is not None and place.high is not None:
        found.append(Box(x.place(place.low), b, x.place(place.high), b))
    if point.trained.sd is not None:
        low, high = point.trained.ends
        found.append(Box(a, y.place(high), a, y.place(low)))
    return found


def _stem(point: Point, spot: tuple[float, float], y: Linear) -> list[Box]:
    """Return the line to the accuracy after the broadcast, where that is known."""
    if point.received is None:
        return []
    a, b = spot
    after = y.place(point.received.mean)
    return [Box(a, min(b, after), a, max(b, after))]


def _mark(point: Point, mark: str, spot: tuple[float, float], bars: Sequence[Box], y: Linear) -> str:
    """Return a point with its bars, and the line to the accuracy after the broadcast."""
    a, b = spot
    parts = [_stroke("w" if mark == "b" else "v", bar.left, bar.top, bar.right, bar.bottom) for bar in bars]
    for line in _stem(point, spot, y):
        after = y.place(point.received.mean) if point.received else b
        parts += [_stroke("r", a, line.top, a, line.bottom), _stroke("r", a - 4, after, a + 4, after)]
    dashed = " q" if point.unadapted else ""
    parts.append(f'<circle class="{mark}{dashed}" cx="{a:.1f}" cy="{b:.1f}" r="{_RADIUS:g}"/>')
    return "".join(parts)


def _backdrop(title: str, axis: str, x: Linear, y: Linear, alone: Sequence[float], *, outright: bool) -> str:
    right, floor = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    leaks = not isinstance(x, Logarithmic)
    if leaks:
        shaded = x.place(0.0) - _LEFT
        parts.append(f'<rect class="z" x="{_LEFT:g}" y="{_TOP:g}" width="{shaded:.1f}" height="{floor - _TOP:g}"/>')
        parts.append(_stroke("o", x.place(0.0), _TOP, x.place(0.0), floor))
    for value, text in y.ticks():
        place = y.place(value)
        if _TOP - 0.1 <= place <= floor + 0.1:
            parts.append(_stroke("g", _LEFT, place, right, place))
            parts.append(_words(_LEFT - 6, place + 4, text, "end"))
    for value, text in x.ticks():
        place = x.place(value)
        if _LEFT - 0.1 <= place <= x.end + 0.1:
            parts.append(_stroke("g", place, floor, place, floor + 4))
            parts.append(_words(place, floor + 17, text, "middle"))
    if outright:
        parts.append(_words(right, floor + 17, "outright", "end"))
    for value in alone:
        parts.append(_stroke("a", _LEFT, y.place(value), right, y.place(value)))
    if alone:
        parts.append(_words(_LEFT + 4, y.place(max(alone)) - 4, f"local {100 * max(alone):.1f} %", "start"))
    else:
        parts.append(_words(right, _TOP - 5, _fitting(WITHOUT_LOCAL, right - _LEFT, _SMALL), "end"))
    name = f"{axis} (dashed: 0)" if leaks else axis
    parts.append(_words((_LEFT + right) / 2, _HEIGHT - 8, name, "middle"))
    parts.append(
        f'<text x="6" y="14" font-size="{_TEXT:g}" font-weight="650">{markup(title)} (upwards: accuracy)</text>'
    )
    return "".join(parts)


def _words(x: float, y: float, text: str, anchor: str) -> str:
    return (
        f'<text class="s" x="{x:.1f}" y="{y:.1f}" font-size="{_SMALL:g}" text-anchor="{anchor}">{markup(text)}</text>'
    )


def _stroke(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _leader(a: float, b: float, box: Box) -> str:
    """Return a thin line from a point to its label, where the label stands off."""
    x, y = nearest(a, b, box)
    return _stroke("l", a, b, x, y) if math.hypot(x - a, y - b) > 2.4 * _RADIUS else ""
