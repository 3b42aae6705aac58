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
PLANE_CORNER = 0.4
"""Distance of the class means from both axes, in standard deviations of a class."""

PLANE_REACH = 4.5
"""The square of images goes from minus to plus so many standard deviations; points outside are moved to its edge."""


def load_fashion(options: SourceOptions) -> Dataset:
    """Load 2,000 grey images of clothes of 28x28 pixels: the first 1,000 of each of Fashion-MNIST's two files.

    Source: Xiao, Rasul and Vollgraf, 2017; MIT licence, Copyright (c) 2017 Zalando SE, whose text lies beside the images.
    Every class has 185 to 214 images, stored as bytes.
    """
    with np.load(FASHION) as stored:
        images = torch.from_numpy(stored["images"]).unsqueeze(1)
        labels = torch.from_numpy(stored["labels"]).long()
    return Dataset("fashion", Samples(images, labels), FASHION_CLASSES, 1000)


def load_digits(options: SourceOptions) -> Dataset:
    """Load 1,797 real 8x8 grey images of handwritten digits that are part of scikit-learn, as float32 in [0, 1].

    Source: UCI optical recognition of handwritten digits (Alpaydin and Kaynak, 1998); it has no test part of its own.
    """
    for position in getattr(find_spec("sklearn"), "submodule_search_locations", None) or ():
        file = Path(position) / "datasets" / "data" / "digits.csv.gz"  # importing scikit-learn takes a second
        if file.is_file():
            table = np.loadtxt(file, delimiter=",")
            pixels, classes = table[:, :-1], table[:, -1].astype(np.int64)
            break
    else:
        from sklearn.datasets import load_digits as read

        pixels, classes = read(return_X_y=True)
    images = torch.from_numpy(pixels.reshape(-1, 1, 8, 8)).float().div_(16)
    return Dataset("digits", Samples(images, torch.from_numpy(classes).long()), tuple(map(str, range(10))), len(images))


def load_plane(options: SourceOptions) -> Dataset:
    """Draw 500 points of the plane, 125 of each of four classes, as images of 1x1x2 numbers in [0, 1].

    For FedRE's figure 2 and table 8, which leave their distribution open. A class is a Gaussian of covariance I around a
    corner of the square (+-0.4, +-0.4), in the order (+, +), (-, +), (-, -), (+, -). The best accuracy on a client's own two
    neighbouring classes is Phi(0.4), 65.5 %. ``options.seed`` draws the points.
    """
    rng = generator(options.seed, "plane")
    corners = PLANE_CORNER * torch.tensor([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])
    labels = torch.arange(len(corners)).repeat(PLANE_PER_CLASS)
    points = corners[labels] + torch.randn(len(labels), 2, generator=rng)
    images = (points / (2 * PLANE_REACH) + 0.5).clamp(0, 1).view(-1, 1, 1, 2)
    return Dataset("plane", Samples(images, labels), ("NE", "NW", "SW", "SE"), len(labels))
