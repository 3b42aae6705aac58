"""Matrices: diagonal blocks, similarity of representations (kernels and their alignment), and the simplex.

Sources: for diagonal blocks, Yi, Yu, Wang, Liu, Li (FedRAL), equation 6; for kernels and their alignment, Kornblith,
Norouzi, Lee, Hinton, ICML 2019, section 3, as used by FedHeNN (Makhija, Han, Ho, Ghosh, ICML 2022, section 3.4), whose
short form of the linear case leaves out that representations must be centred first.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedpriv.util.errors import UserError

KernelName = Literal["linear", "rbf"]

SMALLEST = 1e-12
"""Stands for a vanishing norm: constant representations have alignment 0 and distance 2 rather than NaN."""


def diagonal_blocks(matrix: Tensor, n_blocks: int) -> Tensor:
    """Return a copy of the m blocks ``(m, d / m, d / m)`` on the diagonal of ``(d, d)``, first block first; m divides d."""
    check_divides(n_blocks, len(matrix))
    side = len(matrix) // n_blocks
    return matrix.reshape(n_blocks, side, n_blocks, side).diagonal(dim1=0, dim2=2).movedim(-1, 0).contiguous()


def dense(blocks: Tensor) -> Tensor:
    """Return the ``(d, d)`` matrix with blocks ``(m, b, b)`` on its diagonal and zeros elsewhere, d = m b."""
    matrix: Tensor = torch.block_diag(*blocks)
    return matrix


def published_blocks(width: int) -> int:
    """Return the m whose blocks have the published side, 5, or the next smaller one that divides the width d.

    In table 4 of FedRAL, at d = 500, 2,500 scalars are blocks of 5, and 2,000 blocks of 4.

    >>> published_blocks(500), published_blocks(512)
    (100, 128)
    """
    return next(width // side for side in range(5, 0, -1) if width % side == 0)


def check_divides(n_blocks: int, width: int) -> None:
    """Refuse a number of blocks that does not divide the width."""
    if n_blocks < 1 or width % n_blocks:
        fitting = sorted((m for m in range(1, width + 1) if width % m == 0), key=lambda m: abs(m - n_blocks))
        raise UserError(
            f"{n_blocks} diagonal blocks do not divide a matrix of width {width}; "
            f"numbers nearby that do: {', '.join(map(str, sorted(fitting[:3])))}"
        )


def linear_kernel(features: Tensor) -> Tensor:
    """Return the inner products A A^T ``(L, L)`` of representations ``(L, d)``."""
    return features @ features.T


def rbf_kernel(features: Tensor, scale: float = 0.5) -> Tensor:
    """Return exp(-||a_p - a_q||^2 / (2 s^2)) ``(L, L)`` of representations ``(L, d)``.

    ``scale`` is s over the median distance between two different rows, through which no gradient flows.
    """
    products = features @ features.T
    lengths = products.diagonal()
    squares = (lengths[:, None] + lengths - 2 * products).clamp(min=0)
    off = ~torch.eye(len(features), dtype=torch.bool, device=features.device)
    median = squares.detach()[off].median().clamp(min=SMALLEST)
    return torch.exp(-squares / (2 * scale**2 * median))


def kernel(features: Tensor, name: KernelName, scale: float = 0.5) -> Tensor:
    """Return the kernel ``(L, L)`` of representations ``(L, d)`` by name."""
    return linear_kernel(features) if name == "linear" else rbf_kernel(features, scale)


def centred(matrix: Tensor) -> Tensor:
    """Return H K H ``(L, L)`` with H = I - 1 1^T / L: rows and columns that sum to zero."""
    return matrix - matrix.mean(0) - matrix.mean(1, keepdim=True) + matrix.mean()


def alignment(values: Tensor, other: Tensor) -> Tensor:
    """Return CKA(K, K') = HSIC(K, K') / sqrt(HSIC(K, K) HSIC(K', K')) of symmetric kernels ``(L, L)``, in [0, 1]."""
    left, right = centred(values), centred(other)
    # Scaled by the largest entry first, so that squares neither overflow nor vanish in float32.
    left = left / left.detach().abs().max().clamp(min=SMALLEST)
    right = right / right.detach().abs().max().clamp(min=SMALLEST)
    norms = (left.square().sum() * right.square().sum()).clamp(min=SMALLEST)
    return (left * right).sum() / norms.sqrt()


def procrustes_distance(values: Tensor, fixed: Tensor) -> Tensor:
    """Return min over orthogonal Q of ||A - B Q||_F^2 = 2 - 2 ||A^T B||_*, of ``(L, d)`` that are centred and of norm one.

    Source: Ding, Denain, Steinhardt, NeurIPS 2021, section 2. No gradient flows through B, ``fixed``.
    """
    shifted = values - values.mean(0), fixed.detach() - fixed.detach().mean(0)
    left, right = (matrix / torch.linalg.vector_norm(matrix).clamp(min=SMALLEST) for matrix in shifted)
    if len(right) < right.shape[1]:  # with B^T = U R, A^T B has the singular values of A^T R^T, of L columns only
        right = torch.linalg.qr(right.T).R.T
    distance: Tensor = 2 - 2 * torch.linalg.svdvals(left.T @ right).sum()
    return distance


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

    H is symmetric and positive definite; all float64. 300 accelerated projected gradients (Beck and Teboulle, 2009), with
    steps by the largest eigenvalue.
    """
    step = 1 / torch.linalg.matrix_norm(curvature, ord=2)[:, None].clamp_min(1e-300)
    result = torch.full_like(slope, 1 / slope.shape[1])
    ahead, momentum = result, 1.0
    for _ in range(300):
        down = torch.einsum("tij,tj->ti", curvature, ahead) - slope
        new = nearest_distribution(ahead - step * down)
        after = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        ahead = new + (momentum - 1) / after * (new - result)
        result, momentum = new, after
    return result
