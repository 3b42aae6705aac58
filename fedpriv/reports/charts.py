"""Charts as SVG text in one style. The same numbers give the same text; no state of matplotlib is left changed."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedpriv.eval.endpoints import Endpoint
from fedpriv.reports.frontier import Frontier, Point
from fedpriv.util.escape import any_letters, picture_text

COLOURS = ("#2f5d8a", "#b3261e", "#0b6e4f", "#a86a00", "#7b4fa3", "#2b9bb8", "#c2558f", "#5b6572")
INK, SOFT = "#1c2430", "#5b6572"
_FEW = 25  # so many points get marks
_LETTERS = 54  # that fit a line of the legend


@contextlib.contextmanager
def drawing(width: float, height: float) -> Iterator[Any]:
    """Draw on a new figure of so many inches, in the project's style."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # not the user's own settings: a page depends on the records alone
        matplotlib.rcParams.update(
            {"svg.hashsalt": "fedpriv", "svg.fonttype": "path", "font.size": 9.5, "text.color": INK}
        )
        soft = dict.fromkeys(("axes.labelcolor", "xtick.color", "ytick.color"), SOFT)
        matplotlib.rcParams.update({**soft, "axes.edgecolor": "#b9c1cb"})
        yield Figure(figsize=(width, height), layout="constrained")


def open_axes(axes: Any) -> Any:
    """Give axes a soft grid, leave their frame open, and return them."""
    axes.grid(color="#e4e8ed", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return axes


def svg_text(figure: Any) -> str:
    """Return a figure as SVG; the same figure gives the same text."""
    buffer = io.StringIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}  # a date would make every file different
    with any_letters():
        figure.savefig(buffer, format="svg", metadata=nothing)
    return buffer.getvalue()


@dataclass(frozen=True)
class Line:
    """One run in a chart of accuracy."""

    label: str
    x: np.ndarray  # ``(n,)`` round numbers or scalars
    y: np.ndarray  # ``(n,)`` in [0, 1]
    spread: np.ndarray | None = None  # ``(n,)`` half the height of a band around the line
    dashed: np.ndarray | None = None  # ``(n,)`` of a second line


