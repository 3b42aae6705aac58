"""The data sets that need no download: a part of Fashion-MNIST, and scikit-learn's digits."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from fedpriv.datasets.sources.options import SourceOptions
from fedpriv.datasets.types import Dataset, Samples

FASHION = Path(__file__).parents[1] / "embedded" / "fashion.npz"
FASHION_CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


def load_fashion(options: SourceOptions) -> Dataset:
    """Load 2,000 grey images of clothes of 28x28 pixels: the first 1,000 of each of Fashion-MNIST's two files.

    The source is Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017; MIT licence, Copyright (c) 2017 Zalando SE, whose text lies
    beside the images). Every class has 185 to 214 images, stored as bytes. ``data_dir`` and ``download`` are not needed.
    """
    with np.load(FASHION) as stored:
        images = torch.from_numpy(stored["images"]).unsqueeze(1)
        labels = torch.from_numpy(stored["labels"]).long()
    return Dataset("fashion", Samples(images, labels), FASHION_CLASSES, 1000)


def load_digits(options: SourceOptions) -> Dataset:
    """Load 1,797 real 8x8 grey images of handwritten digits that are part of scikit-learn.

    The source is the UCI optical recognition of handwritten digits data (Alpaydin and Kaynak, 1998); pixels are counts
    0..16, stored here as float32 in [0, 1]. It has no test part of its own. ``data_dir`` and ``download`` are not
    needed.
    """
    pixels, drawn = _digits()
    images = torch.from_numpy(pixels.reshape(-1, 1, 8, 8)).float().div_(16)
    labels = torch.from_numpy(drawn).long()
    return Dataset("digits", Samples(images, labels), tuple(str(digit) for digit in range(10)), len(labels))


def _digits() -> tuple[np.ndarray, np.ndarray]:
    """Return pixels (n, 64) and labels (n,) as scikit-learn does, where its file lies as ever without importing it.

    The import takes as long as a small federation does to train.
    """
    for place in getattr(find_spec("sklearn"), "submodule_search_locations", None) or ():
        file = Path(place) / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            table = np.loadtxt(file, delimiter=",")
            return table[:, :-1], table[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits as read

    bunch = read()
    return bunch.data, bunch.target
