"""Pixel priors: the image itself is optimised, kept in its box, smooth, and near to what a trained denoiser makes of it.

Total variation: Mahendran and Vedaldi, "Understanding deep image representations by inverting them" (CVPR 2015).

A learned prior adds ``weight * ||x - D(x)||^2 / s^2`` per pixel, with D a denoiser of noise s trained on the attacker's own
images, and its derivative taken as if D(x) were constant: each step moves the image towards what D makes of it (Romano, Elad
and Milanfar, "The little engine that could: regularization by denoising", SIAM J. Imaging Sci. 2017). Of 1,000 images a
network learns what small neighbourhoods look like, at which total variation only guesses.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
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

WIDTH, _NOISE = 24, 0.03
"""Channels of a denoiser's finest maps (coarser ones have two and four times as many); standard deviation of its noise."""

_STEPS, _BATCH, _RATE = 200, 16, 2e-3
"""Of its training by Adam: steps at most, images a step, and first step size, which falls to zero along half a cosine."""

_STRANGE, _TINY = 0.006, 1e-8
"""Weight of what a denoiser changes, squared, in units of its noise, in a search for one image; least square of a root."""


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


class PixelPrior(Prior):
    """The pixels of N rows, from images ``(N, c, h, w)`` on, under total variation of a weight."""

    def __init__(self, start: Tensor, variation: float = 0.02) -> None:
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


class Denoiser(nn.Module):
    """A network that takes noise off images ``(n, c, h, w)``; starts as the identity.

    Three resolutions, joined by sums: convolutions of 3 x 3, halved by stride and doubled by repeating. It gives the noise,
    in units of its standard deviation, which is taken from the image.
    """

    def __init__(self, channels: int, width: int = WIDTH) -> None:
        super().__init__()

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
        cleaner: Tensor = images - _NOISE * self.noise(fine)
        return cleaner


def train_denoiser(images: Tensor, iterations: int, seed: int) -> Denoiser:
    """Train a denoiser on images ``(n, c, h, w)`` in [0, 1], half of them mirrored, by Adam on the mean squared error.

    ``seed`` draws weights, the order of images, and the noise.
    """
    with global_seed(derive_seed(seed, "denoiser weights")):
        network = Denoiser(images.shape[1]).to(images.device)
    draws = generator(seed, "denoiser pairs")
    with fastest_order(network, functional.mse_loss) as ordered:
        optimiser = Adam(network.parameters(), _RATE, fused=True)
        for step in range(iterations):
            clean = images[torch.randint(len(images), (_BATCH,), generator=draws).to(images.device)]
            clean = torch.cat([clean[::2], clean[1::2].flip(3)])
            noise = _NOISE * torch.randn(clean.shape, generator=draws).to(images.device)
            optimiser.pace(_RATE * cooling(step / iterations))
            optimiser.descend(functional.mse_loss(network(ordered(clean + noise)), clean) / _NOISE**2)
    return network.eval().requires_grad_(False)


def images_to_train_on(attack: str, knowledge: Knowledge) -> Tensor:
    """Return the attacker's own images; refuse too few to train on."""
    images = knowledge.public_images
    if images is None or len(images) < LEAST_IMAGES:
        raise UserError(
            f"attack {attack!r} got {0 if images is None else len(images)} images to train on; expected at least "
            f"{LEAST_IMAGES} (train the run with auxiliary=0.5, or name a larger foreign data set)"
        )
    return images


def own_denoiser(attack: str, problem: AttackProblem, search: int) -> Denoiser:
    """Return the denoiser of a run, trained once on the attacker's own images for all attacks; refuse too few images.

    It is trained for as many steps as the ``search`` has iterations at most: a small budget does not go to training alone.
    """
    images, seed = images_to_train_on(attack, problem.knowledge), derive_seed(problem.seed, "denoiser")
    steps = min(_STEPS, search)
    key = ("denoiser", steps, seed, Same(images), problem.device)
    return problem.trained.get(key, lambda: train_denoiser(images.to(problem.device), steps, seed))


def strangeness(images: Tensor, denoiser: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the mean of ``(x - D(x))^2 / noise^2`` of each image ``(N, c, h, w)``: ``(N,)``; D(x) has no derivative."""
    with torch.no_grad():
        cleaner = denoiser(images)
    return (images - cleaner).square().flatten(1).mean(1) / _NOISE**2


class LearnedImages(PixelPrior):
    """Pixels that a denoiser and total variation hold back, from images ``(N, c, h, w)`` on."""

    def __init__(self, start: Tensor, denoiser: Callable[[Tensor], Tensor]) -> None:
        super().__init__(start, 0.01)
        self._denoiser = denoiser

    def penalty(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return the weighted strangeness and total variation of each image ``(n,)``."""
        return _STRANGE * strangeness(images, self._denoiser) + super().penalty(images, rows)
