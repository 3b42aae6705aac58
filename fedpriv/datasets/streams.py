"""Random draws from numpy's legacy or new generators; an integer seeds a legacy one.

The legacy generator is wanted where a division must equal that of other software, draw for draw.
"""

from __future__ import annotations

import numpy as np

from fedpriv.util.errors import UserError

Source = np.random.RandomState | np.random.Generator
Random = Source | int


def source_of(rng: Random) -> Source:
    """Return the generator itself, or the legacy one that an integer seeds."""
    if not isinstance(rng, int | np.integer):
        return rng
    if not 0 <= rng < 2**32:
        raise UserError(f"seed is {rng}: it must be 0..{2**32 - 1}")
    return np.random.RandomState(int(rng))


def integers(source: Source, low: int, high: int, n: int) -> list[int]:
    """Return ``n`` integers, each uniform in low..high-1."""
    draw = source.integers if isinstance(source, np.random.Generator) else source.randint
    return [int(value) for value in draw(low, high, n)]
