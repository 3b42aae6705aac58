"""The tensors that a piece of work reads and did not make itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Reads(TorchDispatchMode):
    """Watches operations within its block, derivatives among them.

    Attributes:
        tensors: what operations were given and none of them had made before, each once.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tensors: list[Tensor] = []
        self._known: set[int] = set()
        self._made: list[Tensor] = []  # held, so that no other tensor is given their memory meanwhile

    def __exit__(self, *given: Any) -> None:
        """Let go of what was made."""
        super().__exit__(*given)  # type: ignore[no-untyped-call]
        self._made = []

    def __torch_dispatch__(
        self, operation: Any, types: Sequence[type], given: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        """Do an operation, and note what is new to it."""
        named = named or {}
        for tensor in _of((given, named)):
            if _place(tensor) not in self._known:
                self._known.add(_place(tensor))
                self.tensors.append(tensor)
        found = operation(*given, **named)
        made = _of(found)
        self._known.update(map(_place, made))
        self._made += made
        return found


def _of(values: Any) -> list[Tensor]:
    return [one for one in tree_leaves(values) if isinstance(one, torch.Tensor)]


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
