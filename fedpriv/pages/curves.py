"""Pictures of runs as SVG text. The same numbers give the same text; no state of matplotlib is left changed."""

from __future__ import annotations

import base64
import contextlib
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpriv.util.escape import any_letters, picture_text

_COLOURS = ("#2f5d8a", "#b3261e", "#0b6e4f", "#a86a00", "#7b4fa3", "#2b9bb8", "#c2558f", "#5b6572")
_MARKERS = ("o", "s", "^", "D", "v", "P")
_INK, _SOFT, _GRID = "#1c2430", "#5b6572", "#e4e8ed"
_WIDTH = 4.6  # inches: readable at the width of a phone
_FEW_ROUNDS = 25  # so many points get marks
_LEGEND = 54  # letters that fit a line of the legend, key and gaps apart


@dataclass(frozen=True)
class Line:
    """One run in a chart of accuracy.

    Attributes:
        label: the run.
        x: ``(rounds,)`` round numbers, or scalars.
        mean: ``(rounds,)`` mean over clients.
        spread: ``(rounds,)`` standard deviation over clients.
        pooled: ``(rounds,)`` over all test images.
    """

    label: str
    x: np.ndarray
    mean: np.ndarray
    spread: np.ndarray
    pooled: np.ndarray


def accuracy_by_round(lines: Sequence[Line], title: str) -> str:
    """Draw accuracy per round: mean over clients, one standard deviation over clients around it, pooled (dashed)."""
    from matplotlib.ticker import MaxNLocator

    with _canvas(lines) as (figure, axes):
        for number, line in enumerate(lines):
            colour = _COLOURS[number % len(_COLOURS)]
            low, high = (np.clip(line.mean + sign * line.spread, 0, 1) for sign in (-1, 1))
            axes.fill_between(line.x, low, high, color=colour, alpha=max(0.05, 0.3 / (1 + len(lines))), linewidth=0)
            axes.plot(line.x, line.pooled, color=colour, linestyle=(0, (3, 2)), linewidth=1)
            axes.plot(line.x, line.mean, label=picture_text(line.label), **_stroke(number, len(line.x)))
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        return _finish(figure, axes, title)


@dataclass(frozen=True)
class Band:
    """One run in a chart of an estimated quantity, all ``(rounds,)``: a line between the smallest and the largest."""

    label: str
    x: np.ndarray
    line: np.ndarray
    low: np.ndarray
    high: np.ndarray


def positive_by_round(bands: Sequence[Band], title: str) -> str:
    """Draw a quantity that is not negative by round, on a logarithmic axis where it is nowhere zero."""
    from matplotlib.ticker import MaxNLocator

    with _canvas(bands) as (figure, axes):
        for number, band in enumerate(bands):
            colour = _COLOURS[number % len(_COLOURS)]
            axes.fill_between(band.x, band.low, band.high, color=colour, alpha=0.3 / (1 + len(bands)), linewidth=0)
            axes.plot(band.x, band.line, label=picture_text(band.label), **_stroke(number, len(band.x)))
        if all((band.low > 0).all() for band in bands):
            axes.set_yscale("log")
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        return _finish(figure, axes, title, percent=False)


def accuracy_by_scalars(lines: Sequence[Line], title: str) -> str:
    """Draw pooled accuracy by scalars on the wire so far; runs that differ much share a logarithmic axis.

    A logarithmic axis has no zero, so points without traffic are left out of it.
    """
    with _canvas(lines) as (figure, axes):
        if logarithmic([line.x for line in lines]):
            axes.set_xscale("log")
            lines = [_with_traffic(line) for line in lines]
        for number, line in enumerate(lines):
            axes.plot(line.x, line.pooled, label=picture_text(line.label), **_stroke(number, len(line.x)))
        axes.set_xlabel("scalars on the wire, all clients, up and down")
        if axes.get_xscale() == "linear":
            axes.xaxis.set_major_formatter(_prefixes())
        return _finish(figure, axes, title)


def logarithmic(xs: Sequence[np.ndarray]) -> bool:
    """True where the largest totals differ by more than a factor of ten."""
    ends = [float(x[-1]) for x in xs if x[-1] > 0]
    return len(ends) > 1 and max(ends) > 10 * min(ends)


