"""The order in which images, maps and weights lie in memory while a network is trained on a CPU.

Where the channels of a position lie together, pooling and narrow convolutions compare or add as many numbers as the
processor takes at once, and nothing is turned round on the way. What comes out differs in the last digits only. A network
is asked to work so where its own code cannot mind it, and where that was measured to be no slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

_LARGEST = 1_000_000
"""Weights of a convolution from which their gradient is slower in this order (the later stages of ResNets)."""

_KNOWN = ("torch.", "torchvision.", "fedpriv.")
"""Beginnings of the modules whose code is known not to look at maps as vectors without a copy."""


def takes_channels_last(module: nn.Module, loss: Callable[..., Tensor] | None = None) -> bool:
    """True where a network on the CPU is quicker, or as quick, on maps whose channels lie together.

    Networks of other packages, and what these do with images in a loss, are left as they are: ``maps.view(len(maps), -1)``,
    which many have, is an error there.
    """
    if loss is not None and not _known(getattr(loss, "func", loss)):
        return False
    convolutions = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    return (
        bool(convolutions)
        and all(layer.weight.device.type == "cpu" and layer.weight.numel() < _LARGEST for layer in convolutions)
        and all(_known(type(layer)) for layer in module.modules())
    )


def _known(code: object) -> bool:
    return f"{getattr(code, '__module__', '')}.".startswith(_KNOWN)


def channels_last(images: Tensor) -> Tensor:
    """Return images ``(n, c, h, w)`` as a copy whose channels lie together, also where there is only one."""
    _, channels, height, width = images.shape
    strides = (channels * height * width, 1, channels * width, channels)
    return images.new_empty_strided(images.shape, strides).copy_(images)


@contextmanager
def weights_channels_last(module: nn.Module) -> Iterator[None]:
    """Have the weights of a network's convolutions in the same order for a while; the parameters stay the same objects."""
    weights = [layer.weight for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    for weight in weights:
        weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    try:
        yield
    finally:
        for weight in weights:
            weight.data = weight.data.contiguous()
