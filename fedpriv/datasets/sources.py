"""Data sets that need no download (a part of Fashion-MNIST, digits, points of the plane), and torchvision's."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedpriv.datasets import SourceOptions
from fedpriv.datasets.types import Dataset, Samples
from fedpriv.util.errors import UserError
from fedpriv.util.escape import one_line
from fedpriv.util.foreign import PACKED, check_file, entries
from fedpriv.util.seeds import generator

FASHION = Path(__file__).parent / "embedded" / "fashion.npz"
FASHION_CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
PLANE_PER_CLASS = 125
PLANE_CORNER = 0.4  # distance of the class means from both axes, in standard deviations of a class
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
    return Dataset("fashion", Samples(images, labels), FASHION_CLASSES)


def load_digits(options: SourceOptions) -> Dataset:
    """Load 1,797 real 8x8 grey images of handwritten digits that are part of scikit-learn, as float32 in [0, 1].

    Source: UCI optical recognition of handwritten digits (Alpaydin and Kaynak, 1998); it has no test part of its own.
    """
    package = find_spec("sklearn")  # importing it takes a second
    assert package is not None
    folder = Path(package.submodule_search_locations[0]) / "datasets" / "data"  # type: ignore[index]
    table = np.loadtxt(folder / "digits.csv.gz", delimiter=",")
    pixels, classes = table[:, :-1], table[:, -1].astype(np.int64)
    images = torch.from_numpy(pixels.reshape(-1, 1, 8, 8)).float().div_(16)
    return Dataset("digits", Samples(images, torch.from_numpy(classes).long()), tuple(map(str, range(10))))


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
    return Dataset("plane", Samples(images, labels), ("NE", "NW", "SW", "SE"))


def load_cifar10(options: SourceOptions) -> Dataset:
    """Load CIFAR-10 (Krizhevsky, 2009): 60,000 colour images of 32x32 pixels, 10 classes."""
    return _load("cifar10", "CIFAR10", "cifar-10-batches-py", options)


def load_cifar100(options: SourceOptions) -> Dataset:
    """Load CIFAR-100 (Krizhevsky, 2009) with its 100 fine labels: 60,000 colour images of 32x32 pixels."""
    return _load("cifar100", "CIFAR100", "cifar-100-python", options)


def load_fashion_mnist(options: SourceOptions) -> Dataset:
    """Load Fashion-MNIST (Xiao et al., 2017): 70,000 grey images of 28x28 pixels, 10 classes."""
    return _load("fashion-mnist", "FashionMNIST", "FashionMNIST/raw", options)


def load_mnist(options: SourceOptions) -> Dataset:
    """Load MNIST (LeCun et al., 1998): 70,000 grey images of 28x28 pixels, 10 classes."""
    return _load("mnist", "MNIST", "MNIST/raw", options)


def _load(name: str, reader: str, inside: str, options: SourceOptions) -> Dataset:
    """Read both parts of a data set, whose files lie ``inside`` torchvision's root, training part first."""
    given = options.folder(name, f"{inside}/ (download puts it there)")
    parts = Path(inside).parts
    depths = (n for n in range(len(parts), 0, -1) if given.absolute().parts[-n:] == parts[:n])
    depth = next(depths, 0)  # the folder may be the root, or lie between it and the files
    root = given.absolute().parents[depth - 1] if depth else given
    position = root / inside
    if not options.download and not os.path.isdir(position):
        text = f"{name} not found: looked for {position}; download fetches it into {root}"
        raise UserError(text, keys=("data_dir",))
    for path in entries(position) if os.path.isdir(position) else ():
        if not os.path.isdir(path):
            check_file(path, PACKED)
    train, test = (_read_part(name, reader, root, position, part, options.download) for part in (True, False))
    for part, word in ((train, "training"), (test, "test")):
        if len(part.data) != len(part.targets):
            text = f"{len(part.data)} {word} images but {len(part.targets)} labels"
            raise UserError(f"{name} in {position} is damaged: {text}")
    class_names = tuple(str(label) for label in train.classes)
    images = np.concatenate([np.asarray(part.data) for part in (train, test)])
    labels = np.concatenate([np.asarray(part.targets, dtype=np.int64) for part in (train, test)])
    if len(labels) == 0 or labels.min() < 0 or labels.max() >= len(class_names):
        raise UserError(f"{name} in {position} is damaged: labels are not in 0..{len(class_names) - 1}")
    # torchvision keeps colour as (n, h, w, c) and grey as (n, h, w)
    channels_first = images.transpose(0, 3, 1, 2) if images.ndim == 4 else images[:, None]
    pixels = torch.from_numpy(np.ascontiguousarray(channels_first))
    return Dataset(name, Samples(pixels, torch.from_numpy(labels)), class_names)


def _read_part(name: str, reader: str, root: Path, path: Path, train: bool, download: bool) -> Any:
    from torchvision import datasets

    try:
        return getattr(datasets, reader)(str(root), train=train, download=download)
    except Exception as error:  # readers raise anything from URLError to UnpicklingError
        reason = one_line(f"{type(error).__name__}: {error}").removesuffix(":")
        if download:
            raise UserError(f"{name} could not be downloaded into {path} or read there: {reason}") from error
        advice = "download fetches what is missing; remove files that are damaged first"
        raise UserError(f"{name} in {path} is incomplete or damaged ({reason}); {advice}") from error