def accuracy_chart(lines: Sequence[Line], title: str, label: str) -> str:
    """Draw accuracy over rounds (``label`` "round"), or over scalars, whose axis is logarithmic where runs differ much."""
    from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

    shown = [picture_text(line.label) for line in lines]
    ends = [float(line.x[-1]) for line in lines if line.x[-1] > 0]
    across = max(1, min(2, _LETTERS // max(map(len, shown), default=1)))
    with drawing(4.6, 3.2 + 0.2 * max(0, math.ceil(len(lines) / across) - 1)) as figure:
        axes = open_axes(figure.add_subplot())
        if label == "round":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        elif len(ends) > 1 and max(ends) > 10 * min(ends):
            axes.set_xscale("log")
            lines = [replace(line, x=line.x[line.x > 0], y=line.y[line.x > 0]) for line in lines]
        else:
            axes.xaxis.set_major_formatter(EngFormatter())
        for number, (line, name) in enumerate(zip(lines, shown, strict=True)):
            again, colour = number // len(COLOURS), COLOURS[number % len(COLOURS)]
            if line.spread is not None:
                ends = [np.clip(line.y + sign * line.spread, 0, 1) for sign in (-1, 1)]
                axes.fill_between(line.x, *ends, color=colour, alpha=max(0.05, 0.3 / (1 + len(lines))), linewidth=0)
            if line.dashed is not None:
                axes.plot(line.x, line.dashed, color=colour, linestyle=(0, (3, 2)), linewidth=1)
            marker = "os^DvP"[again % 6] if again or len(line.x) <= _FEW else None  # colours repeat: marks tell
            every = max(1, len(line.x) // _FEW)
            axes.plot(
                line.x, line.y, color=colour, linewidth=1.7, marker=marker, markersize=3.5, markevery=every, label=name
            )
        axes.set_xlabel(label)
        axes.set_title(picture_text(title), fontsize=10, loc="left", color=INK)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        handles, labels = axes.get_legend_handles_labels()
        where = "outside lower center"
        figure.legend(handles, labels, loc=where, ncols=across, frameon=False, fontsize=8.5)
        return svg_text(figure)


WITHOUT_LOCAL = "no run of the method local was given"  # the line on a chart that has no accuracy of local training

_COLOURS = {"leak": "#b3261e", "no leak detected": "#0b6e4f", "inconclusive": "#d9dee5"}
"""Points by the verdict of their answer: on the panel's endpoint, or, by traffic, the most severe."""

_ACROSS = 2  # panels, and uploads of the legend, a row


def frontier_svg(frontiers: Sequence[Frontier]) -> str:
    """Draw frontiers below one another; points carry their number in the legend."""
    from matplotlib.lines import Line2D

    rows = [math.ceil((len(frontier.measured) + 1) / _ACROSS) for frontier in frontiers]
    heights = [
        2.7 * count + 0.17 * math.ceil(len(frontier.points) / _ACROSS) + 0.55
        for count, frontier in zip(rows, frontiers, strict=True)
    ]
    with drawing(8.0, sum(heights)) as figure:
        parts = figure.subfigures(len(frontiers), 1, height_ratios=heights, squeeze=False).ravel()
        for frontier, part, count in zip(frontiers, parts, rows, strict=True):
            task = frontier.task
            title = ", ".join(filter(None, (task["dataset"], f"{task['clients']} clients", task["local work"])))
            part.suptitle(picture_text(title), fontsize=9, color=SOFT)
            axes = part.subplots(count, _ACROSS, squeeze=False, sharey=True).ravel()
            panels: list[Endpoint | None] = [*frontier.measured, None]
            for name, axis in zip(panels, axes, strict=False):
                _panel(frontier, name, axis)
            for axis in axes[len(panels) :]:
                axis.remove()
            texts = [
                f"{number}  {point.label}" + (" ‡" if point.unadapted else "")
                for number, point in enumerate(frontier.points, start=1)
            ]
            local = "long dashes: local" if frontier.locals else WITHOUT_LOCAL
            texts += [
                "red: leak; green: none; grey: inconclusive; ring: dominated",
                f"tick: after the broadcast; {local}",
            ]
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


def _panel(frontier: Frontier, name: Endpoint | None, axes: Any) -> None:
    """Draw one endpoint, or, without a name, communication."""
    from matplotlib.ticker import EngFormatter, PercentFormatter

    open_axes(axes)
    label = "PSNR" if name == "reconstruction" else "AUC"
    label = f"{label} above the baseline" if name else "scalars up (of 32 bits), per client and round"
    for number, (point, best) in enumerate(zip(frontier.points, frontier.best, strict=True), start=1):
        answer = point.answers.get(name) if name else point.worst
        verdict = "inconclusive" if answer is None else answer.verdict
        ends: Sequence[float] = point.scalars[1:]
        across: float | None = point.scalars.mean
        if name:
            across, ends = (None, (0.0, 0.0)) if answer is None else (answer.advantage, answer.ci95 or (0.0, 0.0))
        if across is not None or (answer is not None and answer.named is not None):
            _mark(axes, number, point, across, ends, _COLOURS[verdict], best=best)
    for value in frontier.locals:
        axes.axhline(value, color=INK, linewidth=1, linestyle=(0, (7, 4)), alpha=0.7)
    axes.set_title(f"{(name or 'communication').capitalize()} (upwards: accuracy)", fontsize=9.5, loc="left", color=INK)
    axes.set_xlabel(label)
    axes.margins(0.12)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if name:
        axes.axvline(0, color=SOFT, linewidth=1, linestyle=(0, (3, 3)))
        axes.axvspan(min(axes.get_xlim()[0], 0), 0, color="#f5f7f9", zorder=0)
    else:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(EngFormatter())


def _mark(
    axes: Any, number: int, point: Point, x: float | None, ends: Sequence[float], colour: str, *, best: bool
) -> None:
    """Draw a point with its bars, its number, and a tick at the accuracy after the broadcast."""
    y, where, bar = point.trained.mean, axes.transData, {"color": SOFT, "linewidth": 1.2, "alpha": 0.6}
    if x is None:  # sent in clear: at the right edge
        x, where = 0.97, axes.get_yaxis_transform()
    elif ends[0] < ends[1]:
        axes.plot(ends, [y, y], **bar)
    axes.plot([x, x], point.trained[1:], transform=where, **bar)
    if point.received is not None:
        axes.plot([x, x], [y, point.received.mean], color=SOFT, linewidth=1, transform=where)
        axes.plot([x], [point.received.mean], marker="_", color=SOFT, markersize=8, transform=where)
    look = {
        "color": colour if best else "#ffffff",
        "markeredgecolor": colour if colour != _COLOURS["inconclusive"] else SOFT,
    }
    axes.plot([x], [y], "o", markersize=11, **look, markeredgewidth=1.4, zorder=3 + best, transform=where)
    ink = "#ffffff" if best and colour != _COLOURS["inconclusive"] else INK
    axes.annotate(str(number), (x, y), xycoords=where, ha="center", va="center", fontsize=7, color=ink, zorder=5 + best)
