"""Derivatives by the images that a network is shown, of convolutions of few channels: in half of torch's time on a CPU.

Torch's library computes the derivatives by sixteen channels at once, of which an image has three. The columns of a kernel
are taken for channels, too: a convolution with one column gives what each of them adds, and those are summed up, each
moved by as many columns as it stands aside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.models.products import quick_products
from fedpriv.util.watched import watched

_MOST = 16
"""Channels times columns up to which this is worth it: as many as the library computes at once."""

_LEAST = 2**20
"""Multiplications of a derivative from which it is."""


@contextmanager
def quick_derivatives(network: nn.Module) -> Iterator[None]:
    """Have derivatives by what a network is shown computed quicker for a while, where its weights ask for none."""
    layers = [layer for layer in network.modules() if type(layer) is nn.Conv2d and _narrow(layer)]
    for layer in layers:
        layer.forward = partial(_forward, layer)  # type: ignore[method-assign]
    try:
        with quick_products(network):
            yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)


def quickened(extractor: Callable[[Tensor], Tensor], network: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return an extractor, a network or a method of one, that computes its derivatives so."""

    def called(images: Tensor) -> Tensor:
        with quick_derivatives(network):
            return extractor(images)

    return called


def _narrow(layer: nn.Conv2d) -> bool:
    plain = layer.groups == 1 and layer.padding_mode == "zeros" and isinstance(layer.padding, tuple)
    whole = set(layer.stride) == set(layer.dilation) == {1}
    few = layer.in_channels * layer.kernel_size[1] <= _MOST and layer.in_channels < layer.out_channels
    return plain and whole and few and all(map(int.__lt__, layer.padding, layer.kernel_size))  # type: ignore[arg-type]


def _forward(layer: nn.Conv2d, maps: Tensor) -> Tensor:
    weight, bias, padding = layer.weight, layer.bias, layer.padding
    alike = maps.device.type == "cpu" and maps.dim() == 4 and maps.dtype == weight.dtype == torch.float32
    asked = torch.is_grad_enabled() and maps.requires_grad and not weight.requires_grad
    many = maps.numel() * weight[0, 0].numel() * weight.shape[0] >= _LEAST
    if not (alike and asked and many) or torch.is_autocast_enabled("cpu") or watched() or torch.compiler.is_compiling():
        return type(layer).forward(layer, maps)
    found: Tensor = _Convolution.apply(maps, weight, bias, padding)
    return found


class _Convolution(torch.autograd.Function):
    """A convolution, differentiable by the maps as often as is asked for."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]) -> Tensor:
        """Return the convolved maps."""
        ctx.save_for_backward(weight)
        ctx.size, ctx.padding = maps.shape[2:], padding
        return functional.conv2d(maps, weight, bias, padding=padding)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the derivative by the maps."""
        (weight,) = ctx.saved_tensors
        (_, width), (down, aside) = ctx.size, ctx.padding
        outputs, channels, high, wide = weight.shape
        columns = weight.flip(2).permute(1, 3, 0, 2).reshape(channels * wide, outputs, high, 1)
        added = functional.conv2d(delta, columns, padding=(high - 1 - down, 0)).unflatten(1, (channels, wide))
        found = delta.new_zeros(*added.shape[:2], added.shape[3], width + 2 * aside)
        for column in range(wide):
            found[..., column : column + delta.shape[3]] += added[:, :, column]
        return found[..., aside : aside + width].contiguous(), None, None, None
