"""The probability simplex: its nearest points, and least squares in it."""

from __future__ import annotations

import torch
from torch import Tensor

_STEPS = 300


def nearest_distribution(values: Tensor) -> Tensor:
    """Return the points of the probability simplex that are nearest to ``values`` ``(..., C)`` in the L2 norm.

    Source: Duchi, Shalev-Shwartz, Singer, Chandra, ICML 2008, figure 1.
    """
    exact = values.double()
    falling = exact.sort(dim=-1, descending=True).values
    excess = (falling.cumsum(-1) - 1) / torch.arange(1, values.shape[-1] + 1, device=values.device)
    last = (falling > excess).sum(-1, keepdim=True) - 1
    return (exact - excess.gather(-1, last)).clamp(min=0).to(values.dtype)


def least_squares_in_simplex(curvature: Tensor, slope: Tensor) -> Tensor:
    """Return the points x ``(T, m)`` of the simplex with the lowest x H x' / 2 - x b', for H ``(T, m, m)``, b ``(T, m)``.

    H is symmetric and positive definite; all float64. Accelerated projected gradients (Beck and Teboulle, 2009), with
    steps by the largest eigenvalue.
    """
    step = 1 / torch.linalg.matrix_norm(curvature, ord=2)[:, None].clamp_min(1e-300)
    found = torch.full_like(slope, 1 / slope.shape[1])
    ahead, momentum = found, 1.0
    for _ in range(_STEPS):
        down = torch.einsum("tij,tj->ti", curvature, ahead) - slope
        new = nearest_distribution(ahead - step * down)
        after = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        ahead = new + (momentum - 1) / after * (new - found)
        found, momentum = new, after
    return found
