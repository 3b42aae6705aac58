"""Networks as peers have them: of torch's own layers."""

from __future__ import annotations

import copy
from typing import TypeVar

from torch import nn

from fedpriv.models.pooling import MaxPool

N = TypeVar("N", bound=nn.Module)


def of_ordinary_layers(network: N) -> N:
    """Return a copy of a network in which torch's own layers stand for ours, which give the same numbers sooner."""
    copied = copy.deepcopy(network)
    for within in list(copied.modules()):
        for name, layer in within.named_children():
            if isinstance(layer, MaxPool):
                window = layer.kernel_size, layer.stride, layer.padding, layer.dilation
                setattr(within, name, nn.MaxPool2d(*window, layer.return_indices, layer.ceil_mode))
    return copied
