"""How an inversion compares a candidate's representation with a vector that a defense changed: one number a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor
from torch.nn import functional

from fedpriv.attacks.optim.objectives import relative_feature_distance

Match = Literal["vector", "direction", "nonzero", "pruned"]
"""What of an uploaded vector is believed.

- ``vector``: everything.
- ``direction``: all but its length, which ``clip`` changes.
- ``nonzero``: the coordinates that are not zero; the others were not sent (``diagonal``).
- ``pruned``: the coordinates that are not zero, and that the others are no larger than the smallest of them (``prune``).
"""

_TINY = 1e-12

Distance = Callable[[Tensor, Tensor], Tensor]
"""(representations ``(N, d)`` of the candidates, uploaded vectors ``(N, d)``) -> ``(N,)``."""


def direction_distance(features: Tensor, wanted: Tensor) -> Tensor:
    """Return ``||g(x') / ||g(x')|| - r / ||r|| ||^2``, twice one minus the cosine: blind to the length of both.

    Args:
        features: ``(N, d)`` representations of the candidates.
        wanted: ``(N, d)`` observed representations.

    Returns:
        ``(N,)`` in [0, 4].
    """
    found, aim = (functional.normalize(values, dim=1, eps=_TINY) for values in (features, wanted))
    return (found - aim).square().sum(1)


def nonzero_distance(features: Tensor, wanted: Tensor) -> Tensor:
    """Return the relative feature distance over the coordinates of ``wanted`` that are not zero; arguments as above."""
    return relative_feature_distance(features * (wanted != 0), wanted)


def pruned_distance(features: Tensor, wanted: Tensor) -> Tensor:
    """Return the relative feature distance in which a coordinate that is zero in ``wanted`` costs only what it exceeds.

    Pruning keeps the largest entries, so each entry that was dropped is at most as large as the smallest one that was kept.

    Arguments and result as of :func:`nonzero_distance`.
    """
    kept = wanted != 0
    least = wanted.abs().masked_fill(~kept, float("inf")).amin(1, keepdim=True).nan_to_num(posinf=0.0)
    beyond = (features.abs() - least).clamp_min(0) * ~kept
    return relative_feature_distance(features * kept, wanted) + beyond.square().sum(1) / wanted.square().sum(
        1
    ).clamp_min(_TINY)


DISTANCES: dict[Match, Distance] = {
    "vector": relative_feature_distance,
    "direction": direction_distance,
    "nonzero": nonzero_distance,
    "pruned": pruned_distance,
}
