"""A picture of decision regions over the plane, with the samples, one panel a client (FedRE, figure 2)."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpriv.federation.regions import Regions
from fedpriv.pages.curves import class_colours, house_style, svg_text
from fedpriv.util.escape import picture_text

_PANEL = 3.1  # inches
_PALE, _FULL = 0.12, 0.62  # share of a class's colour where its classifier is least and most sure

_MARGIN = 0.04  # of the plane beyond the outermost sample


def region_map(regions: Regions, title: str) -> str:
    """Draw the regions as SVG: the colour is the class that a client's model says, deeper where it is surer.

    Dots are the client's training samples, crosses its test samples, in the colours of their true classes.
    """
    from matplotlib.figure import Figure

    clients = len(regions.classes)
    columns = min(2, clients)
    rows = -(-clients // columns)
    with house_style():
        figure = Figure(figsize=(columns * _PANEL, rows * _PANEL + 0.5), layout="constrained")
        panels = np.atleast_1d(figure.subplots(rows, columns, sharex=True, sharey=True)).ravel()
        colours = [_rgb(colour) for colour in class_colours(regions.n_classes)]
        for number, axes in enumerate(panels):
            if number < clients:
                _panel(axes, regions, number, colours)
            else:
                axes.set_visible(False)
        for label, colour in enumerate(colours):
            panels[0].scatter([], [], marker="s", s=30, color=[colour], label=f"class {label}")
        panels[0].scatter([], [], marker="o", s=9, color="#1c2430", label="training")
        panels[0].scatter([], [], marker="x", s=14, color="#1c2430", linewidths=0.9, label="test")
        figure.suptitle(picture_text(title), fontsize=10, x=0.02, ha="left")
        figure.legend(
            loc="outside lower center", ncols=6, frameon=False, fontsize=8.5, handletextpad=0.3, columnspacing=1
        )
        return svg_text(figure)


def mean_confidence(regions: Regions) -> float:
    """Return the mean largest softmax over grid and clients: nearer to 1 where boundaries are sharper."""
    return float(regions.confidence.mean())


def _panel(axes: Any, regions: Regions, client: int, colours: list[np.ndarray]) -> None:
    least = 1 / regions.n_classes
    sure = np.clip((regions.confidence[client] - least) / max(1 - least, 1e-9), 0, 1)
    depth = (_PALE + (_FULL - _PALE) * sure)[..., None]
    picture = 1 - depth * (1 - np.stack(colours)[regions.classes[client]])
    axes.imshow(picture, origin="lower", extent=(0, 1, 0, 1), interpolation="nearest")
    side = np.linspace(0, 1, regions.classes.shape[-1])
    for label in range(regions.n_classes):
        inside = (regions.classes[client] == label).astype(float)
        if 0 < inside.mean() < 1:
            axes.contour(side, side, inside, levels=[0.5], colors="#1c2430", linewidths=0.7)
    own = regions.holders == client
    for test, marker, size in ((False, "o", 9), (True, "x", 14)):
        some = own & (regions.tests == test)
        shade = [0.8 * colours[label] for label in regions.labels[some].tolist()]
        edge = {"linewidths": 0.9} if test else {"linewidths": 0.3, "edgecolors": "white"}
        axes.scatter(
            *regions.points[some].T,
            marker=marker,
            s=size,
            color=shade if test else None,
            c=None if test else shade,
            **edge,
        )
    axes.set_title(f"client {client}", fontsize=9, loc="left")
    axes.set_xticks([])
    axes.set_yticks([])
    low, high = max(0.0, regions.points.min() - _MARGIN), min(1.0, regions.points.max() + _MARGIN)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)


def _rgb(colour: Any) -> np.ndarray:
    from matplotlib.colors import to_rgb

    return np.asarray(to_rgb(colour))
