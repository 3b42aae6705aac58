"""Distances from a candidate's representation to the vector that was uploaded, one number a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor
from torch.nn import functional

Match = Literal["vector", "direction", "nonzero", "pruned"]
"""The part of an uploaded vector that is believed, where a defense may have changed it.

- ``vector``: everything.
- ``direction``: all but its length, which ``clip`` changes.
- ``nonzero``: the coordinates that are not zero; the others were not sent (``diagonal``).
- ``pruned``: the coordinates that are not zero, and that the others are no larger than the smallest of them (``prune``).
"""

_TINY = 1e-12


def relative_feature_distance(features: Tensor, wanted: Tensor) -> Tensor:
    """Return ``||g(x') - r||^2 / ||r||^2`` of each row ``(N,)`` of candidates' and observed representations ``(N, d)``.

    Dividing by the target's norm gives every target the same scale: ReLU features of large norm would swamp a prior.
    """
    return functional.mse_loss(features, wanted, reduction="none").sum(1) / _square(wanted)


def direction_distance(features: Tensor, wanted: Tensor) -> Tensor:
    """Return ``||g(x') / ||g(x')|| - r / ||r|| ||^2`` in [0, 4], twice one minus the cosine: blind to both lengths."""
    found, aim = (functional.normalize(values, dim=1, eps=_TINY) for values in (features, wanted))
    return (found - aim).square().sum(1)


def nonzero_distance(features: Tensor, wanted: Tensor) -> Tensor:
    """Return the relative feature distance over the coordinates of ``wanted`` that are not zero."""
    return relative_feature_distance(features * (wanted != 0), wanted)


def pruned_distance(features: Tensor, wanted: Tensor) -> Tensor:
    """Return the relative feature distance in which a coordinate that is zero in ``wanted`` costs only what it exceeds.

    Pruning keeps the largest entries, so each entry that was dropped is at most as large as the smallest one that was kept.
    """
    kept = wanted != 0
    least = wanted.abs().masked_fill(~kept, float("inf")).amin(1, keepdim=True).nan_to_num(posinf=0.0)
    beyond = (features.abs() - least).clamp_min(0) * ~kept
    return relative_feature_distance(features * kept, wanted) + beyond.square().sum(1) / _square(wanted)


def _square(wanted: Tensor) -> Tensor:
    return wanted.square().sum(1).clamp_min(_TINY)


DISTANCES: dict[Match, Callable[[Tensor, Tensor], Tensor]] = {
    "vector": relative_feature_distance,
    "direction": direction_distance,
    "nonzero": nonzero_distance,
    "pruned": pruned_distance,
}
"""(representations ``(N, d)`` of the candidates, uploaded vectors ``(N, d)``) -> ``(N,)``."""
