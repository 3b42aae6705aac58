"""Mutual distillation of two models: divergences, and gradients clipped model by model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div


def divergence(student: Tensor, teacher: Tensor) -> Tensor:
    """Return KL(teacher || student) of logits ``(b, C)``, mean over the batch."""
    total = kl_div(student.log_softmax(1), teacher.log_softmax(1), reduction="sum", log_target=True)
    return total / len(student)


class _WithGradients(torch.autograd.Function):
    """A value whose gradients with respect to some parameters are given."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: Sequence[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Any, ...]:
        gradients, ctx.gradients = ctx.gradients, None  # torch copies a gradient that has another reference
        # Called on the loss itself the factor is 1, and a pass over all parameters is saved.
        return (None, None, *(gradients if float(outer) == 1 else [gradient * outer for gradient in gradients]))


def clip_each(loss: Tensor, modules: Sequence[nn.Module], norm: float) -> Tensor:
    """Return the scalar loss with a backward pass that clips each module's gradient to an L2 norm > 0."""
    groups = [list(module.parameters()) for module in modules]
    together = [parameter for group in groups for parameter in group]
    # The graph is kept: a defense may add a term to the loss that shares a part of it.
    slopes = torch.autograd.grad(loss, together, retain_graph=True, allow_unused=True, materialize_grads=True)
    clipped: list[Tensor] = []
    for group in groups:
        mine = slopes[len(clipped) : len(clipped) + len(group)]
        size = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(gradient) for gradient in mine]))
        clipped += [gradient * (norm / size) for gradient in mine] if float(size) > norm else mine
    result: Tensor = _WithGradients.apply(loss.detach(), clipped, *together)
    return result
