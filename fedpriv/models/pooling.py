"""Max pooling as torch has it, to the last bit, in a fraction of its time on a CPU.

Torch's kernel for maps that lie channel by channel compares one number at a time; that for maps whose channels lie together
compares as many as the processor takes at once. So maps are turned round, pooled and turned back, or, where nothing is
differentiated, the largest of their quarters is taken.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_LEAST = 2**13
"""Numbers from which turning maps round is worth it."""

Window = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], bool]
"""Kernel, stride, padding and dilation, two numbers each, and whether sizes are rounded up."""


class MaxPool(nn.MaxPool2d):
    """``torch.nn.MaxPool2d``, quicker on a CPU; gives and passes back the same numbers."""

    def forward(self, maps: Tensor) -> Any:
        """Return the pooled maps."""
        if self.return_indices or not _worth_turning(maps) or torch.compiler.is_compiling():
            return super().forward(maps)
        window = window_of(self)
        if not torch.is_grad_enabled() and window == _HALVING:
            return _largest_of_quarters(maps)
        return _Pooling.apply(maps, window)[0]


def window_of(module: nn.MaxPool2d) -> Window:
    """Return the window of a layer."""
    sides = (module.kernel_size, module.stride, module.padding, module.dilation)
    kernel, stride, padding, dilation = ((side, side) if isinstance(side, int) else tuple(side) for side in sides)
    return kernel, stride, padding, dilation, module.ceil_mode


def max_pooled(maps: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """Return maps ``(n, c, h, w)`` pooled, and where in each ``(h, w)`` the largest lay; in the layout of the maps."""
    pool = torch.ops.aten.max_pool2d_with_indices
    if not _worth_turning(maps):
        plain: tuple[Tensor, Tensor] = pool(maps, *window)
        return plain
    values, places = pool(maps.contiguous(memory_format=torch.channels_last), *window)
    return values.contiguous(), places.contiguous()


def _worth_turning(maps: Tensor) -> bool:
    return maps.device.type == "cpu" and maps.dim() == 4 and maps.numel() >= _LEAST and maps.is_contiguous()


_HALVING: Window = ((2, 2), (2, 2), (0, 0), (1, 1), False)


def _largest_of_quarters(maps: Tensor) -> Tensor:
    height, width = maps.shape[2] // 2 * 2, maps.shape[3] // 2 * 2
    above, below = maps[:, :, :height:2, :width], maps[:, :, 1:height:2, :width]
    of_two = (torch.maximum(rows[..., ::2], rows[..., 1::2]) for rows in (above, below))
    return torch.maximum(*of_two)


class _Pooling(torch.autograd.Function):
    """Pooled maps and places; torch's own gradient, which can be differentiated again."""

    @staticmethod
    def forward(maps: Tensor, window: Window) -> tuple[Tensor, Tensor]:
        return max_pooled(maps, window)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Window], output: tuple[Tensor, Tensor]) -> None:
        maps, ctx.window = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(maps, output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        maps, places = ctx.saved_tensors
        back = torch.ops.aten.max_pool2d_with_indices_backward
        return back(gradients[0].contiguous(), maps, *ctx.window, places), None

    @staticmethod
    def vmap(info: Any, in_dims: Any, maps: Tensor, window: Window) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        several = maps.movedim(in_dims[0], 0)
        values, places = _Pooling.apply(several.flatten(0, 1).contiguous(), window)
        size = several.shape[:2]
        return (values.unflatten(0, size), places.unflatten(0, size)), (0, 0)
