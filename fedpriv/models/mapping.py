"""Representation mapping: vectors of any width L to the shared width d (FedRE, section on heterogeneous models).

AP and MP are adaptive pooling along the feature axis: output j is the mean or the maximum of
``input[floor(j L / d) : ceil((j + 1) L / d)]``. Where L < d the windows repeat values. FC is a trainable linear layer
between extractor and head that belongs to the client and is never uploaded.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d


def windows(n_in: int, n_out: int) -> list[range]:
    """Return the input positions behind each of ``n_out`` outputs of adaptive pooling over ``n_in`` values."""
    return [range(j * n_in // n_out, -(-(j + 1) * n_in // n_out)) for j in range(n_out)]


def window_means(n_in: int, n_out: int) -> Tensor:
    """Return the matrix ``(n_in, n_out)`` by which row vectors become the means of their windows."""
    matrix = torch.zeros(n_in, n_out)
    for column, window in enumerate(windows(n_in, n_out)):
        matrix[window.start : window.stop, column] = 1 / len(window)
    return matrix


class AveragePooling(nn.Module):
    """``(n, L)`` to ``(n, d)`` by window means, as a matrix product.

    The backward pass of torch's adaptive pooling on a GPU does not add in a fixed order, which a resumed run needs.
    """

    matrix: Tensor

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.register_buffer("matrix", window_means(n_in, n_out), persistent=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return vectors ``(n, d)``."""
        return vectors @ self.matrix


class MaxPooling(nn.Module):
    """``(n, L)`` to ``(n, d)`` by window maxima."""

    positions: Tensor

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        result = windows(n_in, n_out)
        longest = max(len(window) for window in result)
        # Shorter windows repeat their last position, which leaves the maximum as it is.
        padded = [[min(window.start + step, window.stop - 1) for step in range(longest)] for window in result]
        self.register_buffer("positions", torch.tensor(padded), persistent=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return vectors ``(n, d)``."""
        return vectors[..., self.positions].max(dim=-1).values


def average_pooling(n_in: int, n_out: int) -> nn.Module:
    """AP from width ``n_in`` to ``n_out``; the identity where they agree."""
    return nn.Identity() if n_in == n_out else AveragePooling(n_in, n_out)


def max_pooling(n_in: int, n_out: int) -> nn.Module:
    """MP from width ``n_in`` to ``n_out``; the identity where they agree."""
    return nn.Identity() if n_in == n_out else MaxPooling(n_in, n_out)


def fully_connected(n_in: int, n_out: int) -> nn.Module:
    """FC from width ``n_in`` to ``n_out``: a trainable linear layer, also where they agree."""
    return nn.Linear(n_in, n_out)


@functools.lru_cache(maxsize=64)
def _means(length: int, side: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return window_means(length, side).to(device, dtype)  # kept there: a GPU is waited for with each transfer


def by_products(maps: Tensor, side: int) -> Tensor:
    """Return adaptive average pooling of ``(n, c, h, w)`` to ``(n, c, side, side)`` as two matrix products."""
    rows, columns = (_means(length, side, maps.device, maps.dtype) for length in maps.shape[-2:])
    return rows.T @ maps @ columns


class AveragePool(nn.Module):
    """Adaptive average pooling of maps to ``(side, side)`` that repeats itself on a GPU."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, maps: Tensor) -> Tensor:
        """Return the new maps."""
        return by_products(maps, self.side) if maps.is_cuda else adaptive_avg_pool2d(maps, self.side)
