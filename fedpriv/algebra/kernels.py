"""Similarity matrices of representations, and centred kernel alignment between two of them.

Source: Kornblith, Norouzi, Lee, Hinton: Similarity of Neural Network Representations Revisited, ICML 2019, section 3;
as used by FedHeNN (Makhija, Han, Ho, Ghosh: Architecture Agnostic Federated Learning for Neural Networks, ICML 2022,
section 3.4). FedHeNN's short form of the linear case leaves out that the representations must be centred first.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

KernelName = Literal["linear", "rbf"]

SMALLEST = 1e-12
"""Stands for a vanishing norm: constant representations have alignment 0 rather than NaN."""


def linear_kernel(features: Tensor) -> Tensor:
    """Return the inner products A A^T ``(L, L)`` of representations ``(L, d)``."""
    return features @ features.T


def rbf_kernel(features: Tensor, scale: float = 0.5) -> Tensor:
    """Return exp(-||a_p - a_q||^2 / (2 s^2)) ``(L, L)`` of representations ``(L, d)``.

    Args:
        features: ``(L, d)``, L >= 2.
        scale: s as a multiple of the median distance between two different rows, > 0. The median counts as a constant:
            no gradient flows through it. Published values with this convention lie between 0.2 and 1.
    """
    products = features @ features.T
    lengths = products.diagonal()
    squares = (lengths[:, None] + lengths - 2 * products).clamp(min=0)
    off = ~torch.eye(len(features), dtype=torch.bool, device=features.device)
    median = squares.detach()[off].median().clamp(min=SMALLEST)
    return torch.exp(-squares / (2 * scale**2 * median))


def kernel(features: Tensor, name: KernelName, scale: float = 0.5) -> Tensor:
    """Return the kernel ``(L, L)`` of representations ``(L, d)`` by name; ``scale`` is that of :func:`rbf_kernel`."""
    return linear_kernel(features) if name == "linear" else rbf_kernel(features, scale)


def centred(matrix: Tensor) -> Tensor:
    """Return H K H ``(L, L)`` with H = I - 1 1^T / L: rows and columns that sum to zero."""
    return matrix - matrix.mean(0) - matrix.mean(1, keepdim=True) + matrix.mean()


def alignment(one: Tensor, other: Tensor) -> Tensor:
    """Return CKA(K, K') = HSIC(K, K') / sqrt(HSIC(K, K) HSIC(K', K')) of symmetric kernels ``(L, L)``, in [0, 1].

    HSIC(K, K') = tr(K H K' H) / (L - 1)^2, H as in :func:`centred`; the divisor cancels.
    """
    left, right = centred(one), centred(other)
    # Scaled by the largest entry first, so that squares neither overflow nor vanish in float32.
    left = left / left.detach().abs().max().clamp(min=SMALLEST)
    right = right / right.detach().abs().max().clamp(min=SMALLEST)
    norms = (left.square().sum() * right.square().sum()).clamp(min=SMALLEST)
    return (left * right).sum() / norms.sqrt()
