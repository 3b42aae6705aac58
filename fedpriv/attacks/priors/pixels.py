"""Pixel prior: the image itself is optimised, kept in its box and smooth.

After Mahendran and Vedaldi, "Understanding deep image representations by inverting them" (CVPR 2015): total variation
to the power beta / 2, and jitter of a few positions against high frequencies.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor
from torch.nn import functional

from fedpriv.attacks.priors.grouped import Draw, RowDraws
from fedpriv.attacks.search.fit import Prior

_TINY = 1e-8


def total_variation(images: Tensor, beta: float = 2.0, weight: float = 1.0) -> Tensor:
    """Return the mean over positions of ``((right - here)^2 + (below - here)^2)^(beta / 2)`` of each image.

    Differences over the last row and column count as zero; channels are summed. (kornia's is another one: the sum of
    absolute differences, without a root over both directions.)

    Args:
        images: ``(N, c, h, w)``.
        beta: 1 is isotropic total variation, 2 the squared gradient. Must be positive.
        weight: factor of the result.

    Returns:
        ``(N,)``.
    """
    across, down = images.diff(dim=-1).square(), images.diff(dim=-2).square()
    values = functional.pad(across, (0, 1)) + functional.pad(down, (0, 0, 0, 1))
    if beta != 2.0:  # the derivative of a root is infinite at zero; flat places are common
        values = (values + _TINY).pow(beta / 2) - _TINY ** (beta / 2)
    return weight * values.sum(1).mean((1, 2))


@dataclass(frozen=True)
class PixelSettings:
    """Penalties and schedule of a search over pixels.

    Attributes:
        total_variation: weight of :func:`total_variation`.
        beta: its exponent.
        jitter: images are shifted by up to so many positions in each direction, anew in each iteration.
        jitter_until: share of the iterations after which there is no jitter any more, in [0, 1].
        start_noise: standard deviation of the Gaussian noise around mid-grey to start from.
    """

    total_variation: Annotated[float, Ge(0)] = 0.02
    beta: Annotated[float, Gt(0)] = 1.0
    jitter: Annotated[int, Ge(0)] = 0
    jitter_until: Annotated[float, Ge(0), Le(1)] = 0.5
    start_noise: Annotated[float, Ge(0)] = 0.1


class PixelPrior(Prior):
    """The pixels of N rows.

    Args:
        generators: N CPU generators, one a row; each draws its row's start and jitter.
        image_shape: (channels, height, width).
        settings: penalties and schedule.
        device: where to compute.
        start: ``(N, c, h, w)`` to begin with; None for noise around grey.
    """

    def __init__(
        self,
        generators: Sequence[torch.Generator],
        image_shape: tuple[int, int, int],
        settings: PixelSettings,
        device: torch.device,
        start: Tensor | None = None,
    ) -> None:
        self._settings = settings
        if start is None:
            noise = torch.stack([torch.randn(image_shape, generator=generator) for generator in generators])
            start = (0.5 + settings.start_noise * noise).clamp(0, 1).to(device)
        self.parameters = [start.clone().requires_grad_()]
        self._still = torch.arange(image_shape[1] * image_shape[2], device=device)
        self._jittered = False
        self._shifts = RowDraws(generators, _shifts(*image_shape[1:], settings.jitter), device)

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
        """Return the weighted total variation of each image, ``(N,)``."""
        return total_variation(images, self._settings.beta, self._settings.total_variation)

    @torch.no_grad()
    def project(self) -> None:
        """Clamp every pixel to [0, 1]."""
        self.parameters[0].clamp_(0, 1)

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only, ``rows`` being int64 positions on the CPU."""
        self._shifts.keep(rows)


def _shifts(height: int, width: int, reach: int) -> Draw:
    """Return a draw of a shift around the edges, by up to ``reach`` positions down and right, alike in all channels.

    It says where each position's value comes from, ``(height * width,)`` int64.
    """

    def draw(generator: torch.Generator) -> Tensor:
        down, right = torch.randint(-reach, reach + 1, (2, 1), generator=generator)
        from_row, from_column = (torch.arange(height) - down) % height, (torch.arange(width) - right) % width
        origin: Tensor = from_row[:, None] * width + from_column
        return origin.flatten()

    return draw
