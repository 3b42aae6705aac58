"""Truncated singular value decompositions of a model's parameters, by share of energy kept.

Source: Wu, Wu, Lyu, Huang, Xie: Communication-efficient federated learning via knowledge distillation (FedKD), Nature
Communications 2022: keep the fewest singular values whose squares sum to a share T of all squares. A matrix a x b then
travels as t (a + 1 + b) scalars. A convolution kernel (o, i, h, w) is decomposed slice by slice, h x w, with one t for
all slices, from their pooled energy.

Unlike in the reference library, t is at least 1, and a parameter travels as it is where its factors would be no smaller.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

LEFT, VALUES, RIGHT = ".u", ".s", ".v"


def rank_for_energy(values: Tensor, energy: float) -> int:
    """Return the fewest of values ``(..., r)``, largest first and pooled, whose squares reach a share in (0, 1] of all."""
    squares = values.double().square().reshape(-1, values.shape[-1]).sum(0)
    reached = (squares.cumsum(0) < energy * squares.sum()).sum()
    return min(int(reached) + 1, len(squares))


def factorise(tensor: Tensor, energy: float) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return factors ``(..., a, t)``, ``(..., t)``, ``(..., t, b)`` of the last two axes; None where they are no smaller."""
    if tensor.dim() < 2 or len(tensor) == 1 or _size(tensor, 1) >= tensor.numel() or not tensor.isfinite().all():
        return None
    factors = _decompose(tensor, energy)
    return None if _size(tensor, factors[1].shape[-1]) >= tensor.numel() else factors


def _decompose(tensor: Tensor, energy: float | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the thin singular value decomposition, largest value first, or as much of it as a share of energy takes.

    A matrix goes through the eigenvectors U of its smaller Gram matrix W W^T in double precision, twice as fast as the
    general routine; V = W^T U / s is exact enough, as the product U s V^T = U U^T W does not depend on it.
    """
    if tensor.dim() > 2:
        left, values, right = torch.linalg.svd(tensor, full_matrices=False)
        return _leading((left, values, right), values.shape[-1] if energy is None else rank_for_energy(values, energy))
    if tensor.shape[0] > tensor.shape[1]:
        left, values, right = _decompose(tensor.T, energy)
        return right.T.contiguous(), values, left.T.contiguous()
    wide = tensor.double()
    squares, vectors = torch.linalg.eigh(_gram(wide))
    values = squares.clamp(min=0).sqrt().flip(0)
    rank = len(values) if energy is None else rank_for_energy(values.to(tensor.dtype), energy)
    sought = len(values) if _counted() else rank  # what is counted does not depend on the values
    products = vectors.flip(1)[:, :sought].T @ wide
    values, left = values[:rank], vectors.flip(1)[:, :rank].contiguous()
    right = products[:rank] / values.clamp(min=torch.finfo(torch.float32).tiny)[:, None]
    return left.to(tensor.dtype), values.to(tensor.dtype), right.to(tensor.dtype)


def _leading(factors: tuple[Tensor, Tensor, Tensor], rank: int) -> tuple[Tensor, Tensor, Tensor]:
    left, values, right = factors
    return left[..., :rank].contiguous(), values[..., :rank].contiguous(), right[..., :rank, :].contiguous()


def _counted() -> bool:
    """True while operations are watched or transformed as torch computes them."""
    return bool(torch._C._len_torch_dispatch_stack()) or torch._C._are_functorch_transforms_active()


def _gram(matrix: Tensor) -> Tensor:
    """Return ``W W^T``; on a CPU by numpy, which computes half of it and mirrors that."""
    if matrix.device.type != "cpu" or _counted():
        return matrix @ matrix.T
    rows = matrix.detach().numpy()
    return torch.from_numpy(rows @ rows.T)


def _size(tensor: Tensor, rank: int) -> int:
    rows, columns = tensor.shape[-2:]
    return tensor.numel() // (rows * columns) * rank * (rows + 1 + columns)


def compress(state: Mapping[str, Tensor], energy: float) -> dict[str, Tensor]:
    """Return every parameter as ``name.u``, ``name.s``, ``name.v``, or as ``name`` where factors save nothing."""
    factors: dict[str, Tensor] = {}
    for name, value in state.items():
        parts = factorise(value, energy)
        if parts is None:
            factors[name] = value.clone()
        else:
            factors |= {name + end: part for end, part in zip((LEFT, VALUES, RIGHT), parts, strict=True)}
    return factors


def leading(tensor: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return factors ``(..., a, t)``, ``(..., t)``, ``(..., t, b)`` of the t largest singular values; NaN counts as zero."""
    return _leading(_decompose(tensor.nan_to_num()), rank)


def recover(factors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the parameters behind what :func:`compress` returned, ``(u s) v`` each."""
    state: dict[str, Tensor] = {}
    for name, value in factors.items():
        stem, end = name[:-2], name[-2:]
        if end not in (LEFT, VALUES, RIGHT) or not all(stem + other in factors for other in (LEFT, VALUES, RIGHT)):
            state[name] = value
        elif end == LEFT:
            state[stem] = (value * factors[stem + VALUES][..., None, :]) @ factors[stem + RIGHT]
    return state
