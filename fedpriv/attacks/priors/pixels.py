"""Pixel prior: the image itself is optimised, kept in its box and smooth.

After Mahendran and Vedaldi, "Understanding deep image representations by inverting them" (CVPR 2015): total variation
to the power beta / 2, a 6-norm around mid-grey, and jitter of a few positions against high frequencies.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from fedpriv.attacks.priors.row_draws import RowDraws, shifts
from fedpriv.attacks.priors.variation import total_variation


@dataclass(frozen=True)
class PixelSettings:
    """Penalties and schedule of a search over pixels.

    Attributes:
        total_variation: weight of :func:`fedpriv.attacks.priors.variation.total_variation`.
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
        self._settings = settings
        noise = torch.stack([torch.randn(image_shape, generator=generator) for generator in generators])
        start = (0.5 + settings.start_noise * noise).clamp(0, 1)
        self.parameters = [start.to(device).requires_grad_()]
        self._still = torch.arange(image_shape[1] * image_shape[2], device=device)
        self._jittered = False
        self._shifts = RowDraws(generators, shifts(*image_shape[1:], settings.jitter), device)

    def prepare(self, progress: float) -> Hashable:
        """Draw the jitter of this iteration, where it has one; return whether it has."""
        self._jittered = self._settings.jitter > 0 and progress < self._settings.jitter_until
        if self._jittered:
            self._shifts.advance()
        return self._jittered

    def shown(self, moving: Tensor) -> Tensor:
        """Return this iteration's images ``(N, c, h, w)``, each shifted by its own jitter where a row is moving."""
        images = self.parameters[0]
        if not self._jittered:
            return images
        origin = torch.where(moving[:, None], self._shifts.present, self._still)
        flat = images.flatten(2)
        return flat.gather(2, origin[:, None].expand_as(flat)).view_as(images)

    def clean(self) -> Tensor:
        """Return the images ``(N, c, h, w)`` where they are."""
        return self.parameters[0]

    def penalty(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return the weighted total variation and 6th power of each image, ``(N,)``."""
        found = total_variation(images, self._settings.beta, self._settings.total_variation)
        if self._settings.grey:
            found = found + self._settings.grey * (2 * images - 1).pow(6).flatten(1).mean(1)
        return found

    def project(self) -> None:
        """Clamp every pixel to [0, 1]."""
        with torch.no_grad():
            self.parameters[0].clamp_(0, 1)

    def compile(self) -> None:
        """Leave everything as it is: there is no network."""

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only, ``rows`` being int64 positions on the CPU."""
        self._shifts.keep(rows)
        there = rows.to(self.parameters[0].device)
        self.parameters = [self.parameters[0].detach()[there].requires_grad_()]
