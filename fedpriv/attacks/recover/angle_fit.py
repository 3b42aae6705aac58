"""Class means from the update of sparse blocks of an angle matrix, where linear equations alone do not determine them.

A diagonal has one equation for each coordinate, and its divisors q_j depend on the answer, so that solving in turn as in
:func:`fedpriv.attacks.recover.closed_form.means_of_angle` swings without rest. Representations after a ReLU are not
    negative,
which closes most of the gap: ||dA - sum_c r_c^T q_c(r)||^2 / ||dA||^2 is minimised over r_c = u_c^2 by L-BFGS from several
starts, and the lowest objective is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedpriv.attacks.recover.closed_form import AngleStep, ClassMeans

STARTS = 3
ITERATIONS = 300
FITTED = 1e-2
"""Relative residual below which a fit has settled."""


def fit_nonnegative(steps: Sequence[AngleStep], classes: Tensor, rng: torch.Generator) -> ClassMeans:
    """Fit class means that have no negative entries.

    Args:
        steps: one a round, all with equal blocks; the extractor is taken to stand still over them.
        classes: ``(m,)`` the classes that the client trained on.
        rng: draws the starts.
    """
    n_blocks, side, _ = steps[0].blocks.shape
    shape = (len(classes), n_blocks * side)
    n_classes = len(steps[0].head[1])
    truth = one_hot(classes, n_classes).double()
    fixed = [
        (s.blocks.double(), s.angle.double(), *(v.double() for v in s.head), s.shares.double()[:, None]) for s in steps
    ]
    scale = float(sum(blocks.square().sum() for blocks, *_ in fixed)) or 1.0

    def misfit(root: Tensor) -> Tensor:
        means = root.square()
        total = root.new_zeros(())
        for blocks, angle, weight, bias, shares in fixed:
            chances = ((means + means @ angle) @ weight.T + bias).softmax(1)
            push = shares * (chances - truth) @ weight
            parts = (vectors.reshape(len(classes), n_blocks, side) for vectors in (means, push))
            total = total + (blocks - torch.einsum("mks,mkt->kst", *parts)).square().sum()
        return total / scale

    best, least = torch.zeros(shape, dtype=torch.float64), math.inf
    for _ in range(STARTS):
        root = (0.3 + 0.5 * torch.rand(shape, generator=rng, dtype=torch.float64)).requires_grad_()
        found, value = _minimise(misfit, root)
        if value < least:
            best, least = found, value
    residual = math.sqrt(least) if math.isfinite(least) else math.inf
    return ClassMeans(best.square().float(), residual, math.inf, residual < FITTED)


def _minimise(misfit: Callable[[Tensor], Tensor], root: Tensor) -> tuple[Tensor, float]:
    optimiser = torch.optim.LBFGS(
        [root],
        max_iter=ITERATIONS,
        history_size=50,
        tolerance_grad=1e-14,
        tolerance_change=1e-16,
        line_search_fn="strong_wolfe",
    )

    def closure() -> float:
        optimiser.zero_grad()
        value = misfit(root)
        value.backward()
        return float(value.detach())

    optimiser.step(closure)
    found = root.detach()
    return found, float(misfit(found))
