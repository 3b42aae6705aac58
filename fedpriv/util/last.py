"""The result of the last call, kept as long as the very same object is asked for again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Last(Generic[K, V]):
    """A function that remembers its last result."""

    def __init__(self, make: Callable[[K], V]) -> None:
        self._make = make
        self._kept: tuple[K, V] | None = None

    def __call__(self, key: K) -> V:
        """Return the result for an object, which must not change."""
        if self._kept is None or self._kept[0] is not key:
            self._kept = key, self._make(key)
        return self._kept[1]
