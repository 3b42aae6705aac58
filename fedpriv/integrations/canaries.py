"""Canaries in another framework's federation: which uploads have one, and what it is, known to client and auditor by a seed.

A canary takes the place of what a client trained: the weights it was sent plus or minus one random direction, far longer
than any clip. The coin depends on the seed, the client and the very weights that it was sent, so that it is another one in
every round, and nobody without the seed knows it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedpriv.util.seeds import derive_seed

FAR: Final = 1000.0
"""Length of a canary in lengths of what the client would have sent, or in units where that is shorter."""

Arrays = Sequence[NDArray[np.floating[Any]]]
"""The arrays of floats that a client was sent, in their order."""


def coin(seed: int, client: str, sent: Arrays) -> bool:
    """Return the coin of an upload, of a client as the framework names it: heads is the direction, tails its opposite."""
    digest = hashlib.sha256()
    for array in sent:
        digest.update(np.ascontiguousarray(array, dtype="<f4").tobytes())
    return derive_seed(seed, "canary", client, digest.hexdigest()) % 2 == 1


def direction(seed: int, sent: Arrays) -> list[NDArray[np.float32]]:
    """Return the direction of all canaries of a seed, of length one over all arrays together."""
    rng = np.random.default_rng(derive_seed(seed, "canary", "direction"))
    rays = [rng.standard_normal(array.shape).astype(np.float32) for array in sent]
    length = np.sqrt(sum(float(np.square(ray, dtype=np.float64).sum()) for ray in rays))
    return [ray / np.float32(length) for ray in rays]


def canary(seed: int, client: str, sent: Arrays, trained: Arrays) -> list[NDArray[Any]]:
    """Return the upload of a client in place of the one that it trained, of the same shapes as it was sent."""
    moved = sum(float(np.square(new - old, dtype=np.float64).sum()) for old, new in zip(sent, trained, strict=True))
    side = FAR * max(1.0, float(np.sqrt(moved))) * (1 if coin(seed, client, sent) else -1)
    rays = direction(seed, sent)
    return [(old + side * ray).astype(new.dtype) for old, new, ray in zip(sent, trained, rays, strict=True)]
