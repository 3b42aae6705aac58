"""A small network that takes noise off images, trained on the attacker's own: what it changes of an image is no image's.

Three resolutions, joined by sums: convolutions of 3 x 3, halved by stride and doubled by repeating. It gives the noise,
which is taken from the image, in units of its standard deviation. There is one level of noise, so it need not be told.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.attacks.optim.adam import Adam
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
