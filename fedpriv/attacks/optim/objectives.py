"""How far a candidate is from what was observed, one number a row."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

_TINY = 1e-12


def relative_feature_distance(features: Tensor, wanted: Tensor) -> Tensor:
    """Return ``||g(x') - r||^2 / ||r||^2`` of each row.

    Dividing by the target's norm gives every target the same scale: ReLU features of large norm would swamp a prior.

    Args:
        features: ``(N, d)`` representations of the candidates.
        wanted: ``(N, d)`` observed representations.

    Returns:
        ``(N,)``.
    """
    return (features - wanted).square().sum(1) / wanted.square().sum(1).clamp_min(_TINY)


def gradient_distance(gradients: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Tensor:
    """Return the squared L2 distance of one row's gradients, summed over all parameters (DLG, Zhu et al. 2019, eq. 4).

    Args:
        gradients: the candidate's gradient by parameter name.
        wanted: the observed gradient by the same names.

    Returns:
        A scalar.
    """
    return torch.stack([(gradients[name] - wanted[name]).square().sum() for name in wanted]).sum()