def client_bars(trained: np.ndarray, received: np.ndarray, title: str) -> str:
    """Draw each client's accuracy: a bar after training, a dot after the broadcast.

    Args:
        trained: ``(clients,)`` in [0, 1].
        received: ``(clients,)`` in [0, 1].
        title: over the picture.
    """
    from matplotlib.ticker import MaxNLocator

    with _canvas(()) as (figure, axes):
        clients = np.arange(len(trained))
        axes.bar(clients, trained, color="#a9c0d6", width=0.8, label="after training")
        size = float(np.clip(90 / len(trained) ** 0.5, 6, 26))
        axes.scatter(clients, received, color="#b3261e", s=size, zorder=3, label="after broadcast")
        axes.axhline(trained.mean(), color=_COLOURS[0], linewidth=1, linestyle=(0, (3, 2)), label="mean after training")
        axes.set_xlabel("client")
        axes.set_ylim(0, 1.04)
        axes.set_xlim(-0.7, len(trained) - 0.3)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=11))
        axes.grid(visible=False, axis="x")
        return _finish(figure, axes, title, columns=3)


# ---------------------------------------------------------------- shared


def _with_traffic(line: Line) -> Line:
    some = line.x > 0
    return Line(line.label, line.x[some], line.mean[some], line.spread[some], line.pooled[some])


def _stroke(number: int, points: int) -> dict[str, Any]:
    marker = _MARKERS[number // len(_COLOURS) % len(_MARKERS)]
    beyond = number >= len(_COLOURS)  # colours repeat: marks tell
    marked = points <= _FEW_ROUNDS or beyond
    return {
        "color": _COLOURS[number % len(_COLOURS)],
        "linewidth": 1.7,
        "marker": marker if marked else None,
        "markersize": 3.5,
        "markevery": max(1, points // _FEW_ROUNDS),
    }


def _prefixes() -> Any:
    from matplotlib.ticker import EngFormatter

    return EngFormatter()


@contextlib.contextmanager
def house_style() -> Iterator[None]:
    """Draw in the project's style; no state of matplotlib is left changed."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # not the user's own settings: a page depends on the records alone
        matplotlib.rcParams.update(
            {
                "svg.hashsalt": "fedpriv",
                "svg.fonttype": "path",
                "font.size": 9.5,
                "text.color": _INK,
                "axes.labelcolor": _SOFT,
                "axes.edgecolor": "#b9c1cb",
                "xtick.color": _SOFT,
                "ytick.color": _SOFT,
            }
        )
        yield


def open_axes(axes: Any) -> None:
    """Give axes a soft grid and leave their frame open."""
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


@contextlib.contextmanager
def _canvas(lines: Sequence[Line | Band]) -> Iterator[tuple[Any, Any]]:
    from matplotlib.figure import Figure

    with house_style():
        figure = Figure(figsize=(_WIDTH, 3.2 + 0.2 * max(0, len(lines) - 2) / 2), layout="constrained")
        axes = figure.add_subplot()
        open_axes(axes)
        yield figure, axes


def _finish(figure: Any, axes: Any, title: str, *, columns: int = 2, percent: bool = True, key: bool = True) -> str:
    from matplotlib.ticker import PercentFormatter

    axes.set_title(picture_text(title), fontsize=10, loc="left", color=_INK)
    if percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if key:
        labels = axes.get_legend_handles_labels()[1]
        longest = max((len(text) for text in labels), default=0)
        fitting = max(1, min(columns, _LEGEND // max(1, longest)))
        # The canvas has room for two columns; the rows that long labels take besides must not come from the curves.
        besides = math.ceil(len(labels) / fitting) - math.ceil(len(labels) / 2)
        figure.set_figheight(figure.get_figheight() + 0.2 * max(0, besides))
        figure.legend(
            loc="outside lower center",
            ncols=fitting,
            frameon=False,
            fontsize=8.5,
            handlelength=1.4,
            columnspacing=1.2,
            handletextpad=0.5,
        )
    return svg_text(figure)


def image_source(svg: str) -> str:
    """Return an SVG picture as the source of an image in a page."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def svg_text(figure: Any) -> str:
    """Return a figure as SVG; the same figure gives the same text."""
    buffer = io.StringIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}  # a date would make every file different
    with any_letters():
        figure.savefig(buffer, format="svg", metadata=nothing)
    return buffer.getvalue()
