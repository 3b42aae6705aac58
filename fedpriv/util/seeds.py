"""Seeds: every random draw comes from a generator derived from the run's seed and from what the draw is for."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import torch


def derive_seed(*parts: int | str) -> int:
    """Return a seed in [0, 2**63) that depends on every part and on their order.

    >>> derive_seed(0, "client", 3) == derive_seed(0, "client", 3)
    True
    >>> derive_seed(0, "client", 3) == derive_seed(0, "client", 4)
    False
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(*parts: int | str) -> torch.Generator:
    """Return a CPU generator seeded by :func:`derive_seed`."""
    return torch.Generator().manual_seed(derive_seed(*parts))


_has_gpu = functools.cache(torch.cuda.is_available)


@contextlib.contextmanager
def global_seed(seed: int) -> Iterator[None]:
    """Run a block with torch's global generators seeded, and put the CPU's back afterwards.

    Layers initialise themselves and draw dropout masks from the global generators; this is the only door to them.
    """
    kept = torch.default_generator.get_state()
    try:
        torch.default_generator.manual_seed(seed)
        if _has_gpu():  # without one, torch.manual_seed would write down the whole stack of calls for the day there is
            torch.cuda.manual_seed_all(seed)
        yield
    finally:
        torch.default_generator.set_state(kept)


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
