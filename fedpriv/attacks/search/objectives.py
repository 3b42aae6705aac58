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


def squared_length(wanted: Tensor) -> Tensor:
    """Return ``||r||^2`` of each observed representation ``(N, d)``, which distances are divided by."""
    return wanted.square().sum(1).clamp_min(_TINY)


def relative_feature_distance(features: Tensor, wanted: Tensor, square: Tensor | None = None) -> Tensor:
    """Return ``||g(x') - r||^2 / ||r||^2`` of each row ``(N,)`` of candidates' and observed representations ``(N, d)``.

    So every target has the same scale: ReLU features of large norm would swamp a prior. ``square`` is
    :func:`squared_length` of ``wanted``, where that is known already; likewise below.
    """
    apart = functional.mse_loss(features, wanted, reduction="none").sum(1)
    return apart / (squared_length(wanted) if square is None else square)


def direction_distance(features: Tensor, wanted: Tensor, square: Tensor | None = None) -> Tensor:
    """Return ``||g(x') / ||g(x')|| - r / ||r|| ||^2`` in [0, 4], twice one minus the cosine: blind to both lengths."""
    first, second = (functional.normalize(values, dim=1, eps=_TINY) for values in (features, wanted))
    return (first - second).square().sum(1)


def nonzero_distance(features: Tensor, wanted: Tensor, square: Tensor | None = None) -> Tensor:
    """Return the relative feature distance over the coordinates of ``wanted`` that are not zero."""
    return relative_feature_distance(features * (wanted != 0), wanted, square)


def pruned_distance(features: Tensor, wanted: Tensor, square: Tensor | None = None) -> Tensor:
    """Return the relative feature distance in which a coordinate that is zero in ``wanted`` costs only what it exceeds.

    Pruning keeps the largest entries, so each entry that was dropped is at most as large as the smallest one that was kept.
    """
    kept = wanted != 0
    least = wanted.abs().masked_fill(~kept, float("inf")).amin(1, keepdim=True).nan_to_num(posinf=0.0)
    beyond = (features.abs() - least).clamp_min(0) * ~kept
    square = squared_length(wanted) if square is None else square
    return relative_feature_distance(features * kept, wanted, square) + beyond.square().sum(1) / square


DISTANCES: dict[Match, Callable[[Tensor, Tensor, Tensor | None], Tensor]] = {
    "vector": relative_feature_distance,
    "direction": direction_distance,
    "nonzero": nonzero_distance,
    "pruned": pruned_distance,
}
"""(representations ``(N, d)`` of the candidates, uploaded vectors ``(N, d)``, their squared lengths or None) -> ``(N,)``."""
