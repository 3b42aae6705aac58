"""Representation entanglement: one weighted sum instead of many representations.

Source: FedRE: A Representation Entanglement Framework for Model-Heterogeneous Federated Learning. A client's samples
get weights w_i >= 0 that sum to one; it uploads r~ = sum_i w_i r_i and y~ = sum_i w_i onehot(y_i). The six mechanisms
differ only in how the weights are drawn. With m classes present and n_c samples of class c:

==== ================================ ==========================================
name draws                            w_i
==== ================================ ==========================================
RSR  one sample i*                    1 for i*, else 0
VAR  none                             1 / n
RAR  one u_i per sample               u_i / sum_j u_j
RSP  one class c*                     1 / n_c* within c*, else 0
VAP  none                             1 / (m n_c)
RAP  one u_c per class                u_c / (n_c sum_j u_j), c the class of i
==== ================================ ==========================================
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

Mechanism = Literal["RSR", "VAR", "RAR", "RSP", "VAP", "RAP"]
Distribution = Literal["uniform", "gaussian", "laplace"]
Normalisation = Literal["absolute", "signed", "softmax"]
MECHANISMS: tuple[str, ...] = get_args(Mechanism)

_SMALLEST_SUM = 1e-6


def normalised_draws(
    size: int,
    generator: torch.Generator,
    distribution: Distribution = "uniform",
    normalisation: Normalisation = "absolute",
) -> Tensor:
    """Draw weights ``(size,)`` float32 that sum to one.

    The paper does not say what becomes of negative draws: ``absolute`` takes magnitudes; ``signed`` divides the raw
    draws by their sum, and draws again while that is nearly zero.
    """
    while True:
        if distribution == "uniform":
            draws = torch.rand(size, generator=generator)
        elif distribution == "gaussian":
            draws = torch.randn(size, generator=generator)
        else:
            uniform = torch.rand(size, generator=generator) - 0.5
            draws = -uniform.sign() * torch.log1p(-2 * uniform.abs().clamp(max=0.5 - 1e-7))
        if normalisation == "softmax":
            return torch.softmax(draws, 0)
        if normalisation == "absolute":
            draws = draws.abs()
        total = draws.sum()
        if total.abs() > _SMALLEST_SUM:
            return draws / total


def sample_weights(
    labels: Tensor,
    mechanism: Mechanism,
    generator: torch.Generator,
    distribution: Distribution = "uniform",
    normalisation: Normalisation = "absolute",
) -> Tensor:
    """Draw the weights of one upload, ``(n,)`` float32 that sum to one, for labels ``(n,)`` int64, n >= 1."""
    n = len(labels)
    classes, of_class, counts = torch.unique(labels.cpu(), return_inverse=True, return_counts=True)
    if mechanism == "RSR":
        chosen = torch.randint(n, (1,), generator=generator)
        return torch.zeros(n).index_fill_(0, chosen, 1.0)
    if mechanism == "VAR":
        return torch.full((n,), 1.0 / n)
    if mechanism == "RAR":
        return normalised_draws(n, generator, distribution, normalisation)
    if mechanism == "RSP":
        class_weights = torch.zeros(len(classes))
        class_weights[torch.randint(len(classes), (1,), generator=generator)] = 1.0
    elif mechanism == "VAP":
        class_weights = torch.full((len(classes),), 1.0 / len(classes))
    else:
        class_weights = normalised_draws(len(classes), generator, distribution, normalisation)
    spread: Tensor = (class_weights / counts)[of_class]
    return spread


def entangle(features: Tensor, labels: Tensor, weights: Tensor, n_classes: int) -> tuple[Tensor, Tensor]:
    """Return r~ ``(d,)`` and y~ ``(C,)`` of representations ``(n, d)``, labels ``(n,)`` and weights ``(n,)``."""
    weights = weights.to(features)
    encoding = torch.zeros(n_classes, device=features.device).index_add_(0, labels, weights)
    return weights @ features, encoding
