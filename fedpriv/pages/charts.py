"""Charts as SVG text in one style. The same numbers give the same text; no state of matplotlib is left changed."""

from __future__ import annotations

import base64
import contextlib
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedpriv.util.escape import any_letters, picture_text

COLOURS = ("#2f5d8a", "#b3261e", "#0b6e4f", "#a86a00", "#7b4fa3", "#2b9bb8", "#c2558f", "#5b6572")
INK, SOFT, BASELINE = "#1c2430", "#5b6572", "#0b6e4f"
DASHES = (0, (4, 2))
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
            {
                "svg.hashsalt": "fedpriv",
                "svg.fonttype": "path",
                "font.size": 9.5,
                "text.color": INK,
                "axes.labelcolor": SOFT,
                "axes.edgecolor": "#b9c1cb",
                "xtick.color": SOFT,
                "ytick.color": SOFT,
            }
        )
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


def image_source(svg: str) -> str:
    """Return an SVG picture as the source of an image in a page."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


@dataclass(frozen=True)
class Line:
    """One run in a chart of accuracy: ``(n,)`` values in [0, 1] over ``x``, and what is drawn around and beside them.

    Attributes:
        label: the run.
        x: ``(n,)`` round numbers, or scalars.
        y: ``(n,)`` the line.
        spread: ``(n,)`` half height of a band around it, or None.
        dashed: ``(n,)`` a second, dashed line, or None.
    """

    label: str
    x: np.ndarray
    y: np.ndarray
    spread: np.ndarray | None = None
    dashed: np.ndarray | None = None


def logarithmic(xs: Sequence[np.ndarray]) -> bool:
    """True where the largest totals differ by more than a factor of ten."""
    ends = [float(x[-1]) for x in xs if x[-1] > 0]
    return len(ends) > 1 and max(ends) > 10 * min(ends)


def accuracy_chart(lines: Sequence[Line], title: str, label: str) -> str:
    """Draw accuracy over rounds (``label`` "round"), or over scalars, whose axis is logarithmic where runs differ much.

    A logarithmic axis has no zero, so points without traffic are left out of it.
    """
    from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

    shown = [picture_text(line.label) for line in lines]
    across = max(1, min(2, _LETTERS // max(map(len, shown), default=1)))
    with drawing(4.6, 3.2 + 0.2 * max(0, math.ceil(len(lines) / across) - 1)) as figure:
        axes = open_axes(figure.add_subplot())
        if label == "round":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        elif logarithmic([line.x for line in lines]):
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
        legend(figure, across)
        return svg_text(figure)


def legend(figure: Any, across: int) -> None:
    """Put a legend of all that is labelled below a figure."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=across, frameon=False, fontsize=8.5)
