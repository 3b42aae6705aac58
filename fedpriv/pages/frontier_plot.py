"""The frontier as SVG: accuracy against each sort of leakage, and against scalars. The same points give the same bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedpriv.pages.baselines import gain_words
from fedpriv.pages.card import differing
from fedpriv.pages.curves import house_style, open_axes, svg_text
from fedpriv.pages.frontier import Frontier, Point, Spread
from fedpriv.scoring.pareto import Effect
from fedpriv.scoring.verdict import BADGES
from fedpriv.util.escape import picture_text

WITHOUT_LOCAL = "no run without exchange: give the report one of fedpriv train --method local"
"""The line on a chart that has no baseline."""

_PANELS = {
    "images": ("Images", "PSNR beyond the best guess, dB"),
    "representations": ("Recovered vectors", "error below the best guess's, of the vector's length"),
    "membership": ("Membership", "AUC beyond the best guess"),
    "property": ("Property", "AUC beyond the best guess"),
}
"""Title and axis of the panel of each sort of leakage."""

_BEST, _OTHER, _UNKNOWN, _SOFT, _INK = "#2f5d8a", "#ffffff", "#d9dee5", "#5b6572", "#1c2430"
_LEGEND_ROWS = 2  # uploads named a row


def frontier_svg(frontiers: Sequence[Frontier]) -> str:
    """Draw frontiers below one another, two panels a row; points carry their number in the table."""
    from matplotlib.figure import Figure

    rows = [math.ceil((len(_titles(frontier)) + 1) / 2) for frontier in frontiers]
    keys = [0.17 * math.ceil(len(frontier.points) / _LEGEND_ROWS) + 0.55 for frontier in frontiers]
    heights = [2.7 * count + key for count, key in zip(rows, keys, strict=True)]
    with house_style():
        figure = Figure(figsize=(8.0, sum(heights)), layout="constrained")
        parts = figure.subfigures(len(frontiers), 1, height_ratios=heights, squeeze=False).ravel()
        for frontier, setting, part, count in zip(frontiers, _settings(frontiers), parts, rows, strict=True):
            part.suptitle(picture_text(setting), fontsize=9, color=_SOFT)
            axes = part.subplots(count, 2, squeeze=False, sharey=True).ravel()
            for name, axis in zip([*_titles(frontier), ""], axes, strict=False):
                _panel(frontier, name, axis)
            for axis in axes[len(_titles(frontier)) + 1 :]:
                axis.remove()
            part.legend(
                *_names(frontier),
                loc="outside lower center",
                ncols=_LEGEND_ROWS,
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
        bought = ", ".join(
            f"{gain_words(gain)} points {when.replace('_', ' ')}" for when, gain in point.gains.items() if gain
        )
        received += f", over local {bought}" if bought else ""
        lines.append(
            f"{point.label}: {BADGES[point.kind]}; {', '.join([*leaks, ''])}{100 * point.trained.mean:.1f} %{received}, "
            f"{point.scalars.mean:,.0f} scalars{'' if best else ' (dominated)'}"
        )
    alone = ", ".join(f"{100 * value:.1f} %" for value in frontier.locals)
    return "; ".join([*lines, f"without exchange {alone}" if alone else WITHOUT_LOCAL])


def effect_words(name: str, effect: Effect) -> str:
    """Return an attack's value by the measure of a panel beyond the best guess, with its unit."""
    if effect.value is None:
        return effect.attack
    if name == "images":
        return f"{effect.value:+.1f} dB"
    return f"{100 * effect.value:+.0f} %" if name == "representations" else f"{effect.value:+.2f}"


def _titles(frontier: Frontier) -> list[str]:
    """Return the sorts of leakage with a value to draw."""
    return [
        name
        for name in frontier.measured
        if any(point.effects[name].value is not None for point in frontier.points if name in point.effects)
    ]


def _settings(frontiers: Sequence[Frontier]) -> list[str]:
    """Name each frontier by its task, and by the grants in which the cards differ."""
    tasks = [
        ", ".join(
            filter(
                None, (frontier.task["dataset"], f"{frontier.task['clients']} clients", frontier.task.get("local work"))
            )
        )
        for frontier in frontiers
    ]
    grants = differing([item.card for item in frontiers])
    return [f"{task}; {grant}" if grant else task for task, grant in zip(tasks, grants, strict=True)]


def _names(frontier: Frontier) -> tuple[list[Any], list[str]]:
    """Return the legend: each point's number and name, and what marks mean."""
    from matplotlib.lines import Line2D

    names = [
        f"{number}  {point.label}" + (" †" if point.elsewhere else "") + (" ‡" if point.unadapted else "")
        for number, point in enumerate(frontier.points, start=1)
    ]
    local = "long dashes: local" if frontier.locals else WITHOUT_LOCAL
    marks = ["blue: not bettered; grey: not tested hard enough", f"tick: after the broadcast; {local}"]
    handles = [Line2D([], [], linewidth=0) for _ in (*names, *marks)]
    return handles, [picture_text(text) for text in (*names, *marks)]


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
        axes.axhline(value, color=_INK, linewidth=1, linestyle=(0, (7, 4)), alpha=0.7)
    axes.set_title(f"{title} (upwards: accuracy)", fontsize=9.5, loc="left", color=_INK)
    axes.set_xlabel(label)
    axes.margins(0.12)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if name:
        axes.axvline(0, color=_SOFT, linewidth=1, linestyle=(0, (3, 3)))
        axes.axvspan(min(axes.get_xlim()[0], 0), 0, color="#f5f7f9", zorder=0)
    else:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(EngFormatter())


def _mark(axes: Any, number: int, point: Point, across: Effect | Spread, *, best: bool) -> None:
    """Draw a point with its bars, its number, and a tick at the accuracy after the broadcast."""
    x, y = (across.value if isinstance(across, Effect) else across.mean), point.trained.mean
    where = axes.transData
    if x is None:  # said outright: at the right edge
        x, where = 0.97, axes.get_yaxis_transform()
    elif across.low is not None and across.high is not None:
        axes.plot([across.low, across.high], [y, y], color=_SOFT, linewidth=1.2, alpha=0.6)
    known = point.kind != "untested" and (not isinstance(across, Effect) or across.known)
    face = _UNKNOWN if not known else _BEST if best else _OTHER
    if point.trained.sd is not None:
        axes.plot([x, x], point.trained.ends, color=_SOFT, linewidth=1.2, alpha=0.6, transform=where)
    if point.received is not None:
        axes.plot([x, x], [y, point.received.mean], color=_SOFT, linewidth=1, transform=where)
        axes.plot([x], [point.received.mean], marker="_", color=_SOFT, markersize=8, transform=where)
    axes.plot(
        [x],
        [y],
        marker="o",
        markersize=11,
        color=face,
        markeredgecolor=_SOFT,
        linestyle="none",
        zorder=3 + best,
        transform=where,
    )
    ink = "#ffffff" if face == _BEST else _INK
    axes.annotate(str(number), (x, y), xycoords=where, ha="center", va="center", fontsize=7, color=ink, zorder=5 + best)
