"""The clients' holdings: counts, a table and a picture, to be looked at before training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.datasets.types import FederatedData
from fedpriv.util.errors import UserError
from fedpriv.util.escape import any_letters, picture_text
from fedpriv.util.files import placing

MAX_WRITTEN_CELLS = 400
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
    return [
        {
            "client": number,
            "train": len(client.train_index),
            "test": len(client.test_index),
            "classes": int((counts > 0).sum()),
            "largest_class": names[int(counts.argmax())],
            "largest_share": float(counts.max() / max(counts.sum(), 1)),
            "counts": {names[label]: int(counts[label]) for label in np.flatnonzero(counts)},
        }
        for number, (client, counts) in enumerate(zip(federated.clients, class_counts(federated), strict=True))
    ]


def draw_holdings(federated: FederatedData, path: Path) -> None:
    """Draw an ``.svg`` or ``.png`` of clients by classes, coloured by the logarithm of the number of training images.

    Cells of classes that a client lacks stay white. The same division gives the same file.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter, MaxNLocator

    path = Path(path)
    kind = path.suffix.lower().lstrip(".")
    if kind not in ("svg", "png"):
        raise UserError(f"cannot draw {path}: the name must end in .svg or .png")
    counts = class_counts(federated)
    height, width = np.clip((1.6, 2.5) + np.array((0.3, 0.42)) * counts.shape, (3.2, 6.0), (12.0, 18.0))
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    cells = figure.subplots()
    scale = LogNorm(0.3, max(int(counts.max()), 2))  # a single image must not be as pale as none
    image = cells.imshow(np.ma.masked_equal(counts, 0), aspect="auto", cmap="YlGnBu", norm=scale)
    for client, label in np.argwhere(counts > 0) if counts.size <= MAX_WRITTEN_CELLS else ():
        ink = "white" if scale(counts[client, label]) > 0.5 else "black"
        cells.text(label, client, str(counts[client, label]), ha="center", va="center", fontsize=7, color=ink)
    for axis in (cells.xaxis, cells.yaxis):
        axis.set_major_locator(MaxNLocator(MAX_TICKS, integer=True))
    if counts.shape[1] <= MAX_TICKS:
        names = [picture_text(name, most=18) for name in federated.dataset.class_names]
        cells.set_xticks(range(len(names)), names, rotation=45, ha="right")
    cells.set_xlabel("class")
    cells.set_ylabel("client")
    pairs = f"{len(counts)} clients, {int((counts > 0).sum())} (client, class) pairs"
    cells.set_title(f"{picture_text(federated.dataset.name, most=40)}: training images, {pairs}", fontsize=10)
    figure.colorbar(image, label="training images", format=LogFormatter())
    metadata = {"Date": None} if kind == "svg" else None  # a date would make every file different
    try:
        with matplotlib.rc_context({"svg.hashsalt": "fedpriv"}), any_letters(), placing([path]) as temporary:
            figure.savefig(temporary[path], format=kind, dpi=150, metadata=metadata)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
