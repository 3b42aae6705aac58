"""Images with labels, who holds which of them, and changes of every data set after loading."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedpriv.util.compute import require


def as_unit(images: Tensor) -> Tensor:
    """Return images as float32 in [0, 1]; bytes are divided by 255, floats are taken to be in [0, 1] already."""
    return images.float().div_(255) if images.dtype == torch.uint8 else images


@dataclass(frozen=True)
class Samples:
    """Labelled images."""

    images: Tensor  # ``(n, channels, height, width)``, uint8 in 0..255 or float32 in [0, 1]. Private
    labels: Tensor  # ``(n,)`` int64 in 0..C-1. Private

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise ValueError(f"{len(self.images)} images but {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images ``(b, c, h, w)`` in [0, 1] and the labels ``(b,)`` at ``index`` ``(b,)``."""
        return as_unit(self.images[index]), self.labels[index]

    def subset(self, index: Tensor | np.ndarray) -> Samples:
        """Return the samples at ``index`` as a copy."""
        chosen = torch.as_tensor(index)
        return Samples(self.images[chosen], self.labels[chosen])

    def to(self, device: torch.device) -> Samples:
        """Return the samples on ``device``."""
        return Samples(self.images.to(device), self.labels.to(device))


@dataclass(frozen=True)
class Dataset:
    """A whole data set before it is divided among clients."""

    name: str  # registry name, for example ``fashion``
    samples: Samples  # every image, the source's training and test parts merged in this order
    class_names: tuple[str, ...]
    brought: str = ""  # in words, what was done to images so that all have one shape; empty where all are as stored

    @property
    def n_classes(self) -> int:
        """Number of classes C."""
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        channels, height, width = self.samples.images.shape[1:]
        return channels, height, width

    def only(self, index: np.ndarray) -> Dataset:
        """Return the data set with the images at ascending positions alone."""
        return replace(self, samples=self.samples.subset(index))

    def without(self, index: np.ndarray) -> Dataset:
        """Return the data set without the images at some positions, in unchanged order."""
        return self.only(np.setdiff1d(np.arange(len(self.samples)), index))


@dataclass(frozen=True)
class ClientData:
    """One client's share. Indices point into ``Dataset.samples``."""

    train_index: np.ndarray
    test_index: np.ndarray


@dataclass(frozen=True)
class Auxiliary:
    """Images of the clients' domain that no client holds."""

    attacker: Samples  # those that whoever attacks owns, as float in [0, 1]
    others: Samples  # those that it does not: baselines and decoys are made of them


@dataclass(frozen=True)
class FederatedData:
    """A data set and its division among clients."""

    dataset: Dataset  # what is divided
    clients: tuple[ClientData, ...]  # who holds what of it
    auxiliary: Auxiliary | None = None  # images that were set aside before, or None

    def train(self, client: int) -> Samples:
        """Return the training samples of a client."""
        return self.dataset.samples.subset(self.clients[client].train_index)

    def test(self, client: int) -> Samples:
        """Return the test samples of a client."""
        return self.dataset.samples.subset(self.clients[client].test_index)


CHUNK = 4096  # images at a time, so that float copies of a large set never stand in memory at once
CHUNK_BYTES = 256 << 20  # bytes of such floats at most: fewer images at a time where they are large


def first_per_class(labels: np.ndarray, per_class: int | None) -> np.ndarray:
    """Return the ascending positions of the first ``per_class`` occurrences of every label; None keeps all."""
    if per_class is None:
        return np.arange(len(labels))
    kept = [np.flatnonzero(labels == label)[:per_class] for label in np.unique(labels)]
    return np.sort(np.concatenate(kept)) if kept else np.arange(0)


def resized(dataset: Dataset, side: int | None) -> Dataset:
    """Return the data set with square images: the largest centred square of each, scaled bilinearly with anti-aliasing.

    None leaves images as they are. Their number type does not change.
    """
    images = dataset.samples.images
    channels, height, width = dataset.image_shape
    if side is None or height == width == side:
        return dataset
    each = channels * side**2 * images.element_size()
    require(
        len(images) * each,
        f"data set {dataset.name!r}: {len(images):,} images of {channels} x {side} x {side}",
        lambda free: f"a smaller image_size, or per_class for {free // each:,} images, would fit",
        "image_size",
    )
    shaped = torch.empty((len(images), channels, side, side), dtype=images.dtype)
    chunk = max(1, min(CHUNK, CHUNK_BYTES // (4 * channels * max(height * width, side**2))))
    square = min(height, width)
    top, left = (height - square) // 2, (width - square) // 2
    for part, place in zip(images.split(chunk), shaped.split(chunk), strict=True):
        cut = part[:, :, top : top + square, left : left + square].float()
        scaled = functional.interpolate(cut, size=(side, side), mode="bilinear", antialias=True)
        place.copy_(scaled.round_().clamp_(0, 255) if images.dtype == torch.uint8 else scaled.clamp_(0, 1))
    cropped = " (cropped to a square first)" if width != height else ""
    done = f"{len(images):,} images scaled from {width}x{height} to {side}x{side}{cropped}"
    brought = "; ".join(filter(None, (dataset.brought, done)))
    return replace(dataset, samples=Samples(shaped, dataset.samples.labels), brought=brought)
