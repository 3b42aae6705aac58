"""Layers of N independent networks computed as one: row n owns the n-th group of channels.

A map is ``(1, N * C, H, W)``. Convolutions are grouped, so no row sees another; batch norm over that shape keeps one
mean and variance for each channel of each row, so its statistics are a row's own by construction.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

_SMALL_MAP = 64
"""Positions up to which a convolution is faster as one matrix product a row (weights outweigh the map there)."""

_LARGE_MAP = 256
"""Positions from which a convolution and the average pooling after it are faster as one strided convolution."""


def is_small(height: int, width: int) -> bool:
    """True where maps of this size are convolved by matrix products."""
    return height * width <= _SMALL_MAP


def laid_out(maps: Tensor) -> Tensor:
    """Return the maps in the memory layout that is fastest for their size and device."""
    large_on_cpu = maps.device.type == "cpu" and not is_small(maps.shape[-2], maps.shape[-1])
    return maps.contiguous(memory_format=torch.channels_last if large_on_cpu else torch.contiguous_format)


def convolve(maps: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Convolve with stride 1 and zero padding that keeps the size.

    Args:
        maps: ``(1, N * I, H, W)``.
        weight: ``(N, O, I, k, k)``, k odd.
        bias: ``(N, O)`` or None.

    Returns:
        ``(1, N * O, H, W)``.
    """
    rows, out_channels, in_channels, kernel, _ = weight.shape
    height, width = maps.shape[-2:]
    if is_small(height, width):
        patches = maps.reshape(rows, in_channels, height, width)
        patches = functional.unfold(patches, kernel, padding=kernel // 2) if kernel > 1 else patches.flatten(2)
        matrix = weight.flatten(2)
        product = torch.bmm(matrix, patches) if bias is None else torch.baddbmm(bias.unsqueeze(2), matrix, patches)
        return product.view(1, rows * out_channels, height, width)
    if kernel == 1:
        # The library's grouped 1 x 1 convolution loops over the groups when it has one thread.
        last = laid_out(maps).permute(0, 2, 3, 1).reshape(height * width, rows, in_channels)
        mixed = torch.bmm(last.transpose(0, 1), weight.flatten(2).transpose(1, 2)).transpose(0, 1)
        mixed = mixed if bias is None else mixed + bias
        return mixed.reshape(1, height, width, -1).permute(0, 3, 1, 2)
    flat_bias = None if bias is None else bias.flatten()
    return functional.conv2d(laid_out(maps), weight.flatten(0, 1), flat_bias, padding=kernel // 2, groups=rows)


def convolve_and_halve(maps: Tensor, weight: Tensor) -> Tensor:
    """Convolve as :func:`convolve`, then average 2 x 2 positions; an odd last row or column is averaged alone.

    Returns:
        ``(1, N * O, ceil(H / 2), ceil(W / 2))``.
    """
    height, width = maps.shape[-2:]
    if height % 2 or width % 2 or height * width < _LARGE_MAP:
        return laid_out(functional.avg_pool2d(convolve(maps, weight), 2, ceil_mode=True))
    # The mean of four neighbouring k x k windows is one (k + 1) x (k + 1) window with stride 2.
    kernel = weight.shape[-1]
    rows = len(weight)
    flat = weight.flatten(0, 1)
    across = functional.pad(flat, (0, 1)) + functional.pad(flat, (1, 0))
    wide = 0.25 * (functional.pad(across, (0, 0, 0, 1)) + functional.pad(across, (0, 0, 1, 0)))
    return laid_out(functional.conv2d(laid_out(maps), wide, stride=2, padding=kernel // 2, groups=rows))


def normalise(maps: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Batch norm in training mode: each channel of each row by its own mean and variance over the map.

    Args:
        maps: ``(1, N * C, H, W)``.
        scale: ``(N, C)``.
        shift: ``(N, C)``.
    """
    return functional.batch_norm(maps, None, None, scale.flatten(), shift.flatten(), training=True)


def double(maps: Tensor, height: int, width: int) -> Tensor:
    """Repeat every position 2 x 2 (nearest upsampling) and crop to ``height`` x ``width``."""
    if maps.device.type == "cpu":
        # On a CPU the contiguous layout makes the backward pass of upsampling several times slower.
        maps = maps.contiguous(memory_format=torch.channels_last)
    return laid_out(functional.interpolate(maps, scale_factor=2, mode="nearest")[:, :, :height, :width])
