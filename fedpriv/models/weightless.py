"""Networks on the meta device, built to learn their sizes: nothing is allocated, and nothing is drawn."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_DRAWS = (Tensor.normal_, Tensor.uniform_, Tensor.bernoulli_, Tensor.exponential_, Tensor.random_, Tensor.log_normal_)


@contextlib.contextmanager
def weightless() -> Iterator[None]:
    """Within the block, new tensors lie on the meta device and their random starts are left out.

    Torch draws normal numbers there by code that imports its compiler: a second of every process.
    """
    with torch.device("meta"), _NoDraws():
        yield


class _NoDraws(TorchFunctionMode):
    """Draws into a tensor without storage return it as it is."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _DRAWS and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))
