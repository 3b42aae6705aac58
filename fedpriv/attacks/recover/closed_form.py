"""Representations and class means from what training did to a linear layer, by linear algebra.

A linear layer z = W r + b under cross-entropy has for one image the gradients dW = delta r^T and db = delta, where delta =
softmax(z) - onehot(y). One step on one image therefore gives r away exactly, from any row of dW and its entry of db.
A step on more images sums such terms. Put together by class, with n_c the share of class c in the batch, p_c its
predicted probabilities and r_c its mean representation,

    dW = D P,    D = [n_c (p_c - e_c)]  (C x m),    P = [r_c]  (m x d),

up to the spread of p within a class. W and b are known before and after, so p_c follows from r_c, and D and P are solved
for in turn until they agree. Two things keep that steady: only the rows of classes that are there are used, since in
the others the spread of p is all there is; and each such row of D is made to sum to its entry of db, as it must, which
takes the large entries of D from the upload rather than from a guess. Columns of D sum to zero over all classes, so that
a client that holds all C of them gives away contrasts only: a common shift of its class means remains open.

An angle matrix A with z = W (r + r A) + b (row vectors) has dA = sum_c r_c^T q_c, q_c = n_c (p_c - e_c) W. A block of
side s on its diagonal holds s such equations for every coordinate of r_c, so it yields up to min(s, C - 1) class means.

Sources: Geiping et al. 2020, proposition 3.1 (one image); Zhao et al. 2020 (the label); Fan et al. 2025, Maui (features
from head gradients). Class means and the angle matrix are derived here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ITERATIONS = 300
SETTLED = 1e-9
"""Relative change of the class means below which they have settled."""

_EXACT = 1e-5
"""Relative distance of all rows below which a solution is the one; float32 updates leave about 1e-7."""

_TINY = 1e-12

_HEAD_CUT, _ANGLE_CUT = 1e-2, 1e-6
"""Singular values below this share of the largest are taken for zero."""


def single_representation(weight: Tensor, bias: Tensor) -> Tensor:
    """Return the representation ``(d,)`` behind a one-image gradient, ``(C, d)`` and ``(C,)``: r = dW^T db / ||db||^2.

    Every row k gives r = dW_k / db_k; this is their mean weighted by db_k^2, which is the least-squares answer. Any multiple
    of the gradient will do. Where that of the bias is all zero so is the answer.
    """
    return weight.T @ bias / bias.square().sum().clamp(min=torch.finfo(bias.dtype).tiny)


def single_label(bias: Tensor) -> int:
    """Return the label behind a one-image gradient of the bias ``(C,)``: its only negative entry."""
    return int(bias.argmin())


def class_shares(bias: Tensor, probabilities: Tensor, steps: int) -> Tensor:
    """Return the frequency of each class in training, in units of whole batches ``(C,)``; it sums to about ``steps``.

    Summed over classes db_k = sum_c n_c p_ck - n_k, where typical ``probabilities`` ``(C,)`` p that are alike for all
    classes, for example the softmax of the bias, leave n_k = steps p_k - db_k.
    """
    return (steps * probabilities - bias).clamp(min=0)


@dataclass(frozen=True)
class HeadStep:
    """One round's gradient of a head, summed over its steps.

    Attributes:
        weight: ``(C, d)``.
        bias: ``(C,)``.
        heads: (weight ``(C, d)``, bias ``(C,)``) before and after the round, or one of them.
        shares: ``(m,)`` n_c, times the number of steps, of the m classes that are solved for.
    """

    weight: Tensor
    bias: Tensor
    heads: tuple[tuple[Tensor, Tensor], ...]
    shares: Tensor


@dataclass(frozen=True)
class AngleStep:
    """One round's gradient of the blocks of an angle matrix, summed over its steps.

    Attributes:
        blocks: ``(k, s, s)`` of the diagonal blocks, k s = d.
        angle: ``(d, d)`` the matrix that the round began with.
        head: (weight ``(C, d)``, bias ``(C,)``) of the client.
        shares: ``(m,)`` n_c, times the number of steps, of the m classes that are solved for.
    """

    blocks: Tensor
    angle: Tensor
    head: tuple[Tensor, Tensor]
    shares: Tensor


@dataclass(frozen=True)
class ClassMeans:
    """Recovered class means.

    Attributes:
        means: ``(m, d)`` float32.
        residual: relative distance ||dW - D P|| / ||dW|| that is left, of a head in the rows of all classes; about zero
            where the equations hold.
        condition: condition number of what was inverted (the largest over blocks); infinite where class means beyond
            contrasts are not determined, and the answer is the shortest one.
        settled: whether the iteration came to rest.
        counts: ``(m,)`` int64 images of which each is the mean, where the means are known for these images' up to rounding;
            else None.
        distance: ``(m,)`` float32 expected distance of each mean from the true one; None where none is expected.
    """

    means: Tensor
    residual: float
    condition: float
    settled: bool
    counts: Tensor | None = None
    distance: Tensor | None = None

    @property
    def error(self) -> float:
        """Relative error of the means that the residual allows for; infinite where they are not determined."""
        return self.residual * self.condition if self.settled and math.isfinite(self.condition) else math.inf


def means_of_head(steps: Sequence[HeadStep], classes: Tensor) -> ClassMeans:
    """Recover means of the classes ``(m,)`` from updates of a head in rounds over which the extractor stands still."""
    wanted = torch.cat([step.weight.double()[classes] for step in steps])
    everything = torch.cat([step.weight.double() for step in steps])

    def errors(means: Tensor, step: HeadStep) -> Tensor:
        chances = torch.stack([(means @ w.double().T + b.double()).softmax(1) for w, b in step.heads]).mean(0)
        return _errors(chances, classes, step.shares.double()).T

    def mixing(means: Tensor) -> Tensor:
        parts = []
        for step in steps:
            matrix = errors(means, step)[classes]
            own = step.bias.double()[classes] - matrix.sum(1)
            parts.append(matrix + torch.diag(own))
        return torch.cat(parts)

    def solve(means: Tensor) -> Tensor:
        found: Tensor = torch.linalg.pinv(mixing(means), rtol=_HEAD_CUT) @ wanted
        return found

    def misfit(means: Tensor) -> float:
        pushed = torch.cat([errors(means, step) for step in steps]) @ means
        left = float((everything - pushed).norm() / everything.norm().clamp(min=1e-300))
        return left if math.isfinite(left) else math.inf

    # The rows of these classes may have a second solution; those of all others have nothing to do with it.
    slopes = torch.stack([step.bias.double()[classes] for step in steps]).sum(0)
    pushes = wanted.view(len(steps), len(classes), -1).sum(0)
    ratios = torch.where(slopes.abs() > _TINY, 1 / slopes, 0.0)[:, None] * pushes
    attempts: list[tuple[float, Tensor, bool]] = []
    for start in (torch.zeros_like(ratios), ratios):
        found, rests = _settle(solve, start)
        attempts.append((misfit(found), found, rests))
        if attempts[-1][0] < _EXACT:
            break
    residual, means, settled = min(attempts, key=lambda attempt: attempt[0])
    return ClassMeans(means.float(), residual, _condition(mixing(means), _HEAD_CUT), settled)


def means_of_angle(steps: Sequence[AngleStep], classes: Tensor) -> ClassMeans:
    """Recover means of the classes ``(m,)`` from updates of equal blocks in rounds over which the extractor stands still."""
    first = steps[0].blocks
    n_blocks, side, _ = first.shape
    # (k, rounds x s, s): block by block, dA^T = q^T P.
    wanted = torch.cat([step.blocks.double().transpose(1, 2) for step in steps], 1)

    def pushes(means: Tensor) -> Tensor:
        parts = []
        for step in steps:
            weight, bias = (value.double() for value in step.head)
            turned = means + means @ step.angle.double()
            push = _errors((turned @ weight.T + bias).softmax(1), classes, step.shares.double()) @ weight
            parts.append(push.reshape(len(classes), n_blocks, side).permute(1, 2, 0))
        return torch.cat(parts, 1)

    def solve(means: Tensor) -> Tensor:
        found: Tensor = torch.linalg.pinv(pushes(means), rtol=_ANGLE_CUT) @ wanted
        return found.permute(1, 0, 2).reshape(len(classes), -1)

    start = wanted.new_zeros(len(classes), n_blocks * side)
    means, settled = _settle(solve, start)
    matrix = pushes(means)
    in_blocks = means.reshape(len(classes), n_blocks, side).permute(1, 0, 2)
    residual = float((wanted - matrix @ in_blocks).norm() / wanted.norm().clamp(min=1e-300))
    return ClassMeans(means.float(), residual, max(_condition(block, _ANGLE_CUT) for block in matrix), settled)


def _errors(chances: Tensor, classes: Tensor, shares: Tensor) -> Tensor:
    """Return n_c (p_c - e_c), one row a class ``(m, C)``, from predictions ``(m, C)``."""
    truth = torch.zeros_like(chances).scatter_(1, classes[:, None].to(chances.device), 1.0)
    return shares[:, None].to(chances.device) * (chances - truth)


def _settle(solve: Callable[[Tensor], Tensor], start: Tensor) -> tuple[Tensor, bool]:
    """Iterate P <- solve(P), and half steps where whole ones swing to and fro."""
    means, last, pace = start, math.inf, 1.0
    best, least = start, math.inf
    for _ in range(ITERATIONS):
        found = solve(means)
        size = float((found - means).norm() / found.norm().clamp(min=1e-12))
        if not math.isfinite(size):
            break
        if size < least:
            best, least = found, size
        if size < SETTLED:
            return found, True
        if size >= last:
            pace = max(pace / 2, 1 / 16)
        means, last = means + pace * (found - means), size
    return best, False


def _condition(matrix: Tensor, cut: float) -> float:
    """Return the condition number of equations ``(rows, m)``; infinite where they leave an unknown open."""
    values = torch.linalg.svdvals(matrix)
    short = len(matrix) < matrix.shape[1] or float(values[-1]) <= cut * float(values[0])
    return math.inf if short else float(values[0] / values[-1])
