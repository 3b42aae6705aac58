"""Networks of N rows computed as one: maps ``(1, N * C, H, W)``, a group a row; and draws of N rows step after step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

SMALL_MAP = 16
"""Positions up to which a convolution is faster as one matrix product a row (weights outweigh the map there)."""

_MANY = 64
"""Rows from which a GPU convolves them by products of matrices."""

_FEWEST = 16
"""Fewer normal numbers than these torch draws by another algorithm, so that no fewer are drawn."""

Draw = Callable[[torch.Generator], Tensor]
"""From a row's generator to what the row draws in a step, on the CPU."""


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
    positions = height * width
    if kernel > 1 and positions > SMALL_MAP and not as_products(rows, maps.device):
        flat_bias = None if bias is None else bias.flatten()
        return _convolve_groups(maps, weight.flatten(0, 1), flat_bias, kernel // 2, rows)
    if kernel == 1:
        patches = maps.view(rows, in_channels, positions)
    elif positions > SMALL_MAP:
        padded = functional.pad(maps, (kernel // 2,) * 4)
        windows = padded.unfold(2, kernel, 1).unfold(3, kernel, 1)[0]  # (N * I, H, W, k, k)
        patches = windows.permute(0, 3, 4, 1, 2).reshape(rows, -1, positions)
    else:
        # Neighbours are gathered by a product with zeros and ones: the same numbers, without a loop over rows.
        patches = maps.view(rows, in_channels, positions) @ neighbours(height, width, kernel, maps.device)
        patches = patches.view(rows, in_channels * kernel**2, positions)
    matrix = weight.flatten(2)
    product = torch.bmm(matrix, patches) if bias is None else torch.baddbmm(bias.unsqueeze(2), matrix, patches)
    return product.view(1, rows * out_channels, height, width)


def as_products(rows: int, device: torch.device) -> bool:
    """True where convolutions are computed as products of matrices: of many rows on a GPU.

    Its library takes the longer the more groups there are: of 64 up to four times as long as products, of 256 two to
    seven times (H200, forward and back, 16 to 64 channels of 8 x 8 to 32 x 32). Of few, calls cost more than they save.
    """
    return rows >= _MANY and device.type == "cuda"


def _convolve_groups(maps: Tensor, weight: Tensor, bias: Tensor | None, padding: int, rows: int) -> Tensor:
    """Convolve, a group a row.

    On a CPU torch convolves a small map of a single group by another algorithm, which rounds otherwise: a row alone would
    come out otherwise than among others. So it takes the one here that it takes for several.
    """
    if rows > 1 or maps.device.type != "cpu" or maps.dtype != torch.float32 or not torch.backends.mkldnn.is_available():
        return functional.conv2d(maps, weight, bias, padding=padding, groups=rows)
    alone: Tensor = torch.ops.aten.mkldnn_convolution(maps, weight, bias, [padding] * 2, [1, 1], [1, 1], 1)
    return alone


@functools.cache
def neighbours(height: int, width: int, kernel: int, device: torch.device) -> Tensor:
    """Return zeros and ones ``(H * W, k * k * H * W)`` that take a map to its zero-padded k x k neighbourhoods."""
    each = torch.eye(height * width).view(1, -1, height, width)
    return functional.unfold(each, kernel, padding=kernel // 2).view(height * width, -1).to(device)


def normalise(maps: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Batch norm in training mode: each channel of each row by its own mean and variance over the map.

    Args:
        maps: ``(1, N * C, H, W)``.
        scale: ``(N, C)``.
        shift: ``(N, C)``.
    """
    return functional.batch_norm(maps, None, None, scale.flatten(), shift.flatten(), training=True)


def double(maps: Tensor, rows: int, height: int, width: int) -> Tensor:
    """Repeat every position of ``rows`` rows' maps 2 x 2 (nearest upsampling) and crop to ``height`` x ``width``."""
    # A batch of one is taken for another memory layout, and copied there and back.
    by_row = maps.view(rows, -1, *maps.shape[-2:])
    doubled = functional.interpolate(by_row, scale_factor=2, mode="nearest")[:, :, :height, :width]
    return doubled.reshape(1, -1, height, width)


class RowDraws:
    """Draws of N rows, a step at a time, on the CPU: every device sees the same numbers.

    Args:
        generators: N CPU generators, one a row.
        draw: from a row's generator to its draws of a step.
        device: where draws are handed out.

    Attributes:
        present: the draws ``(N, ...)`` of the present step, in the same memory while there are as many rows: recorded steps
            read it there.
    """

    def __init__(self, generators: Sequence[torch.Generator], draw: Draw, device: torch.device) -> None:
        self._generators, self._draw, self._device = list(generators), draw, device
        self.present = torch.empty(0, device=device)

    def advance(self) -> None:
        """Go on to the next step."""
        drawn = torch.stack([self._draw(generator) for generator in self._generators])
        if self._device.type == "cuda":  # from pinned memory the copy does not wait for the device
            drawn = drawn.pin_memory()
        if self.present.shape == drawn.shape:
            self.present.copy_(drawn, non_blocking=True)
        else:
            self.present = drawn.to(self._device, non_blocking=True)

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only, ``rows`` being int64 positions on the CPU."""
        self._generators = [self._generators[row] for row in rows.tolist()]


def normal(*shape: int) -> Draw:
    """Return a draw of standard normal numbers of a shape."""
    number = torch.Size(shape).numel()
    filled = -(-number // _FEWEST) * _FEWEST
    return lambda generator: torch.randn(filled, generator=generator)[:number].view(shape)
