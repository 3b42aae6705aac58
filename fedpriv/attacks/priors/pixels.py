"""Pixel prior: the image itself is optimised, kept in its box and smooth.

After Mahendran and Vedaldi, "Understanding deep image representations by inverting them" (CVPR 2015): total variation
to the power beta / 2, a 6-norm around mid-grey, and jitter of a few positions against high frequencies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

_TINY = 1e-8


def total_variation(images: Tensor, beta: float = 2.0) -> Tensor:
    """Return the mean over positions of ``((right - here)^2 + (below - here)^2)^(beta / 2)`` of each image.

    Differences over the last row and column count as zero; channels are summed.

    Args:
        images: ``(N, c, h, w)``.
        beta: 1 is isotropic total variation, 2 the squared gradient. Must be positive.

    Returns:
        ``(N,)``.
    """
    right = torch.zeros_like(images)
    below = torch.zeros_like(images)
    right[..., :, :-1] = (images[..., :, 1:] - images[..., :, :-1]).square()
    below[..., :-1, :] = (images[..., 1:, :] - images[..., :-1, :]).square()
    squared = right + below
    # The derivative of a root is infinite at zero; flat places are common.
    powered = squared if beta == 2.0 else (squared + _TINY).pow(beta / 2) - _TINY ** (beta / 2)
    return powered.sum(1).flatten(1).mean(1)


@dataclass(frozen=True)
class PixelSettings:
    """Penalties and schedule of a search over pixels.

    Attributes:
        total_variation: weight of :func:`total_variation`.
        beta: its exponent.
        grey: weight of the mean 6th power of ``2 x - 1``, which keeps pixels off the ends of their range.
        jitter: images are shifted by up to so many positions in each direction, anew in each iteration.
        jitter_until: share of the iterations after which there is no jitter any more, in [0, 1].
        start_noise: standard deviation of the Gaussian noise around mid-grey to start from.
    """

    total_variation: Annotated[float, Ge(0)] = 0.02
    beta: Annotated[float, Gt(0)] = 1.0
    grey: Annotated[float, Ge(0)] = 0.0
    jitter: Annotated[int, Ge(0)] = 0
    jitter_until: Annotated[float, Ge(0), Le(1)] = 0.5
    start_noise: Annotated[float, Ge(0)] = 0.1


class PixelPrior:
    """The pixels of N rows: a prior for :func:`fedpriv.attacks.optim.fitting.fit`.

    Args:
        generators: N CPU generators, one a row; each draws its row's start and jitter.
        image_shape: (channels, height, width).
        settings: what holds pixels back.
        device: where to compute.
    """

    def __init__(
        self,
        generators: Sequence[torch.Generator],
        image_shape: tuple[int, int, int],
        settings: PixelSettings,
        device: torch.device,
    ) -> None:
        self._generators = list(generators)
        self._settings = settings
        noise = torch.stack([torch.randn(image_shape, generator=generator) for generator in self._generators])
        start = (0.5 + settings.start_noise * noise).clamp(0, 1)
        self.parameters = [start.to(device).requires_grad_()]

    def shown(self, progress: float) -> Tensor:
        """Return this iteration's images ``(N, c, h, w)``, each shifted by its own jitter."""
        images = self.parameters[0]
        reach = self._settings.jitter
        if not reach or progress >= self._settings.jitter_until:
            return images
        shifted = []
        for image, generator in zip(images, self._generators, strict=True):
            down, right = torch.randint(-reach, reach + 1, (2,), generator=generator).tolist()
            shifted.append(image.roll((down, right), (1, 2)))
        return torch.stack(shifted)

    def clean(self) -> Tensor:
        """Return the images ``(N, c, h, w)`` where they are."""
        return self.parameters[0]

    def penalty(self, images: Tensor) -> Tensor:
        """Return the weighted total variation and 6th power of each image, ``(N,)``."""
        found = self._settings.total_variation * total_variation(images, self._settings.beta)
        if self._settings.grey:
            found = found + self._settings.grey * (2 * images - 1).pow(6).flatten(1).mean(1)
        return found

    def project(self) -> None:
        """Clamp every pixel to [0, 1]."""
        with torch.no_grad():
            self.parameters[0].clamp_(0, 1)

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only, ``rows`` being int64 positions on the CPU."""
        self._generators = [self._generators[row] for row in rows.tolist()]
        there = rows.to(self.parameters[0].device)
        self.parameters = [self.parameters[0].detach()[there].requires_grad_()]
