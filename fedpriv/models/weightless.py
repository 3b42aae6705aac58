"""Networks without weights, built to learn their sizes: nothing is allocated, and nothing is drawn."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedpriv.models.shapes import ImageShape

SMALL = 64 * 2**20
"""Bytes of weights that are allocated without a second thought."""

SMALL_IMAGE = 3 * 256 * 256
"""Numbers of an image that even the widest layers take without a second thought."""

_DRAWS = (Tensor.normal_, Tensor.uniform_, Tensor.bernoulli_, Tensor.exponential_, Tensor.random_, Tensor.log_normal_)


@contextlib.contextmanager
def weightless() -> Iterator[None]:
    """Within the block, new tensors lie on the meta device and their random starts are left out.

    Torch draws on the meta device through its Python reference, for the sake of which it imports its compiler: a second of
    every process, for numbers that nobody keeps.
    """
    with torch.device("meta"), _NoDraws():
        yield


def one_way_forward(network: nn.Module, weights: int, image_shape: ImageShape) -> None:
    """Send one image through a network of :func:`weightless`, for what its forward hooks see.

    A small one is given zeros for weights: the meta device computes shapes by torch's Python reference, for the sake of
    which torch imports its compiler too.

    Args:
        network: becomes one that evaluates, of zeros if it is small.
        weights: bytes that its parameters would take.
        image_shape: channels, height, width.
    """
    device = torch.device("cpu" if weights <= SMALL and math.prod(image_shape) <= SMALL_IMAGE else "meta")
    with torch.no_grad():
        if device.type == "cpu":
            _fill(network)
        network.eval()(torch.zeros(1, *image_shape, device=device))


def _fill(network: nn.Module) -> None:
    """Put zeros in place of tensors without storage."""
    for module in network.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(
                module, name, nn.Parameter(torch.zeros(parameter.shape, dtype=parameter.dtype), requires_grad=False)
            )
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.zeros(buffer.shape, dtype=buffer.dtype))


class _NoDraws(TorchFunctionMode):
    """Draws into a tensor without storage return it as it is."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _DRAWS and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))
