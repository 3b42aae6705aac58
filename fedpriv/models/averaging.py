"""Average pooling of maps to a given side that repeats itself on a GPU."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.models.mapping import window_means


def by_products(maps: Tensor, side: int) -> Tensor:
    """Return adaptive average pooling of ``(n, c, h, w)`` to ``(n, c, side, side)`` as two matrix products."""
    height, width = maps.shape[-2:]
    rows, columns = (_means(length, side, maps.device, maps.dtype) for length in (height, width))
    return rows.T @ maps @ columns


@functools.lru_cache(maxsize=64)
def _means(length: int, side: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return window means on a device, where they stay: a GPU is waited for with each transfer."""
    return window_means(length, side).to(device, dtype)


class AveragePool(nn.AdaptiveAvgPool2d):
    """Adaptive average pooling of maps to ``(side, side)``.

    Where windows overlap, torch's derivative on a GPU adds in whatever order its threads come, so there it is
    :func:`by_products`.

    Args:
        side: of what comes out.
    """

    def __init__(self, side: int) -> None:
        super().__init__(side)
        self.side = side

    def forward(self, maps: Tensor) -> Tensor:
        """Return maps ``(n, c, side, side)``."""
        if maps.is_cuda:
            return by_products(maps, self.side)
        return functional.adaptive_avg_pool2d(maps, self.side)
