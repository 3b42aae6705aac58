"""A small network that takes noise off images, trained on the attacker's own: what it changes of an image is no image's.

Three resolutions, joined by sums: convolutions of 3 x 3, halved by stride and doubled by repeating. It gives the noise,
which is taken from the image, in units of its standard deviation. There is one level of noise, so it need not be told.


Pixels that a learned denoiser holds back: what it would take off an image as noise is penalised.

``weight * ||x - D(x)||^2 / s^2`` is added, per pixel, with D a denoiser of noise s that learned on the attacker's own
images, and its derivative taken as if D(x) stood still: each step moves the image towards what D makes of it (Romano, Elad
and Milanfar, "The little engine that could: regularization by denoising", SIAM J. Imaging Sci. 2017). Of 1,000 images a
network learns what small neighbourhoods look like, at which total variation only guesses.

"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.priors.pixels import total_variation
from fedpriv.attacks.search.fit import Adam
from fedpriv.attacks.trained import Same
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed, generator, global_seed


@dataclass(frozen=True)
class DenoiserTraining:
    """The training of a denoiser: Adam on the mean squared error of what it takes for noise.

    Attributes:
        noise: standard deviation of the noise, in pixel values of [0, 1].
        iterations: steps.
        width: channels of the finest maps; coarser ones have two and four times as many.
        batch_size: images a step, half of them mirrored.
        learning_rate: first step size, which falls to zero along half a cosine.
    """

    noise: Annotated[float, Gt(0)] = 0.03
    iterations: Annotated[int, Ge(1)] = 200
    width: Annotated[int, Ge(1)] = 24
    batch_size: Annotated[int, Ge(2)] = 16
    learning_rate: Annotated[float, Gt(0)] = 2e-3


class Denoiser(nn.Module):
    """The network; images ``(n, c, h, w)`` in, as many out. Starts as the identity.

    Args:
        channels: of images.
        width: of the finest maps.
        noise: standard deviation of the noise.
    """

    def __init__(self, channels: int, width: int, noise: float) -> None:
        super().__init__()
        self.level = noise

        def convolution(before: int, after: int, stride: int = 1) -> nn.Conv2d:
            return nn.Conv2d(before, after, 3, stride=stride, padding=1)

        self.fine = nn.Sequential(convolution(channels, width), nn.ReLU(), convolution(width, width), nn.ReLU())
        self.halve = nn.Sequential(convolution(width, 2 * width, 2), nn.ReLU(), convolution(2 * width, 2 * width))
        self.quarter = nn.Sequential(convolution(2 * width, 4 * width, 2), nn.ReLU(), convolution(4 * width, 4 * width))
        self.narrow = convolution(4 * width, 2 * width)
        self.mix = convolution(2 * width, 2 * width)
        self.widen = convolution(2 * width, width)
        self.noise = convolution(width, channels)
        for value in self.noise.parameters():
            nn.init.zeros_(value)

    def forward(self, images: Tensor) -> Tensor:
        """Return the images with less noise."""
        fine = self.fine(4 * (images - 0.5))
        middle = self.halve(fine).relu()
        coarse = self.narrow(self.quarter(middle).relu()).relu()
        middle = self.mix(_as_large(coarse, middle) + middle).relu()
        fine = (_as_large(self.widen(middle), fine) + fine).relu()
        found: Tensor = images - self.level * self.noise(fine)
        return found


def _as_large(small: Tensor, large: Tensor) -> Tensor:
    return functional.interpolate(small, size=large.shape[-2:], mode="nearest")


def train_denoiser(
    images: Tensor, training: DenoiserTraining, seed: int, tick: Callable[[int], None] | None = None
) -> Denoiser:
    """Train a denoiser.

    Args:
        images: ``(n, c, h, w)`` in [0, 1] of the attacker's own.
        training: how.
        seed: of initial weights, of the order of images, and of the noise.
        tick: called with the steps done.
    """
    with global_seed(derive_seed(seed, "denoiser weights")):
        network = Denoiser(images.shape[1], training.width, training.noise).to(images.device)
    draws = generator(seed, "denoiser pairs")
    optimiser = Adam(network.parameters(), training.learning_rate)
    for step in range(training.iterations):
        drawn = torch.randint(len(images), (training.batch_size,), generator=draws).to(images.device)
        clean = images[drawn]
        clean = torch.cat([clean[::2], clean[1::2].flip(3)])
        noise = training.noise * torch.randn(clean.shape, generator=draws).to(images.device)
        loss = functional.mse_loss(network(clean + noise), clean) / training.noise**2
        optimiser.forget_gradients()
        loss.backward()
        optimiser.pace(0.5 * training.learning_rate * (1 + math.cos(math.pi * step / training.iterations)))
        optimiser.step()
        if tick is not None:
            tick(step + 1)
    return network.eval().requires_grad_(False)


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
        total_variation: weight of :func:`fedpriv.attacks.priors.pixels.total_variation` beside it.
    """

    weight: Annotated[float, Ge(0)] = 0.006
    total_variation: Annotated[float, Ge(0)] = 0.01


class LearnedImages:
    """M images in each of N rows: a prior for :func:`fedpriv.attacks.search.fit.fit`.

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
