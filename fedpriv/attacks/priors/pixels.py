"""Pixel priors: the image itself is optimised, kept in its box, smooth, and near to what a trained denoiser makes of it.

Total variation: Mahendran and Vedaldi, "Understanding deep image representations by inverting them" (CVPR 2015).

A learned prior adds ``weight * ||x - D(x)||^2 / s^2`` per pixel, with D a denoiser of noise s trained on the attacker's own
images, and its derivative taken as if D(x) were constant: each step moves the image towards what D makes of it (Romano, Elad
and Milanfar, "The little engine that could: regularization by denoising", SIAM J. Imaging Sci. 2017). Of 1,000 images a
network learns what small neighbourhoods look like, at which total variation only guesses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.attacks.contract import AttackProblem, Same
from fedpriv.attacks.observation import Knowledge
from fedpriv.attacks.search.fit import Adam, Prior, cooling
from fedpriv.models.split import fastest_order
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed, generator, global_seed

LEAST_IMAGES = 16
"""Images of its own below which an attacker has nothing to train on."""

_TINY = 1e-8


def total_variation(images: Tensor) -> Tensor:
    """Return the mean over positions of ``sqrt((right - here)^2 + (below - here)^2)`` of each image ``(N, c, h, w)``.

    Differences over the last row and column count as zero; channels are summed. (kornia's is another one: the sum of
    absolute differences, without a root over both directions.)
    """
    across, down = images.diff(dim=-1).square(), images.diff(dim=-2).square()
    values = functional.pad(across, (0, 1)) + functional.pad(down, (0, 0, 0, 1))
    # The derivative of a root is infinite at zero; flat places are common.
    lengths: Tensor = (values + _TINY).sqrt() - _TINY**0.5
    return lengths.sum(1).mean((1, 2))


@dataclass(frozen=True)
class PixelSettings:
    """Settings of a search over pixels.

    Attributes:
        total_variation: weight of :func:`total_variation`.
        start_noise: standard deviation of the Gaussian noise around mid-grey to start from.
    """

    total_variation: Annotated[float, Ge(0)] = 0.02
    start_noise: Annotated[float, Ge(0)] = 0.1


class PixelPrior(Prior):
    """The pixels of N rows, from images ``(N, c, h, w)`` on, under so much total variation."""

    def __init__(self, start: Tensor, variation: float) -> None:
        self._variation = variation
        self.parameters = [start.clone().requires_grad_()]

    def clean(self) -> Tensor:
        """Return the images ``(N, c, h, w)``."""
        return self.parameters[0]

    def penalty(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return the weighted total variation of each image, ``(N,)``."""
        return self._variation * total_variation(images)

    @torch.no_grad()
    def project(self) -> None:
        """Clamp every pixel to [0, 1]."""
        self.parameters[0].clamp_(0, 1)


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
    """A network that takes noise of standard deviation ``noise`` off images ``(n, c, h, w)``; starts as the identity.

    Three resolutions, joined by sums: convolutions of 3 x 3, halved by stride and doubled by repeating; finest maps have
    ``width`` channels. It gives the noise, in units of its standard deviation, which is taken from the image.
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
        middle = self.mix(functional.interpolate(coarse, size=middle.shape[-2:]) + middle).relu()
        fine = (functional.interpolate(self.widen(middle), size=fine.shape[-2:]) + fine).relu()
        cleaner: Tensor = images - self.level * self.noise(fine)
        return cleaner


def train_denoiser(images: Tensor, training: DenoiserTraining, seed: int) -> Denoiser:
    """Train a denoiser on images ``(n, c, h, w)`` in [0, 1]; ``seed`` draws weights, the order of images, and the noise."""
    with global_seed(derive_seed(seed, "denoiser weights")):
        network = Denoiser(images.shape[1], training.width, training.noise).to(images.device)
    draws = generator(seed, "denoiser pairs")
    with fastest_order(network, functional.mse_loss) as ordered:
        optimiser = Adam(network.parameters(), training.learning_rate, fused=True)
        for step in range(training.iterations):
            drawn = torch.randint(len(images), (training.batch_size,), generator=draws).to(images.device)
            clean = images[drawn]
            clean = torch.cat([clean[::2], clean[1::2].flip(3)])
            noise = training.noise * torch.randn(clean.shape, generator=draws).to(images.device)
            optimiser.pace(training.learning_rate * cooling(step / training.iterations))
            optimiser.descend(functional.mse_loss(network(ordered(clean + noise)), clean) / training.noise**2)
    return network.eval().requires_grad_(False)


def images_to_train_on(attack: str, knowledge: Knowledge) -> Tensor:
    """Return the attacker's own images.

    Raises:
        UserError: where an attack has too few to train on.
    """
    images = knowledge.public_images
    if images is None or len(images) < LEAST_IMAGES:
        raise UserError(
            f"attack {attack!r} got {0 if images is None else len(images)} images to train on; expected at least "
            f"{LEAST_IMAGES} (train the run with auxiliary=0.5, or name a larger foreign data set)"
        )
    return images


def own_denoiser(attack: str, problem: AttackProblem, training: DenoiserTraining, search: int) -> Denoiser:
    """Return the denoiser of a run, trained once on the attacker's own images for all attacks.

    It is trained for as many steps as the ``search`` has iterations at most: a small budget does not go to training alone.

    Raises:
        UserError: where the attacker has too few images.
    """
    images = images_to_train_on(attack, problem.knowledge)
    seed = derive_seed(problem.seed, "denoiser")
    training = replace(training, iterations=min(training.iterations, search))
    return problem.trained.get(
        ("denoiser", training, seed, Same(images), problem.device),
        lambda: train_denoiser(images.to(problem.device), training, seed),
    )


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
        total_variation: weight of :func:`total_variation` beside it.
    """

    weight: Annotated[float, Ge(0)] = 0.006
    total_variation: Annotated[float, Ge(0)] = 0.01


class LearnedImages(PixelPrior):
    """Pixels that a denoiser of noise with a standard deviation ``noise`` holds back, from images ``(N, c, h, w)`` on."""

    def __init__(
        self, start: Tensor, denoiser: Callable[[Tensor], Tensor], noise: float, settings: LearnedSettings
    ) -> None:
        super().__init__(start, settings.total_variation)
        self._denoiser, self._noise, self._weight = denoiser, noise, settings.weight

    def penalty(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return the weighted strangeness and total variation of each image ``(n,)``."""
        return self._weight * strangeness(images, self._denoiser, self._noise) + super().penalty(images, rows)
