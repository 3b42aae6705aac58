"""Images with labels, who holds which of them, and changes of every data set after loading."""

from __future__ import annotations

import math
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
    """Labelled images.

    Attributes:
        images: ``(n, channels, height, width)``, uint8 in 0..255 or float32 in [0, 1]. Private.
        labels: ``(n,)`` int64 in 0..C-1. Private.
    """

    images: Tensor
    labels: Tensor

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
    """A whole data set before it is divided among clients.

    Attributes:
        name: registry name, for example ``fashion``.
        samples: every image, the source's training and test parts merged in this order.
        class_names: one name per class.
        n_official_train: how many of the first samples belong to the source's own training part.
        brought: in words, what was done to images so that all have one shape; empty where all are as stored.
    """

    name: str
    samples: Samples
    class_names: tuple[str, ...]
    n_official_train: int
    brought: str = ""

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
        n_train = int((index < self.n_official_train).sum())
        return replace(self, samples=self.samples.subset(index), n_official_train=n_train)

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


LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, as Pillow's conversion to grey
CHUNK = 4096
"""Images at a time, so that float copies of a large set never stand in memory at once."""

CHUNK_BYTES = 256 << 20
"""Bytes of such floats at most: fewer images at a time where they are large."""


def first_per_class(labels: np.ndarray, per_class: int | None) -> np.ndarray:
    """Return the ascending positions of the first ``per_class`` occurrences of every label; None keeps all."""
    if per_class is None:
        return np.arange(len(labels))
    kept = [np.flatnonzero(labels == label)[:per_class] for label in np.unique(labels)]
    return np.sort(np.concatenate(kept)) if kept else np.arange(0)


def keep_first_per_class(dataset: Dataset, per_class: int | None) -> Dataset:
    """Return the data set with the first ``per_class`` images of each class, or fewer, in unchanged order."""
    index = first_per_class(dataset.samples.labels.numpy(), per_class)
    return dataset if len(index) == len(dataset.samples) else dataset.only(index)


def shape_images(dataset: Dataset, channels: int | None, image_size: int | None) -> Dataset:
    """Return the data set with images of ``channels`` channels and ``image_size`` x ``image_size`` pixels.

    None leaves that property as it is. The number type of the images does not change.
    """
    images = dataset.samples.images
    _, height, width = dataset.image_shape
    same_channels = channels in (None, images.shape[1])
    same_size = image_size in (None, height) and image_size in (None, width)
    if same_channels and same_size:
        return dataset
    shape = (len(images), channels or images.shape[1], image_size or height, image_size or width)
    each = math.prod(shape[1:]) * images.element_size()
    require(
        len(images) * each,
        f"data set {dataset.name!r}: {shape[0]:,} images of {shape[1]} x {shape[2]} x {shape[3]}",
        lambda free: f"a smaller image_size, or per_class for {free // each:,} images, would fit",
        "image_size",
    )
    shaped = torch.empty(shape, dtype=images.dtype)
    chunk = max(1, min(CHUNK, CHUNK_BYTES // (4 * max(math.prod(images.shape[1:]), math.prod(shape[1:])))))
    for part, position in zip(images.split(chunk), shaped.split(chunk), strict=True):
        recoloured = part if same_channels or channels is None else _with_channels(part, channels)
        position.copy_(recoloured if same_size or image_size is None else _resized(recoloured, image_size))
    cropped = " (cropped to a square first)" if width != height else ""
    scaled = f"{len(images):,} images scaled from {width}x{height} to {image_size}x{image_size}{cropped}"
    coloured = f"{len(images):,} images made {'grey' if channels == 1 else 'colour'}"
    done = (dataset.brought, "" if same_size else scaled, "" if same_channels else coloured)
    brought = "; ".join(filter(None, done))
    return replace(dataset, samples=Samples(shaped, dataset.samples.labels), brought=brought)


def _with_channels(images: Tensor, channels: int) -> Tensor:
    """Return grey images repeated to three channels, or colour images weighted to one."""
    if channels == 3:
        return images.expand(-1, 3, -1, -1).contiguous()
    grey = torch.einsum("nchw,c->nhw", images.float(), torch.tensor(LUMA)).unsqueeze(1)
    return _as_stored(grey, images.dtype)


def _resized(images: Tensor, size: int) -> Tensor:
    """Return the largest centred square of the images, scaled bilinearly with anti-aliasing."""
    height, width = images.shape[2:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = images[:, :, top : top + side, left : left + side].float()
    scaled = functional.interpolate(square, size=(size, size), mode="bilinear", antialias=True)
    return _as_stored(scaled, images.dtype)


def _as_stored(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return float values in the number type of the data set, bytes rounded."""
    return values.round_().clamp_(0, 255).to(torch.uint8) if dtype == torch.uint8 else values.clamp_(0, 1)
