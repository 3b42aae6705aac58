"""Pixel prior: the image itself is optimised, kept in its box and smooth.

After Mahendran and Vedaldi, "Understanding deep image representations by inverting them" (CVPR 2015).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn import functional

from fedpriv.attacks.search.fit import Prior

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
