"""Points of the plane in four overlapping classes: the toy experiment of FedRE."""

from __future__ import annotations

import torch

from fedpriv.datasets.sources.options import SourceOptions
from fedpriv.datasets.types import Dataset, Samples
from fedpriv.util.seeds import generator

PER_CLASS = 125
"""Samples of a class; 4 x 125 = 500 are the paper's 300 training and 200 test samples."""

CORNER = 0.4
"""Distance of the class means from both axes, in standard deviations of a class."""

REACH = 4.5
"""The square of images goes from minus to plus so many standard deviations; what lies outside is moved to its edge."""


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
    corners = CORNER * torch.tensor([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])
    labels = torch.arange(len(corners)).repeat(PER_CLASS)
    points = corners[labels] + torch.randn(len(labels), 2, generator=rng)
    images = (points / (2 * REACH) + 0.5).clamp(0, 1).view(-1, 1, 1, 2)
    return Dataset("plane", Samples(images, labels), ("NE", "NW", "SW", "SE"), len(labels))
