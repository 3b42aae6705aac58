"""Pixels that a learned denoiser holds back: what it would take off an image as noise is penalised.

``weight * ||x - D(x)||^2 / s^2`` is added, per pixel, with D a denoiser of noise s that learned on the attacker's own
images, and its derivative taken as if D(x) stood still: each step moves the image towards what D makes of it (Romano, Elad
and Milanfar, "The little engine that could: regularization by denoising", SIAM J. Imaging Sci. 2017). Of 1,000 images a
network learns what small neighbourhoods look like, at which total variation only guesses.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.priors.denoiser import Denoiser, DenoiserTraining, train_denoiser
from fedpriv.attacks.priors.variation import total_variation
from fedpriv.attacks.trained import Same
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed

LEAST_IMAGES = 16
"""Images of its own below which an attacker has nothing to train on."""


def own_denoiser(attack: str, problem: AttackProblem, training: DenoiserTraining, search: int) -> Denoiser:
    """Return the denoiser of a run, trained once on the attacker's own images for all that ask.

    Args:
        attack: that asks.
        problem: whose images.
        training: of the denoiser.
        search: iterations of the search that it holds back; it is trained for as many steps at most, so that a small budget
            does not go to training alone.

    Raises:
        UserError: where the attacker has too few.
    """
    own = problem.knowledge.public_images
    if own is None or len(own) < LEAST_IMAGES:
        raise UserError(
            f"attack {attack!r} got {0 if own is None else len(own)} images to train on; expected at least "
            f"{LEAST_IMAGES} (train the run with {argument('strangers', 0.5)}, or name a larger foreign data set)"
        )
    seed = derive_seed(problem.seed, "denoiser")
    training = replace(training, iterations=min(training.iterations, search))

    def train() -> Denoiser:
        return train_denoiser(own.to(problem.device), training, seed)

    return problem.trained.get(("denoiser", training, seed, Same(own), problem.device), train)


def strangeness(images: Tensor, denoiser: Callable[[Tensor], Tensor], noise: float) -> Tensor:
    """Return the mean of ``(x - D(x))^2 / noise^2`` of each image ``(N, c, h, w)``: ``(N,)``; D(x) has no derivative."""
    with torch.no_grad():
        cleaner = denoiser(images)
    return (images - cleaner).square().flatten(1).mean(1) / noise**2


@dataclass(frozen=True)
class LearnedSettings:
    """Weights of the penalties that hold pixels back.

    Attributes:
        weight: of what the denoiser changes, squared, in units of its noise.
        total_variation: weight of :func:`fedpriv.attacks.priors.variation.total_variation` beside it.
    """

    weight: Annotated[float, Ge(0)] = 0.006
    total_variation: Annotated[float, Ge(0)] = 0.01


class LearnedImages:
    """M images in each of N rows: a prior for :func:`fedpriv.attacks.optim.fitting.fit`.

    A row is one picture ``(M * c, h, w)``, its images one after the other along the channels.

    Args:
        start: ``(N, M, c, h, w)`` images to begin with.
        denoiser: of images ``(n, c, h, w)``.
        noise: standard deviation of the noise that it takes off.
        settings: what holds pixels back.
    """

    def __init__(
        self, start: Tensor, denoiser: Callable[[Tensor], Tensor], noise: float, settings: LearnedSettings
    ) -> None:
        self._count, self._denoiser, self._noise, self._settings = start.shape[1], denoiser, noise, settings
        self.parameters = [start.flatten(1, 2).clone().requires_grad_()]

    def prepare(self, progress: float) -> Hashable:
        """Draw nothing; all iterations are alike."""
        return 0

    def shown(self, moving: Tensor) -> Tensor:
        """Return the pictures ``(N, M * c, h, w)``: there is no noise."""
        return self.parameters[0]

    def clean(self) -> Tensor:
        """Return the pictures ``(N, M * c, h, w)``."""
        return self.parameters[0]

    def penalty(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return the weighted strangeness and total variation of each picture, the mean over its images: ``(N,)``."""
        flat, settings = images.reshape(-1, images.shape[1] // self._count, *images.shape[2:]), self._settings
        found = settings.weight * strangeness(flat, self._denoiser, self._noise)
        found = found + total_variation(flat, 1.0, settings.total_variation)
        return found.view(len(images), self._count).mean(1)

    def project(self) -> None:
        """Clamp every pixel to [0, 1]."""
        with torch.no_grad():
            self.parameters[0].clamp_(0, 1)

    def compile(self) -> None:
        """Leave everything as it is: the denoiser is small."""

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only, ``rows`` being int64 positions on the CPU."""
        there = rows.to(self.parameters[0].device)
        self.parameters = [self.parameters[0].detach()[there].requires_grad_()]
