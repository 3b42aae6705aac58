"""Strangers: images that a client's targets had nothing to do with. Some make guesses, the others are decoys.

A guess made of an image that serves as a decoy as well would sit nearer to that decoy than to the truth, and a decoy of
another class is told apart by the class alone. So the two parts share no image, and decoys of every class come first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator

ENOUGH_DECOYS = 10
"""With fewer decoys of its class than these a member is not identified: the outcome would hang on which ones they are."""

MOST_DECOYS = 100
"""Decoys of a class at most."""

MOST_VALUES = 2**25
"""Pixel values that a client's pool holds at most: 128 MiB of float32."""


@dataclass(frozen=True)
class Pool:
    """Images in [0, 1] that a client's targets had nothing to do with, in two parts that share none.

    Attributes:
        guesses: ``(p, c, h, w)``, p >= 1: what guesses and the comparison sets of T2 are made of.
        guess_labels: ``(p,)`` int64; -1 where the class is not known.
        decoys: ``(q, c, h, w)``: what a true image is told apart from.
        decoy_labels: ``(q,)`` int64.
        alike: whether chance alone decided which images of a class the client holds and which are decoys, so that without
            the upload any of them is as likely as another to be nearest to a guess. Known of divisions by class; not of
            clients with data of their own.
    """

    guesses: Tensor
    guess_labels: Tensor
    decoys: Tensor
    decoy_labels: Tensor
    alike: bool = False

    def __post_init__(self) -> None:
        for name, labels, least in (("guesses", "guess_labels", 1), ("decoys", "decoy_labels", 0)):
            images, numbers = getattr(self, name), getattr(self, labels)
            refuse_no_images(f"pool.{name}", images, least)
            if numbers.shape != images.shape[:1]:
                raise UserError(f"pool.{labels}: expected {len(images)} labels, got shape {tuple(numbers.shape)}")
        if self.guesses.shape[1:] != self.decoys.shape[1:]:
            raise UserError(
                f"pool.decoys: images {tuple(self.decoys.shape[1:])} differ in shape from the guesses "
                f"{tuple(self.guesses.shape[1:])}"
            )

    @classmethod
    def divided(cls, images: Tensor, labels: Tensor, *parts: int | str, alike: bool = False) -> Pool:
        """Return a pool of images ``(n, c, h, w)``, divided by the seed ``parts``; see :func:`divide`."""
        guesses, decoys = divide(labels, *parts)
        return cls(images[guesses], labels[guesses], images[decoys], labels[decoys], alike)

    @cached_property
    def mean(self) -> Tensor:
        """The mean of the guesses ``(c, h, w)``, float64."""
        return self.guesses.mean(dim=0, dtype=torch.float64)

    @cached_property
    def class_means(self) -> dict[int, Tensor]:
        """The mean of the guesses of each class ``(c, h, w)``, float64."""
        return {
            label: self.guesses[self.guess_labels == label].mean(dim=0, dtype=torch.float64)
            for label in self.guess_labels.unique().tolist()
        }

    @cached_property
    def _decoys(self) -> dict[int, Tensor]:
        return {
            label: self.decoys[self.decoy_labels == label].double() for label in self.decoy_labels.unique().tolist()
        }

    def decoys_of(self, label: int) -> Tensor:
        """Return the decoys of a class ``(n, c, h, w)``, float64; there may be none."""
        return self._decoys.get(label, self.decoys[:0].double())

    @cached_property
    def optimal(self) -> Tensor:
        """The image of the highest mean PSNR over the guesses ``(c, h, w)``, float64."""
        return psnr_optimal(self.guesses)

    @cached_property
    def class_optimal(self) -> dict[int, Tensor]:
        """The same over the guesses of each class."""
        return {
            label: psnr_optimal(self.guesses[self.guess_labels == label])
            for label in self.guess_labels.unique().tolist()
        }

    def to_cpu(self) -> Pool:
        """Return the same on the CPU."""
        held = (self.guesses, self.guess_labels, self.decoys, self.decoy_labels)
        if all(value.device.type == "cpu" for value in held):
            return self
        guesses, guess_labels, decoys, decoy_labels = (value.cpu() for value in held)
        return Pool(guesses, guess_labels, decoys, decoy_labels, self.alike)


def refuse_no_images(name: str, images: Tensor, least: int = 1) -> None:
    """Check that a tensor holds images in [0, 1].

    Raises:
        UserError: naming it.
    """
    if images.dim() != 4 or len(images) < least or not images.is_floating_point():
        raise UserError(f"{name}: expected float images (n >= {least}, c, h, w), got {tuple(images.shape)}")
    # The comparison is false for NaN too.
    if not bool(((images >= 0) & (images <= 1)).all()):
        raise UserError(f"{name}: expected values in [0, 1]")


def psnr_optimal(images: Tensor, shares: Tensor | None = None, *, most: int = 100) -> Tensor:
    """Return the constant guess of the highest mean PSNR over some images ``(c, h, w)``, float64.

    The mean of -10 log10 MSE(g, x_i) is stationary where g is the mean of x_i weighted in proportion to 1 / MSE(g, x_i).
    Starting at the mean, weights and image are computed in turn until no pixel moves by more than 1e-4. No MSE counts as
    less than a hundredth of their mean, so that an image does not draw the guess onto itself alone.

    Args:
        images: ``(n, c, h, w)`` in [0, 1], n >= 1.
        shares: ``(n,)`` weights of the images in that mean; equal ones where None.
        most: rounds at most.
    """
    flat = images.flatten(1).double()
    own = torch.ones(len(flat), dtype=torch.float64) if shares is None else shares.double()
    lengths = torch.linalg.vector_norm(flat, dim=1).square()
    weights, guess = own, torch.zeros_like(flat[0])
    for _ in range(most):
        before, guess = guess, (weights / weights.sum()) @ flat
        if float((guess - before).abs().max()) <= 1e-4:
            break
        # |x - g|^2 multiplied out: two passes over the images a round instead of six; what cancels is far below the clamp
        errors = (lengths - 2 * (flat @ guess) + guess @ guess).clamp_min(0) / len(guess)
        weights = own / errors.clamp_min(max(float(errors.mean()) / 100, 1e-12))
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
