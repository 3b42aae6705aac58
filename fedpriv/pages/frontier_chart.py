"""The frontier as SVG: accuracy against each sort of leakage, and against scalars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedpriv.pages.baselines import gain_words
from fedpriv.pages.charts import INK, SOFT, drawing, open_axes, svg_text
from fedpriv.pages.frontier import Frontier, Point, Spread
from fedpriv.pages.labels import differing
from fedpriv.scoring.pareto import Effect
from fedpriv.scoring.verdict import BADGES
from fedpriv.util.escape import picture_text

WITHOUT_LOCAL = "no run without exchange: give the report one of fedpriv train --method local"
"""The line on a chart that has no accuracy of local training."""

_PANELS = {
    "images": ("Images", "PSNR above the baseline, dB"),
    "representations": ("Recovered vectors", "error below the baseline's, of the vector's length"),
    "membership": ("Membership", "AUC above the baseline"),
    "property": ("Property", "AUC above the baseline"),
}
"""Title and axis of the panel of each sort of leakage."""

_BEST, _OTHER, _UNKNOWN = "#2f5d8a", "#ffffff", "#d9dee5"
_ACROSS = 2  # panels, and uploads of the legend, a row


def frontier_svg(frontiers: Sequence[Frontier]) -> str:
    """Draw frontiers below one another; points carry their number in the table."""
    from matplotlib.lines import Line2D

    drawn = [_drawn(frontier) for frontier in frontiers]
    rows = [math.ceil((len(names) + 1) / _ACROSS) for names in drawn]
    heights = [
        2.7 * count + 0.17 * math.ceil(len(frontier.points) / _ACROSS) + 0.55
        for count, frontier in zip(rows, frontiers, strict=True)
    ]
    with drawing(8.0, sum(heights)) as figure:
        parts = figure.subfigures(len(frontiers), 1, height_ratios=heights, squeeze=False).ravel()
        for frontier, names, title, part, count in zip(frontiers, drawn, _titles(frontiers), parts, rows, strict=True):
            part.suptitle(picture_text(title), fontsize=9, color=SOFT)
            axes = part.subplots(count, _ACROSS, squeeze=False, sharey=True).ravel()
            for name, axis in zip([*names, ""], axes, strict=False):
                _panel(frontier, name, axis)
            for axis in axes[len(names) + 1 :]:
                axis.remove()
            texts = [
                f"{number}  {point.label}" + (" †" if point.elsewhere else "") + (" ‡" if point.unadapted else "")
                for number, point in enumerate(frontier.points, start=1)
            ]
            local = "long dashes: local" if frontier.locals else WITHOUT_LOCAL
            texts += ["blue: not dominated; grey: inconclusive", f"tick: after the broadcast; {local}"]
            part.legend(
                [Line2D([], [], linewidth=0) for _ in texts],
                [picture_text(text) for text in texts],
                loc="outside lower center",
                ncols=_ACROSS,
                frameon=False,
                fontsize=8,
                handlelength=0,
            )
        return svg_text(figure)


def describe(frontier: Frontier) -> str:
    """Return the charts in words, for those who cannot see them."""
    lines = []
    for point, best in zip(frontier.points, frontier.best, strict=True):
        leaks = [f"{name} {effect_words(name, effect)}" for name, effect in point.effects.items()]
        received = "" if point.received is None else f" ({100 * point.received.mean:.1f} % after broadcast)"
        bought = [f"{gain_words(gain)} points {when.replace('_', ' ')}" for when, gain in point.gains.items() if gain]
        received += f", over local {', '.join(bought)}" if bought else ""
        lines.append(
            f"{point.label}: {BADGES[point.kind]}; {', '.join([*leaks, ''])}{100 * point.trained.mean:.1f} %{received}, "
            f"{point.scalars.mean:,.0f} scalars{'' if best else ' (dominated)'}"
        )
    alone = ", ".join(f"{100 * value:.1f} %" for value in frontier.locals)
    return "; ".join([*lines, f"without exchange {alone}" if alone else WITHOUT_LOCAL])


def effect_words(name: str, effect: Effect) -> str:
    """Return an attack's value by the measure of a panel above the baseline, with its unit."""
    if effect.value is None:
        return effect.attack
    if name == "images":
        return f"{effect.value:+.1f} dB"
    return f"{100 * effect.value:+.0f} %" if name == "representations" else f"{effect.value:+.2f}"


def _drawn(frontier: Frontier) -> list[str]:
    return [
        name
        for name in frontier.measured
        if any(point.effects[name].value is not None for point in frontier.points if name in point.effects)
    ]


def _titles(frontiers: Sequence[Frontier]) -> list[str]:
    titles = []
    for frontier, card in zip(frontiers, differing([item.card for item in frontiers]), strict=True):
        task = frontier.task
        parts = (task["dataset"], f"{task['clients']} clients", task.get("local work"))
        titles.append("; ".join(filter(None, (", ".join(filter(None, parts)), card))))
    return titles


def _panel(frontier: Frontier, name: str, axes: Any) -> None:
    """Draw one sort of leakage, or, without a name, communication."""
    from matplotlib.ticker import EngFormatter, PercentFormatter

    open_axes(axes)
    title, label = _PANELS[name] if name else ("Communication", "scalars up (of 32 bits), per client and round")
    for number, (point, best) in enumerate(zip(frontier.points, frontier.best, strict=True), start=1):
        across: Effect | Spread | None = point.effects.get(name) if name else point.scalars
        if across is not None:
            _mark(axes, number, point, across, best=best)
    for value in frontier.locals:
        axes.axhline(value, color=INK, linewidth=1, linestyle=(0, (7, 4)), alpha=0.7)
    axes.set_title(f"{title} (upwards: accuracy)", fontsize=9.5, loc="left", color=INK)
    axes.set_xlabel(label)
    axes.margins(0.12)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if name:
        axes.axvline(0, color=SOFT, linewidth=1, linestyle=(0, (3, 3)))
        axes.axvspan(min(axes.get_xlim()[0], 0), 0, color="#f5f7f9", zorder=0)
    else:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(EngFormatter())


def _mark(axes: Any, number: int, point: Point, across: Effect | Spread, *, best: bool) -> None:
    """Draw a point with its bars, its number, and a tick at the accuracy after the broadcast."""
    x, y = (across.value if isinstance(across, Effect) else across.mean), point.trained.mean
    where, bar = axes.transData, {"color": SOFT, "linewidth": 1.2, "alpha": 0.6}
    if x is None:  # said outright: at the right edge
        x, where = 0.97, axes.get_yaxis_transform()
    elif across.low is not None and across.high is not None:
        axes.plot([across.low, across.high], [y, y], **bar)
    known = point.kind != "untested" and (not isinstance(across, Effect) or across.known)
    face = _UNKNOWN if not known else _BEST if best else _OTHER
    if point.trained.sd is not None:
        axes.plot([x, x], point.trained.ends, transform=where, **bar)
    if point.received is not None:
        axes.plot([x, x], [y, point.received.mean], color=SOFT, linewidth=1, transform=where)
        axes.plot([x], [point.received.mean], marker="_", color=SOFT, markersize=8, transform=where)
    axes.plot([x], [y], "o", markersize=11, color=face, markeredgecolor=SOFT, zorder=3 + best, transform=where)
    ink = "#ffffff" if face == _BEST else INK
    axes.annotate(str(number), (x, y), xycoords=where, ha="center", va="center", fontsize=7, color=ink, zorder=5 + best)
