"""The private images behind targets, and the images that baselines and decoys are drawn from. For scorers alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.datasets.types import Samples
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator

ENOUGH_DECOYS = 10
"""With fewer decoys of its class than these a member is not identified: the outcome would hang on which ones they are."""

MOST_DECOYS = 100  # decoys of a class at most
MOST_VALUES = 2**25  # pixel values that a client's pool holds at most: 128 MiB of float32
Index = NDArray[np.int64]


@dataclass(frozen=True)
class Holdings:
    """All images there are, and whose they are, by client and index: the truth that inferences are scored against."""

    samples: Samples  # those of clients, and those that nobody has; no image twice
    train: Mapping[int, Index]  # each client's training images
    used: Mapping[int, Index] = field(default_factory=dict)  # those behind the upload; all of a client not there
    held_out: Mapping[int, Index] = field(default_factory=dict)  # the client's images that it did not train on
    device: torch.device = torch.device("cpu")  # where candidates are handed over

    def labels(self, client: int) -> Tensor:
        """Return the classes ``(n,)`` of a client's training images."""
        return self.samples.labels[torch.as_tensor(self.train[client])].cpu()


@dataclass(frozen=True)
class Pool:
    """Images in [0, 1] that a client's targets had nothing to do with, in two parts that share none.

    A guess made of an image that is a decoy too would sit nearer to that decoy than to the truth.
    """

    guesses: Tensor  # ``(p, c, h, w)``, p >= 1: what guesses are made of
    guess_labels: Tensor  # ``(p,)`` int64; -1 where the class is not known
    decoys: Tensor  # ``(q, c, h, w)``: the images that a true one is ranked among
    decoy_labels: Tensor  # ``(q,)`` int64

    def __post_init__(self) -> None:
        refuse_no_images("pool.guesses", self.guesses, self.guess_labels)
        refuse_no_images("pool.decoys", self.decoys, self.decoy_labels, least=0)
        if self.guesses.shape[1:] != self.decoys.shape[1:]:
            raise UserError("pool.decoys: images differ in shape from the guesses")

    @classmethod
    def divided(cls, images: Tensor, labels: Tensor, *parts: int | str) -> Pool:
        """Return a pool of images ``(n, c, h, w)``, divided by the seed ``parts``; see :func:`divide`."""
        guesses, decoys = divide(labels, *parts)
        return cls(images[guesses], labels[guesses], images[decoys], labels[decoys])

    @cached_property
    def mean(self) -> Tensor:
        """The mean of the guesses ``(c, h, w)``, float64."""
        return self.guesses.mean(dim=0, dtype=torch.float64)

    @cached_property
    def class_means(self) -> dict[int, Tensor]:
        """The mean of the guesses of each class ``(c, h, w)``, float64."""
        return {label: images.mean(dim=0, dtype=torch.float64) for label, images in self._by_class.items()}

    @cached_property
    def optimal(self) -> Tensor:
        """The image of the highest mean PSNR over the guesses ``(c, h, w)``, float64."""
        return psnr_optimal(self.guesses)

    @cached_property
    def class_optimal(self) -> dict[int, Tensor]:
        """The same over the guesses of each class."""
        return {label: psnr_optimal(images) for label, images in self._by_class.items()}

    @cached_property
    def _by_class(self) -> dict[int, Tensor]:
        return _grouped(self.guesses, self.guess_labels)

    @cached_property
    def _decoys(self) -> dict[int, Tensor]:
        return _grouped(self.decoys.double(), self.decoy_labels)

    def decoys_of(self, label: int) -> Tensor:
        """Return the decoys of a class ``(n, c, h, w)``, float64; there may be none."""
        return self._decoys.get(label, self.decoys[:0].double())


def _grouped(images: Tensor, labels: Tensor) -> dict[int, Tensor]:
    return {label: images[labels == label] for label in labels.unique().tolist()}


def refuse_no_images(name: str, images: Tensor, labels: Tensor, *, least: int = 1) -> None:
    """Check that a tensor holds images in [0, 1], with a label each."""
    if images.dim() != 4 or len(images) < least or not images.is_floating_point():
        raise UserError(f"{name}: expected float images (n >= {least}, c, h, w), got {tuple(images.shape)}")
    if not bool(((images >= 0) & (images <= 1)).all()):  # false for NaN too
        raise UserError(f"{name}: expected values in [0, 1]")
    if labels.shape != images.shape[:1]:
        raise UserError(f"{name}: expected {len(images)} labels, got shape {tuple(labels.shape)}")


