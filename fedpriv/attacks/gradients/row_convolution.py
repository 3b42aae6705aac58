"""Convolutions of R rows' n images each, by weights that all rows share or by each row's own.

Rows' own weights are groups of one convolution, with the rows' maps side by side among the channels: what a gradient of
each row's, and a direction for each row's weights, take. Where a layer has more than a few input channels this is faster on
a CPU than products of patches, which are as many times larger than the maps as a kernel has entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from fedpriv.attacks.gradients.chain import Convolution


def convolved(layer: Convolution, maps: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``(N, O, H, W)`` for maps ``(N, C, h, w)`` and a weight ``(O, C, k, k)`` that all share."""
    return _forward(layer, maps, weight, bias, 1)


def pulled(layer: Convolution, delta: Tensor, weight: Tensor, maps: Tensor) -> Tensor:
    """Return the derivative at maps ``(N, C, h, w)`` of what has the derivative ``(N, O, H, W)`` at :func:`convolved`."""
    return _backward(layer, delta, maps, weight, 1, (True, False))[0]


def convolved_by_row(layer: Convolution, maps: Tensor, weights: Tensor, biases: Tensor | None) -> Tensor:
    """Return ``(R n, O, H, W)`` for maps ``(R, n, C, h, w)``, rows' own weights ``(R, O, C k k)`` and biases ``(R, O)``."""
    rows = len(maps)
    bias = None if biases is None else biases.flatten()
    return _apart(_forward(layer, _beside(maps), _grouped(layer, maps, weights), bias, rows), rows)


def pulled_by_row(layer: Convolution, delta: Tensor, weights: Tensor, maps: Tensor) -> Tensor:
    """Return the derivative ``(R n, C, h, w)`` at maps ``(R, n, C, h, w)``, from that at :func:`convolved_by_row`."""
    rows, grouped = len(maps), _grouped(layer, maps, weights)
    return _apart(_backward(layer, _beside(delta), _beside(maps), grouped, rows, (True, False))[0], rows)


def weights_by_row(layer: Convolution, delta: Tensor, maps: Tensor) -> Tensor:
    """Return the derivative ``(R, O, C k k)`` at each row's weights, from ``delta`` ``(R, n, O, H, W)``, by the n images."""
    rows, outputs = len(maps), delta.shape[2]
    like = maps.new_empty(1).expand(rows * outputs, maps.shape[2], *layer.kernel)
    found = _backward(layer, _beside(delta), _beside(maps), like, rows, (False, True))[1]
    return found.view(rows, outputs, -1)


def _forward(layer: Convolution, maps: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> Tensor:
    """Return ``(N, O, H, W)`` for maps ``(N, C, h, w)``."""
    geometry = layer.stride, layer.padding, layer.dilation
    return functional.conv2d(maps, weight, bias, *geometry, groups)


def _backward(
    layer: Convolution, delta: Tensor, maps: Tensor, weight: Tensor, groups: int, which: tuple[bool, bool]
) -> tuple[Tensor, Tensor]:
    """Return the derivatives at maps ``(N, C, h, w)`` and at the weight, ``which`` of them are asked for."""
    geometry = list(layer.stride), list(layer.padding), list(layer.dilation)
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
        delta, maps, weight, None, *geometry, False, [0, 0], groups, (*which, False)
    )
    return found[:2]


def _grouped(layer: Convolution, maps: Tensor, weights: Tensor) -> Tensor:
    return weights.reshape(-1, maps.shape[2], *layer.kernel)


def _beside(maps: Tensor) -> Tensor:
    """Return ``(R, n, C, h, w)`` as ``(n, R C, h, w)``."""
    rows, count, channels = maps.shape[:3]
    return maps.transpose(0, 1).reshape(count, rows * channels, *maps.shape[3:])


def _apart(maps: Tensor, rows: int) -> Tensor:
    """Return ``(n, R C, h, w)`` as ``(R n, C, h, w)``."""
    count, _, height, width = maps.shape
    return maps.view(count, rows, -1, height, width).transpose(0, 1).flatten(0, 1)
