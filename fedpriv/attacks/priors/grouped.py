"""Draws of N rows step after step, each row from its own generator, on the CPU: every device sees the same numbers.

Layers of N independent networks computed as one: row n owns the n-th group of channels.

A map is ``(1, N * C, H, W)`` and contiguous. Convolutions are grouped, so no row sees another; batch norm over that shape
keeps one mean and variance for each channel of each row, so its statistics are a row's own by construction.

"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

_GROUP = 16
"""Fewer normal numbers than these torch draws by another algorithm, so that no fewer are drawn."""

Draw = Callable[[torch.Generator], Tensor]
"""From a row's generator to what the row draws in a step, on the CPU."""


class RowDraws:
    """Draws of N rows, a step at a time.

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

    def advance(self) -> Tensor:
        """Go on to the next step; return its draws."""
        drawn = torch.stack([self._draw(generator) for generator in self._generators])
        if self._device.type == "cuda":  # from pinned memory the copy does not wait for the device
            drawn = drawn.pin_memory()
        if self.present.shape == drawn.shape:
            self.present.copy_(drawn, non_blocking=True)
        else:
            self.present = drawn.to(self._device, non_blocking=True)
        return self.present

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only, ``rows`` being int64 positions on the CPU."""
        self._generators = [self._generators[row] for row in rows.tolist()]