def image_key(image: Tensor) -> bytes:
    """Return a key that no other image on the CPU has."""
    return image.numpy().tobytes()


def psnr_optimal(images: Tensor, shares: Tensor | None = None) -> Tensor:
    """Return the constant guess of the highest mean PSNR over some images ``(c, h, w)``, float64.

    The mean of -10 log10 MSE(g, x_i) is stationary where g is the mean of x_i weighted in proportion to 1 / MSE(g, x_i).
    Starting at the mean, weights and image are computed in turn until no pixel moves by more than 1e-4. No MSE counts as
    less than a hundredth of their mean, so that an image does not draw the guess onto itself alone. ``shares`` ``(n,)`` are
    weights of the images in that mean.
    """
    flat = images.flatten(1).double()
    current = torch.ones(len(flat), dtype=torch.float64) if shares is None else shares.double()
    lengths = torch.linalg.vector_norm(flat, dim=1).square()
    weights, guess = current, torch.zeros_like(flat[0])
    for _ in range(100):
        before, guess = guess, (weights / weights.sum()) @ flat
        if float((guess - before).abs().max()) <= 1e-4:
            break
        # |x - g|^2 multiplied out: two passes over the images a round instead of six; what cancels is far below the clamp
        errors = (lengths - 2 * (flat @ guess) + guess @ guess).clamp_min(0) / len(guess)
        weights = current / errors.clamp_min(max(float(errors.mean()) / 100, 1e-12))
    return guess.reshape(images.shape[1:])


def divide(labels: Tensor, *parts: int | str) -> tuple[Tensor, Tensor]:
    """Return the positions that make guesses and those that are decoys, drawn class by class by the seed ``parts``.

    Of the n images of a class ten are decoys while one is left to make guesses of; half of them where that is more, and a
    hundred at most. Images of unknown class are no decoys.
    """
    order = torch.randperm(len(labels), generator=generator(*parts))
    guesses, decoys = [order[:0]], [order[:0]]
    for label in labels.unique().tolist():
        of_class = order[labels[order] == label]
        count = min(MOST_DECOYS, max(len(of_class) // 2, min(ENOUGH_DECOYS, len(of_class) - 1))) if label >= 0 else 0
        decoys.append(of_class[:count])
        guesses.append(of_class[count:])
    return torch.cat(guesses).sort().values, torch.cat(decoys).sort().values


@dataclass(frozen=True)
class Truth:
    """The private images behind one target, and images that it had nothing to do with.

    Members are those that went into the target: one for a representation, those of the class for a prototype, all the
    client's images for an entangled representation, those of the batch for a gradient.
    """

    members: Tensor  # ``(m, c, h, w)`` in [0, 1]. Private
    weights: Tensor  # ``(m,)`` >= 0, summing to one: each member's share in the upload
    labels: Tensor  # ``(m,)`` int64 classes of the members. Private
    pool: Pool  # auxiliary images, drawn by seed: baselines and decoys are made of these alone
    feature: Tensor | None = None  # ``(d,)`` the true representation that linear algebra tries to recover

    def __post_init__(self) -> None:
        refuse_no_images("truth.members", self.members, self.labels)
        if self.members.shape[1:] != self.pool.guesses.shape[1:]:
            raise UserError("pool.guesses: images differ in shape from the members")
        sums_to_one = abs(float(self.weights.double().sum()) - 1) <= 1e-4
        if self.weights.shape != self.labels.shape or not bool((self.weights >= 0).all()) or not sums_to_one:
            raise UserError(f"truth.weights: expected {len(self.labels)} weights >= 0 with a sum of 1")

    @classmethod
    def equal(cls, members: Tensor, labels: Tensor, pool: Pool) -> Truth:
        """Return a truth whose members all have the weight 1 / m."""
        weights = torch.full((len(members),), 1 / max(len(members), 1), dtype=torch.float64)
        return cls(members, weights, labels, pool)

    @property
    def n_c(self) -> int:
        """Number of images that went into the target, m."""
        return len(self.labels)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        channels, height, width = self.members.shape[1:]
        return channels, height, width

    def mean_image(self) -> Tensor:
        """Return the weighted mean of the members ``(c, h, w)``, float64."""
        return torch.einsum("m,mchw->chw", self.weights.double(), self.members.double())

    def label_weights(self) -> dict[int, float]:
        """Return the share of each class among the members: the label encoding of an entangled upload."""
        shares: dict[int, float] = {}
        for label, weight in zip(self.labels.tolist(), self.weights.tolist(), strict=True):
            shares[label] = shares.get(label, 0.0) + weight
        return dict(sorted(shares.items()))
