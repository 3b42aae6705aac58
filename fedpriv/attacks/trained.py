"""Networks of the attacker's own (substitutes for extractors, decoders), trained once and kept, and rows computed once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar, cast

from torch import Tensor

T = TypeVar("T")

_FEW = 2**20
"""Numbers in rows that are kept: 4 MiB."""


class Same:
    """A key that equals another of the very same object (a tensor, an extractor), and keeps the object alive."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        """True for the same object."""
        return isinstance(other, Same) and self._value is other._value

    def __hash__(self) -> int:
        """Hash of the identity."""
        return hash(id(self._value))


class Trained:
    """Everything trained so far, by all that determines it; one object serves all attacks on a run."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, object] = {}

    def get(self, key: Hashable, train: Callable[[], T]) -> T:
        """Return the network of a key, which is all that the result depends on, training it the first time."""
        if key not in self._kept:
            self._kept[key] = train()
        return cast(T, self._kept[key])

    def rows(self, key: Hashable, compute: Callable[[], Tensor]) -> Tensor:
        """Return rows of a key; many numbers (over 2^20) are not kept, and computed each time."""
        result = cast(Tensor, self._kept[key]) if key in self._kept else compute()
        if result.numel() <= _FEW:
            self._kept[key] = result
        return result
