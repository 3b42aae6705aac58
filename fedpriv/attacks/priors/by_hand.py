"""Layers of N independent networks with their derivatives written out: on a CPU, what autograd does between them counts.

Maps and weights are as in :mod:`fedpriv.attacks.priors.grouped`. A layer returns its result and the way back: from the
derivative by the result, which it may write to, to the derivative by the maps. What a weight's derivative is, it tells on
the way: so a step against it can be taken while it is still in a cache.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from fedpriv.attacks.optim.row_adam import Taker
from fedpriv.attacks.priors import grouped
from fedpriv.attacks.priors.grouped import doubled_at_once, faster_transposed, halved_at_once, neighbours, widened
from fedpriv.models.products import onednn_product, quicker_here
from fedpriv.util.watched import watched

Back = Callable[[Tensor], Tensor]
"""From the derivative by a layer's result to that by its maps."""

_EPSILON = 1e-5
"""Beside the variance in batch norm, as in torch."""

_MANY_KERNELS = 2**13
"""Kernels from which oneDNN widens them sooner."""

_LARGE_PRODUCT = 2**21
"""Multiplications of a row from which oneDNN multiplies sooner, one row after the other."""

_VERY_NARROW = 4
"""Columns up to which a product is faster if each lies in one piece."""

_FOLDED_MAP = 256
"""Positions up to which windows are summed up sooner by torch than shift by shift."""

_FEW_CHANNELS = 8
"""Channels up to which a convolution is faster as a product with windows: the library works on sixteen at a time."""

_aten = torch.ops.aten
_normalise_back, _leaky_back = _aten.native_batch_norm_backward.default, _aten.leaky_relu_backward.grad_input
_convolution, _convolution_back = _aten.convolution.default, _aten.convolution_backward.default
_pool_back, _upsample_back = _aten.avg_pool2d_backward.default, _aten.upsample_nearest2d_backward.default


_OWN_ROW = 2**16
"""Entries of a row's weight from which its derivative is told a row at a time: then it is in a cache, as the weight is."""


class Weight:
    """A parameter of the N networks.

    Args:
        values: ``(N, ...)``, with no derivative asked of them; they may change in place.
        place: its place among all.
        taker: who is told the derivative by it.

    Attributes:
        flat: the values, flattened.
        by_row: whether derivatives are told a row at a time.
    """

    def __init__(self, values: Tensor, place: int, taker: Taker) -> None:
        self.values, self.flat = values, values.view(-1)
        self.by_row = taker.by_row and values.dim() == 5 and values.numel() // values.shape[0] >= _OWN_ROW
        self._place, self._taker = place, taker

    def tell(self, gradient: Tensor) -> None:
        """Tell the derivative by it, of as many entries in the same order."""
        self._taker.take(self._place, gradient)

    def tell_row(self, row: int, gradient: Tensor) -> None:
        """Tell the derivative by a row's part, ``(O, K)``, whose memory may be written to afterwards."""
        self._taker.take(self._place, gradient, row)


def done_by_hand(maps: Tensor) -> bool:
    """True where layers are computed here: for float32 on a CPU, unless operations are counted or compiled."""
    plain = maps.device.type == "cpu" and maps.dtype == torch.float32
    return plain and not (torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling() or watched())


def normalise(maps: Tensor, scale: Weight, shift: Weight) -> tuple[Tensor, Back]:
    """Batch norm in training mode: each channel of each row by its own mean and variance over the map."""
    size, across = maps.shape[1], maps.shape[2] * maps.shape[3]
    # Group norm of groups of one channel is the same, and torch has its mean and variance in a third of the time.
    found, mean, spread = torch.native_group_norm(maps, scale.flat, shift.flat, 1, size, across, size, _EPSILON)

    def back(delta: Tensor) -> Tensor:
        by_maps: Tensor
        by_maps, by_scale, by_shift = _normalise_back(
            delta, maps, scale.flat, None, None, mean.view(-1), spread.view(-1), True, _EPSILON, [True, True, True]
        )
        scale.tell(by_scale)
        shift.tell(by_shift)
        return by_maps

    return found, back


def activate(maps: Tensor, scale: Weight, shift: Weight, slope: float) -> tuple[Tensor, Back]:
    """Batch norm, then LeakyReLU."""
    found, before = normalise(maps, scale, shift)
    functional.leaky_relu_(found, slope)

    def back(delta: Tensor) -> Tensor:
        return before(_leaky_back(delta, found, slope, True, grad_input=delta))

    return found, back


