"""Images with labels, and who holds which of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


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
        brought: in words, what was done to how many images so that all have one shape; empty where all are as stored.
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
