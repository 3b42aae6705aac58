"""One face for numpy's two kinds of random generators."""

from __future__ import annotations

import numpy as np

from fedpriv.util.errors import UserError

Random = np.random.RandomState | np.random.Generator | int


class Stream:
    """Random draws from a legacy or a new generator; an integer seeds a legacy one.

    The legacy generator is wanted where a division must equal that of other software, draw for draw.

    Attributes:
        source: the generator that the draws come from.

    Raises:
        UserError: an integer that the legacy generator cannot take as a seed.
    """

    def __init__(self, source: Random) -> None:
        if isinstance(source, int | np.integer):
            if not 0 <= source < 2**32:
                raise UserError(f"seed is {source}: it must be 0..{2**32 - 1}")
            source = np.random.RandomState(int(source))
        self.source: np.random.RandomState | np.random.Generator = source

    def shuffle(self, values: np.ndarray) -> None:
        """Shuffle ``values`` ``(n,)`` in place."""
        self.source.shuffle(values)

    def permutation(self, n: int) -> np.ndarray:
        """Return 0..n-1 in random order."""
        return self.source.permutation(n)

    def dirichlet(self, alpha: np.ndarray) -> np.ndarray:
        """Return one draw ``(k,)`` from the Dirichlet distribution with concentrations ``alpha`` ``(k,)``."""
        return self.source.dirichlet(alpha)

    def integers(self, low: int, high: int, n: int) -> list[int]:
        """Return ``n`` integers, each uniform in low..high-1."""
        if isinstance(self.source, np.random.Generator):
            drawn = self.source.integers(low, high, n)
        else:
            drawn = self.source.randint(low, high, n)
        return [int(value) for value in drawn]
