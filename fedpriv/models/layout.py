"""Channels-last order of images and weights while a network is trained on a CPU: faster, and equal but for last digits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

_LARGEST = 1_000_000
"""Weights of a convolution from which their gradient is slower in this order (the later stages of ResNets)."""

_KNOWN = ("torch.", "torchvision.", "fedpriv.")
"""Modules whose code does not view maps as vectors without a copy, which is an error in this order."""


def takes_channels_last(module: nn.Module, loss: Callable[..., Tensor]) -> bool:
    """True where a network on the CPU is no slower in this order, and its code and that of the loss cannot mind."""
    convolutions = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    return (
        bool(convolutions)
        and all(layer.weight.device.type == "cpu" and layer.weight.numel() < _LARGEST for layer in convolutions)
        and all(
            f"{getattr(code, '__module__', '')}.".startswith(_KNOWN)
            for code in (getattr(loss, "func", loss), *map(type, module.modules()))
        )
    )


def channels_last(images: Tensor) -> Tensor:
    """Return images ``(n, c, h, w)`` as a channels-last copy, also where there is one channel."""
    _, channels, height, width = images.shape
    strides = (channels * height * width, 1, channels * width, channels)
    return images.new_empty_strided(images.shape, strides).copy_(images)


@contextmanager
def weights_channels_last(module: nn.Module) -> Iterator[None]:
    """Have the weights of a network's convolutions in this order for a while; the parameters stay the same objects."""
    weights = [layer.weight for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    for weight in weights:
        weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    try:
        yield
    finally:
        for weight in weights:
            weight.data = weight.data.contiguous()
