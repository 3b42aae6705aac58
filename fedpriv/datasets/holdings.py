"""The clients' holdings: counts, a table and a picture, to be looked at before training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpriv.datasets.types import FederatedData
from fedpriv.util.errors import UserError
from fedpriv.util.escape import any_letters, picture_text
from fedpriv.util.files import placing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_WRITTEN_CELLS = 400
"""Cells of the picture above which its numbers would be too small to read."""

MAX_TICKS = 25


def class_counts(federated: FederatedData) -> np.ndarray:
    """Return the number of training images of every client and class, ``(clients, classes)`` int64."""
    labels = federated.dataset.samples.labels.numpy()
    n_classes = federated.dataset.n_classes
    return np.stack([np.bincount(labels[client.train_index], minlength=n_classes) for client in federated.clients])


def holdings_table(federated: FederatedData) -> list[dict[str, Any]]:
    """Return one row per client, of plain Python values.

    Each row has ``client``, ``train`` and ``test`` (images), ``classes`` (with at least one training image),
    ``largest_class`` (its name), ``largest_share`` (its share of the training images, 0..1) and ``counts`` (training
    images by class name, classes that the client lacks left out).
    """
    names = federated.dataset.class_names
    rows: list[dict[str, Any]] = []
    for number, (client, counts) in enumerate(zip(federated.clients, class_counts(federated), strict=True)):
        largest = int(counts.argmax())
        rows.append(
            {
                "client": number,
                "train": len(client.train_index),
                "test": len(client.test_index),
                "classes": int((counts > 0).sum()),
                "largest_class": names[largest],
                "largest_share": float(counts[largest] / max(counts.sum(), 1)),
                "counts": {names[label]: int(counts[label]) for label in np.flatnonzero(counts)},
            }
        )
    return rows


def draw_holdings(federated: FederatedData, path: Path) -> None:
    """Draw an ``.svg`` or ``.png`` of clients by classes, coloured by the logarithm of images, and each client's total.

    Cells of classes that a client lacks stay white; small tables have their numbers written in. The same division gives the
    same file.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path = Path(path)
    kind = path.suffix.lower().lstrip(".")
    if kind not in ("svg", "png"):
        raise UserError(f"cannot draw {path}: the name must end in .svg or .png")
    counts = class_counts(federated)
    height, width = np.clip((1.6, 3.5) + np.array((0.3, 0.42)) * counts.shape, (3.2, 7.0), (12.0, 18.0))
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    _draw(figure, federated, counts)
    metadata = {"Date": None} if kind == "svg" else None  # a date would make every file different
    try:
        with matplotlib.rc_context({"svg.hashsalt": "fedpriv"}), any_letters(), placing([path]) as temporary:
            figure.savefig(temporary[path], format=kind, dpi=150, metadata=metadata)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


def _draw(figure: Figure, federated: FederatedData, counts: np.ndarray) -> None:
    """Draw the cells on the left, and on the right the totals of the same rows."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap, LogNorm
    from matplotlib.ticker import LogFormatter, MaxNLocator

    cells, totals = figure.subplots(1, 2, sharey=True, width_ratios=(5, 1))
    # the palest fifth is left out: a single image must be told from none, which is white
    colours = ListedColormap(colormaps["YlGnBu"](np.linspace(0.2, 1.0, 256)))
    scale = LogNorm(1, max(int(counts.max()), 2))
    image = cells.imshow(
        np.ma.masked_equal(counts, 0), aspect="auto", cmap=colours, norm=scale, interpolation="nearest", origin="upper"
    )
    for client, label in np.argwhere(counts > 0) if counts.size <= MAX_WRITTEN_CELLS else ():
        ink = "white" if scale(counts[client, label]) > 0.5 else "black"
        cells.text(label, client, str(counts[client, label]), ha="center", va="center", fontsize=7, color=ink)
    cells.yaxis.set_major_locator(MaxNLocator(MAX_TICKS, integer=True))
    cells.xaxis.set_major_locator(MaxNLocator(MAX_TICKS, integer=True))
    if counts.shape[1] <= MAX_TICKS:
        names = [picture_text(name, most=18) for name in federated.dataset.class_names]
        turned = max(map(len, names)) > 3
        cells.set_xticks(range(len(names)), names, rotation=45 if turned else 0, ha="right" if turned else "center")
    cells.tick_params(labelsize=8)
    cells.set_xlabel("class")
    cells.set_ylabel("client")
    told = f"training images, {len(counts)} clients, {int((counts > 0).sum())} (client, class) pairs"
    cells.set_title(f"{picture_text(federated.dataset.name, most=40)}: {told}", fontsize=10)
    train, rows = counts.sum(axis=1), np.arange(len(counts))
    totals.barh(rows, train, color="#31688e", label="train", height=0.8)
    test = [len(client.test_index) for client in federated.clients]
    totals.barh(rows, test, left=train, color="#b5c9d9", label="test", height=0.8)
    totals.set_xlabel("images")
    totals.tick_params(axis="x", labelsize=8)
    totals.locator_params(axis="x", nbins=3)
    totals.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    totals.spines[["top", "right"]].set_visible(False)
    figure.colorbar(image, ax=totals, location="right", label="training images", fraction=0.15, format=LogFormatter())
