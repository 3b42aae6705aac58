"""Mutual distillation of two models: divergences, and gradients clipped model by model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div

Reduction = Literal["batchmean", "mean"]


def divergence(student: Tensor, teacher: Tensor, reduction: Reduction = "batchmean") -> Tensor:
    """Return KL(teacher || student) of logits ``(b, C)``: over b, with ``mean`` over b C as in the libraries."""
    total = kl_div(student.log_softmax(1), teacher.log_softmax(1), reduction="sum", log_target=True)
    return total / (len(student) if reduction == "batchmean" else student.numel())


class _WithGradients(torch.autograd.Function):
    """A value whose gradients with respect to some parameters are given."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: Sequence[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Any, ...]:
        # Let go of, since torch copies a gradient that somebody else holds; a loss is gone back through once.
        gradients, ctx.gradients = ctx.gradients, None
        # Called on the loss itself the factor is 1, and a pass over all parameters is saved.
        return (None, None, *(gradients if float(outer) == 1 else [one * outer for one in gradients]))


def clip_each(loss: Tensor, modules: Sequence[nn.Module], norm: float) -> Tensor:
    """Return the scalar loss with a backward pass that clips each module's gradient to an L2 norm > 0."""
    groups = [list(module.parameters()) for module in modules]
    together = [parameter for group in groups for parameter in group]
    # The graph is kept: a defense may add a term to the loss that shares a part of it.
    found = torch.autograd.grad(loss, together, retain_graph=True, allow_unused=True, materialize_grads=True)
    clipped: list[Tensor] = []
    for group in groups:
        mine = found[len(clipped) : len(clipped) + len(group)]
        size = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(gradient) for gradient in mine]))
        clipped += [gradient * (norm / size) for gradient in mine] if float(size) > norm else mine
    result: Tensor = _WithGradients.apply(loss.detach(), clipped, *together)
    return result
