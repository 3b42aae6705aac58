"""The data sets that need no download: a part of Fashion-MNIST, scikit-learn's digits, and points of the plane."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from fedpriv.datasets import SourceOptions
from fedpriv.datasets.types import Dataset, Samples
from fedpriv.util.seeds import generator

FASHION = Path(__file__).parents[1] / "embedded" / "fashion.npz"
FASHION_CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)

PLANE_PER_CLASS = 125
"""Samples of a class; 4 x 125 = 500 are the paper's 300 training and 200 test samples."""

PLANE_CORNER = 0.4
"""Distance of the class means from both axes, in standard deviations of a class."""

PLANE_REACH = 4.5
"""The square of images goes from minus to plus so many standard deviations; what lies outside is moved to its edge."""


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


def load_plane(options: SourceOptions) -> Dataset:
    """Draw 500 points of the plane, 125 of each of four classes, as images of 1x1x2 numbers in [0, 1].

    FedRE (figure 2, table 8) has "300 training and 200 test two-dimensional samples distributed across two clients", from
    which FedGH uploads 4 prototypes. It leaves unsaid what they are drawn from, how many classes there are, and who holds
    which. Here a class is a Gaussian of covariance I around a corner of the square (+-0.4, +-0.4), in the order (+, +),
    (-, +), (-, -), (+, -). Two clients with two classes each (``pathological``) upload 4 prototypes, and the best that
    anybody can do on a client's own two classes is 65.5 %, Phi(0.4), a little above the paper's 60.5 to 63.5 %. A train
    fraction of 0.6 and no strangers leave them 300 training and 200 test samples.

    Args:
        options: of which ``seed`` draws the points. ``data_dir`` and ``download`` are not needed.
    """
    rng = generator(options.seed, "plane")
    corners = PLANE_CORNER * torch.tensor([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])
    labels = torch.arange(len(corners)).repeat(PLANE_PER_CLASS)
    points = corners[labels] + torch.randn(len(labels), 2, generator=rng)
    images = (points / (2 * PLANE_REACH) + 0.5).clamp(0, 1).view(-1, 1, 1, 2)
    return Dataset("plane", Samples(images, labels), ("NE", "NW", "SW", "SE"), len(labels))