def normal(*shape: int) -> Draw:
    """Return a draw of standard normal numbers of a shape."""
    number = torch.Size(shape).numel()
    filled = -(-number // _GROUP) * _GROUP
    return lambda generator: torch.randn(filled, generator=generator)[:number].view(shape)


def shifts(height: int, width: int, reach: int) -> Draw:
    """Return a draw of a shift around the edges, by up to ``reach`` positions down and right, alike in all channels.

    It says where each position's value comes from, ``(height * width,)`` int64.
    """

    def draw(generator: torch.Generator) -> Tensor:
        down, right = torch.randint(-reach, reach + 1, (2, 1), generator=generator)
        from_row, from_column = (torch.arange(height) - down) % height, (torch.arange(width) - right) % width
        origin: Tensor = from_row[:, None] * width + from_column
        return origin.flatten()

    return draw


SMALL_MAP = 16
"""Positions up to which a convolution is faster as one matrix product a row (weights outweigh the map there)."""

_LARGE_MAP = 256
"""Positions from which a convolution and the average pooling after it are faster as one strided convolution."""

_DOUBLED_MAP = 64
"""Positions of a map from which doubling it and the convolution after that are faster as one transposed convolution."""

_MANY = 64
"""Rows from which a GPU convolves them by products of matrices."""

_NARROW = 64
"""Columns up to which a processor's products of matrices are faster, up to six times, when asked for as transposed."""


_NEIGHBOURS: dict[tuple[int, int, int, torch.device], Tensor] = {}
_WIDENED: dict[tuple[int, torch.device, bool], Tensor] = {}
"""Constants of sizes that were asked for, a few hundred KiB."""


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
    if kernel > 1 and height * width > SMALL_MAP:
        flat_bias = None if bias is None else bias.flatten()
        return by_groups(maps, weight.flatten(0, 1), flat_bias, 1, kernel // 2, rows)
    positions = height * width
    patches = maps.view(rows, in_channels, positions)
    if kernel > 1:
        # Neighbours are gathered by a product with zeros and ones: the same numbers, without a loop over rows.
        patches = patches @ neighbours(height, width, kernel, maps.device)
        patches = patches.view(rows, in_channels * kernel**2, positions)
    matrix = weight.flatten(2)
    alike = matrix.dtype == patches.dtype  # not where torch mixes precisions
    if bias is None and alike and faster_transposed(positions, maps.device):
        narrow: Tensor = _NarrowProduct.apply(matrix, patches)
        return narrow.view(1, rows * out_channels, height, width)
    product = torch.bmm(matrix, patches) if bias is None else torch.baddbmm(bias.unsqueeze(2), matrix, patches)
    return product.view(1, rows * out_channels, height, width)


def convolve_and_halve(maps: Tensor, weight: Tensor) -> Tensor:
    """Convolve as :func:`convolve`, then average 2 x 2 positions; an odd last row or column is averaged alone.

    Returns:
        ``(1, N * O, ceil(H / 2), ceil(W / 2))``.
    """
    if not halved_at_once(maps):
        return functional.avg_pool2d(convolve(maps, weight), 2, ceil_mode=True)
    # The mean of four neighbouring k x k windows is one (k + 1) x (k + 1) window with stride 2.
    rows, _, in_channels, kernel, _ = weight.shape
    wide = (weight.view(-1, kernel**2) @ widened(kernel, maps.device)).view(-1, in_channels, kernel + 1, kernel + 1)
    return by_groups(maps, wide, None, 2, kernel // 2, rows)


def halved_at_once(maps: Tensor) -> bool:
    """True where a convolution of the maps and the average pooling after it are computed as one convolution."""
    height, width = maps.shape[-2:]
    return height % 2 == 0 and width % 2 == 0 and height * width >= _LARGE_MAP


def doubled_at_once(maps: Tensor, weight: Tensor, height: int, width: int) -> bool:
    """True where doubling the maps and the convolution after it are computed as one transposed convolution."""
    positions = maps.shape[-2] * maps.shape[-1]
    even = height % 2 == 0 and width % 2 == 0
    return even and weight.shape[-1] > 1 and positions >= _DOUBLED_MAP and not as_products(len(weight), maps.device)


def faster_transposed(columns: int, device: torch.device) -> bool:
    """True where a product with so few columns is computed as that of the transposed matrices, at the price of copies."""
    return columns < _NARROW and device.type == "cpu"


def as_products(rows: int, device: torch.device) -> bool:
    """True where convolutions are computed as products of matrices: of many rows on a GPU.

    Its library takes the longer the more groups there are: of 64 up to four times as long as products, of 256 two to
    seven times (H200, forward and back, 16 to 64 channels of 8 x 8 to 32 x 32). Of few, calls cost more than they save.
    """
    return rows >= _MANY and device.type == "cuda"


def double_and_convolve(maps: Tensor, weight: Tensor, height: int, width: int) -> Tensor:
    """Repeat every position of the maps 2 x 2 (nearest upsampling), crop to ``height`` x ``width``, then :func:`convolve`.

    Returns:
        ``(1, N * O, height, width)``.
    """
    rows, _, in_channels, kernel, _ = weight.shape
    if not doubled_at_once(maps, weight, height, width):
        return convolve(double(maps, rows, height, width), weight)
    # Each position of a map is seen by two neighbours a side of the kernel, so what it adds to the result is one
    # (k + 1) x (k + 1) window with stride 2: the way back of convolve_and_halve, with sums in place of means.
    wide = weight.transpose(1, 2).reshape(-1, kernel**2) @ widened(kernel, maps.device, back=True)
    wide = wide.view(rows * in_channels, -1, kernel + 1, kernel + 1)
    return functional.conv_transpose2d(maps, wide, stride=2, padding=kernel // 2, groups=rows)


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


class _NarrowProduct(torch.autograd.Function):
    """Products of matrices ``(N, O, K)`` and few columns ``(N, K, P)``, whose transposed product is the faster one."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, columns: Tensor) -> Tensor:
        """Return ``(N, O, P)``."""
        ctx.save_for_backward(matrix, columns)
        return torch.bmm(columns.mT, matrix.mT).mT.contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the derivatives at matrices and columns."""
        matrix, columns = ctx.saved_tensors
        by_columns = torch.bmm(gradients[0].mT, matrix).mT if ctx.needs_input_grad[1] else None
        return torch.bmm(gradients[0], columns.mT), by_columns


def by_groups(maps: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int, rows: int) -> Tensor:
    """Convolve, a group a row.

    On a CPU torch convolves a small map of a single group by another algorithm, which rounds otherwise: a row alone would
    come out otherwise than among others. So it is told to take the one that it takes for several.
    """
    if as_products(rows, maps.device):
        return _by_products(maps, weight, bias, stride, padding, rows)
    if rows > 1 or maps.device.type != "cpu" or maps.dtype != torch.float32 or not torch.backends.mkldnn.is_available():
        return functional.conv2d(maps, weight, bias, stride=stride, padding=padding, groups=rows)
    ahead: Tensor = torch.ops.aten.mkldnn_convolution(maps, weight, bias, [padding] * 2, [stride] * 2, [1, 1], 1)
    return ahead


def _by_products(maps: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int, rows: int) -> Tensor:
    """Convolve, a group a row, as one product of matrices a row: weights times the maps' windows."""
    kernel = weight.shape[-1]
    padded = functional.pad(maps, (padding,) * 4)
    windows = padded.unfold(2, kernel, stride).unfold(3, kernel, stride)[0]  # (N * I, H, W, k, k)
    height, width = windows.shape[1:3]
    columns = windows.permute(0, 3, 4, 1, 2).reshape(rows, -1, height * width)
    matrix = weight.reshape(rows, -1, columns.shape[1])
    found = torch.bmm(matrix, columns) if bias is None else torch.baddbmm(bias.view(rows, -1, 1), matrix, columns)
    return found.view(1, -1, height, width)


def neighbours(height: int, width: int, kernel: int, device: torch.device) -> Tensor:
    """Return zeros and ones ``(H * W, k * k * H * W)`` that take a map to its zero-padded k x k neighbourhoods."""
    key = (height, width, kernel, device)
    if key not in _NEIGHBOURS:
        one_each = torch.eye(height * width).view(1, -1, height, width)
        patches = functional.unfold(one_each, kernel, padding=kernel // 2)
        _NEIGHBOURS[key] = patches.view(height * width, -1).to(device)
    return _NEIGHBOURS[key]


def widened(kernel: int, device: torch.device, *, back: bool = False) -> Tensor:
    """Return ``(k * k, (k + 1) * (k + 1))``, which takes a kernel to the mean of its four shifts by up to one position.

    On the way ``back`` it takes the kernel turned by half a turn to their sum.
    """
    key = (kernel, device, back)
    if key not in _WIDENED:
        across = torch.zeros(kernel, kernel + 1)
        for place in range(kernel):
            across[place, place : place + 2] = 0.5
        wide = torch.kron(across, across)
        _WIDENED[key] = (4 * wide.flip(0) if back else wide).to(device)
    return _WIDENED[key]