def convolve(maps: Tensor, weight: Weight, bias: Weight | None = None, *, ends: bool = False) -> tuple[Tensor, Back]:
    """Convolve with stride 1 and zero padding that keeps the size; nothing asks for derivatives by maps it ``ends`` at."""
    rows, _, channels, kernel, _ = weight.values.shape
    positions = maps.shape[-2] * maps.shape[-1]
    if kernel == 1:
        return _product(maps, maps.view(rows, channels, positions), weight, bias, lambda columns: columns, ends)
    if positions <= grouped.SMALL_MAP:
        return _gathered(maps, weight, ends)
    if channels <= _FEW_CHANNELS:
        return _windowed(maps, weight, ends)
    return _grouped(maps, weight, weight.values.flatten(0, 1), (1, kernel // 2), weight.tell, ends)


def convolve_and_halve(maps: Tensor, weight: Weight, *, ends: bool = False) -> tuple[Tensor, Back]:
    """Convolve as :func:`convolve`, then average 2 x 2 positions; an odd last row or column is averaged alone."""
    if not halved_at_once(maps):
        whole, before = convolve(maps, weight, ends=ends)

        def back(delta: Tensor) -> Tensor:
            return before(_pool_back(delta, whole, [2, 2], [2, 2], [0, 0], True, True, None))

        return functional.avg_pool2d(whole, 2, ceil_mode=True), back
    _, _, channels, kernel, _ = weight.values.shape
    wider = widened(kernel, maps.device)
    wide = _by(weight.values.view(-1, kernel**2), wider).view(-1, channels, kernel + 1, kernel + 1)

    def narrow(by_wide: Tensor) -> None:
        weight.tell(_by(by_wide.view(-1, (kernel + 1) ** 2), wider.T))

    return _grouped(maps, weight, wide, (2, kernel // 2), narrow, ends)


def double(maps: Tensor, rows: int, height: int, width: int) -> tuple[Tensor, Back]:
    """Repeat every position of the maps 2 x 2 (nearest upsampling) and crop to ``height`` x ``width``."""
    before = [rows, maps.shape[1] // rows, *maps.shape[-2:]]
    over = (0, 2 * before[3] - width, 0, 2 * before[2] - height)

    def back(delta: Tensor) -> Tensor:
        whole = functional.pad(delta, over) if any(over) else delta
        whole = whole.view(rows, -1, *whole.shape[-2:])
        found: Tensor = _upsample_back(whole, list(whole.shape[-2:]), before, 2.0, 2.0)
        return found.view_as(maps)

    return grouped.double(maps, rows, height, width).contiguous(), back  # cropped; older group norms of torch need it


def double_and_convolve(maps: Tensor, weight: Weight, height: int, width: int) -> tuple[Tensor, Back]:
    """Double the maps, then :func:`convolve`."""
    rows, outputs, channels, kernel, _ = weight.values.shape
    if not doubled_at_once(maps, weight.values, height, width):
        doubled, first = double(maps, rows, height, width)
        found, second = convolve(doubled, weight)
        return found, lambda delta: first(second(delta))
    wider = widened(kernel, maps.device, back=True)
    turned = weight.values.transpose(1, 2).reshape(-1, kernel**2)
    wide = _by(turned, wider).view(rows * channels, outputs, kernel + 1, kernel + 1)

    def narrow(by_wide: Tensor) -> None:
        by_turned = _by(by_wide.view(-1, (kernel + 1) ** 2), wider.T)
        weight.tell(by_turned.view(rows, channels, outputs, kernel**2).transpose(1, 2).contiguous())

    return _grouped(maps, weight, wide, (2, kernel // 2), narrow, ends=False, transposed=True)


def _product(
    maps: Tensor, columns: Tensor, weight: Weight, bias: Weight | None, gather_back: Back, ends: bool
) -> tuple[Tensor, Back]:
    """Multiply ``(N, K, P)`` by the weights of each row."""
    matrix = weight.values.flatten(2)
    large = matrix.shape[1] * columns.shape[1] * columns.shape[2] >= _LARGE_PRODUCT and quicker_here()
    transposed = faster_transposed(columns.shape[2], maps.device)
    if bias is not None:
        found = torch.baddbmm(bias.values.unsqueeze(2), matrix, columns)
    elif large:
        pairs = zip(matrix.unbind(), columns.mT.unbind(), strict=True)
        found = torch.stack([onednn_product(own, inputs) for own, inputs in pairs])
    elif columns.shape[2] <= _VERY_NARROW:
        found = torch.bmm(matrix, columns.mT.contiguous().mT)
    elif transposed:
        found = torch.bmm(columns.mT, matrix.mT).mT.contiguous()
    else:
        found = torch.bmm(matrix, columns)

    def back(delta: Tensor) -> Tensor:
        delta = delta.view(found.shape)
        by_maps = maps
        if weight.by_row:
            return gather_back(_back_by_row(weight, matrix, delta, columns, large)).reshape(maps.shape).contiguous()
        if not ends:
            by_columns = torch.bmm(delta.mT, matrix).mT if transposed else torch.bmm(matrix.mT, delta)
            by_maps = gather_back(by_columns).reshape(maps.shape).contiguous()
        weight.tell(torch.bmm(delta, columns.mT))
        if bias is not None:
            bias.tell(delta.sum(2))
        return by_maps

    return found.view(1, -1, *maps.shape[-2:]), back


def _back_by_row(weight: Weight, matrix: Tensor, delta: Tensor, columns: Tensor, large: bool) -> Tensor:
    """Return the derivative by the columns, and tell that by the weights, row by row: what is read twice is in a cache."""
    turned = delta.mT.contiguous()
    found = turned.new_empty(turned.shape[0], turned.shape[1], matrix.shape[2])
    gradient = matrix.new_empty(matrix.shape[1:])
    for row, own in enumerate(matrix.unbind()):
        if large:
            found[row] = onednn_product(turned[row], own.T)
            gradient = onednn_product(delta[row], columns[row])
        else:
            torch.mm(turned[row], own, out=found[row])
            torch.mm(delta[row], columns[row].T, out=gradient)
        weight.tell_row(row, gradient)
    return found.mT


def _gathered(maps: Tensor, weight: Weight, ends: bool) -> tuple[Tensor, Back]:
    """Convolve a small map as a product with what a product with zeros and ones gathers."""
    rows, _, channels, kernel, _ = weight.values.shape
    positions = maps.shape[-2] * maps.shape[-1]
    height, width = maps.shape[-2:]
    gather = neighbours(height, width, kernel, maps.device)
    columns = (maps.view(-1, positions) @ gather).view(rows, -1, positions)

    def gather_back(by_columns: Tensor) -> Tensor:
        # A product a row: of all at once, the order of the sums would depend on how many there are.
        return torch.bmm(by_columns.reshape(rows, channels, -1), gather.T.expand(rows, -1, -1))

    return _product(maps, columns, weight, None, gather_back, ends)


def _windowed(maps: Tensor, weight: Weight, ends: bool) -> tuple[Tensor, Back]:
    """Convolve maps of few channels as a product with their windows."""
    rows, _, channels, kernel, _ = weight.values.shape
    height, width = maps.shape[-2:]
    padded = functional.pad(maps[0], (kernel // 2,) * 4)
    columns = padded.unfold(1, height, 1).unfold(2, width, 1)  # (N * C, k, k, H, W): every shift of the map
    columns = columns.reshape(rows, channels * kernel**2, height * width)

    def gather_back(by_columns: Tensor) -> Tensor:
        if height * width <= _FOLDED_MAP:
            return functional.fold(by_columns, (height, width), kernel, padding=kernel // 2)
        shifted = by_columns.reshape(rows * channels, kernel, kernel, height, width)
        found = torch.zeros_like(padded)
        for down in range(kernel):
            for across in range(kernel):
                found[:, down : down + height, across : across + width] += shifted[:, down, across]
        edge = kernel // 2
        return found[:, edge : edge + height, edge : edge + width].reshape(maps.shape)

    return _product(maps, columns, weight, None, gather_back, ends)


def _grouped(
    maps: Tensor,
    weight: Weight,
    kernels: Tensor,
    stride_and_padding: tuple[int, int],
    tell: Callable[[Tensor], None],
    ends: bool,
    *,
    transposed: bool = False,
) -> tuple[Tensor, Back]:
    """Convolve by kernels ``(N * O, I, k, k)`` of each row, ``(N * I, O, k, k)`` where ``transposed``."""
    rows = weight.values.shape[0]
    stride, padding = ([one, one] for one in stride_and_padding)
    where = (stride, padding, [1, 1], transposed, [0, 0], rows)
    found = (
        _convolution(maps, kernels, None, *where)
        if transposed
        else grouped.by_groups(maps, kernels, None, *stride_and_padding, rows)
    )

    def back(delta: Tensor) -> Tensor:
        by_maps, by_kernels, _ = _convolution_back(delta, maps, kernels, None, *where, [not ends, True, False])
        tell(by_kernels)
        return maps if ends else by_maps

    return found, back


def _by(values: Tensor, matrix: Tensor) -> Tensor:
    """Return the product of many short rows with a small matrix."""
    if values.shape[0] >= _MANY_KERNELS and quicker_here():
        return onednn_product(values, matrix.T)
    return values @ matrix
