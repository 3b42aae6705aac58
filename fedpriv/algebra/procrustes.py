"""Orthogonal Procrustes distance between two sets of representations of the same inputs.

Source: Ding, Denain, Steinhardt: Grounding Representation Similarity with Statistical Testing, NeurIPS 2021, section 2, with
the preparation that it prescribes: both sets are centred and divided by their Frobenius norm.
"""

from __future__ import annotations

import torch
from torch import Tensor

SMALLEST = 1e-12
"""Stands for a vanishing norm: constant representations are at distance 2 rather than NaN."""


def procrustes_distance(moving: Tensor, fixed: Tensor) -> Tensor:
    """Return min over orthogonal Q of ||A - B Q||_F^2 = 2 - 2 ||A^T B||_*, in [0, 2].

    A nuclear norm, unlike canonical correlations, has a bounded gradient: no singular values are divided by.

    Args:
        moving: representations ``(L, d)``; gradients flow through them.
        fixed: representations ``(L, d)`` of the same inputs; a constant.
    """
    one, other = prepared(moving), prepared(fixed.detach())
    if len(other) < other.shape[1]:
        # With B^T = Q R the singular values of A^T B are those of A^T R^T, which has L columns only.
        other = torch.linalg.qr(other.T).R.T
    distance: Tensor = 2 - 2 * torch.linalg.svdvals(one.T @ other).sum()
    return distance


def prepared(features: Tensor) -> Tensor:
    """Return representations ``(L, d)`` with columns of mean zero and Frobenius norm one."""
    centred = features - features.mean(0)
    made: Tensor = centred / torch.linalg.vector_norm(centred).clamp(min=SMALLEST)
    return made
