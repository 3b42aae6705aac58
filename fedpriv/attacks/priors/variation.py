"""Total variation of images, with its derivative written out: a third of the kernels that autograd takes for it.

kornia's total variation is another one: the sum of absolute differences, without a root over both directions.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_TINY = 1e-8


def total_variation(images: Tensor, beta: float = 2.0, weight: float = 1.0) -> Tensor:
    """Return the mean over positions of ``((right - here)^2 + (below - here)^2)^(beta / 2)`` of each image.

    Differences over the last row and column count as zero; channels are summed. It can be differentiated once.

    Args:
        images: ``(N, c, h, w)``.
        beta: 1 is isotropic total variation, 2 the squared gradient. Must be positive.
        weight: times which it is returned.

    Returns:
        ``(N,)``.
    """
    found: Tensor = _TotalVariation.apply(images, beta, weight)
    return found


class _TotalVariation(torch.autograd.Function):
    """Forward and backward by hand."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, beta: float, weight: float) -> Tensor:
        """Return the values, and keep the differences."""
        across, down = images[..., 1:] - images[..., :-1], images[..., 1:, :] - images[..., :-1, :]
        # The derivative of a root is infinite at zero; flat places are common.
        squared = torch.full_like(images, 0.0 if beta == 2.0 else _TINY, memory_format=torch.contiguous_format)
        squared[..., :-1].addcmul_(across, across)
        squared[..., :-1, :].addcmul_(down, down)
        powered = squared if beta == 2.0 else squared.sqrt() if beta == 1.0 else squared.pow(beta / 2)
        ctx.save_for_backward(across, down, powered if beta == 1.0 else squared)
        each = weight / (images.shape[-2] * images.shape[-1])
        ctx.beta, ctx.scale = beta, beta * each
        at_rest = 0.0 if beta == 2.0 else -weight * images.shape[1] * _TINY ** (beta / 2)
        return torch.add(_constant(at_rest, images.dtype, images.device), powered.sum((1, 2, 3)), alpha=each)

    @staticmethod
    @once_differentiable  # type: ignore[misc,untyped-decorator,unused-ignore]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Return the derivative by the images."""
        across, down, kept = ctx.saved_tensors
        share, scale = gradient.view(-1, 1, 1, 1), ctx.scale
        # Of q^(beta / 2) by a difference d, q being the sum of squares: beta q^(beta / 2 - 1) d.
        if ctx.beta == 1.0:
            steep = share / kept
        else:
            steep = share.expand_as(kept) if ctx.beta == 2.0 else share * kept.pow(ctx.beta / 2 - 1)
        found = torch.zeros_like(kept)
        for difference, own, ahead, behind in (
            (across, steep[..., :-1], found[..., 1:], found[..., :-1]),
            (down, steep[..., :-1, :], found[..., 1:, :], found[..., :-1, :]),
        ):
            ahead.addcmul_(difference, own, value=scale)
            behind.addcmul_(difference, own, value=-scale)
        return found, None, None


@functools.cache
def _constant(value: float, kind: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((), value, dtype=kind, device=device)
