"""Images of a batch separated by the gradient of the head alone: z = W h + b under a cross-entropy.

Its gradients are n dW = D^T H and n db = D^T 1, the rows of D being softmax(W h_i + b) - e_(y_i). With n dW = U R, U
``(C, n)`` orthonormal, the gradient leaves just the square Q in H = Q R open, and D(Q R)^T Q = U are C n equations for n^2
unknowns, solved by the method of Levenberg and Marquardt as long as there are fewer images than classes. Images of one label
differ in D by their predictions alone, so every image is told with the error that the gradient's own rounding makes, or by
which as good solutions differ; where even rounding hides the differences, images of one label are solved for as one.

That labels and the head tell representations: Fan et al. 2025, Maui. The equations with their errors are derived here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

MOST_AT_HEAD = 16
"""Images of a batch that is taken apart."""

SURE, _HEAD_RANK = 0.02, 3e-7
"""Predicted relative error of what an image put into the head below which it is known; singular values of the head's
gradient below this share of the largest are rounding."""

_TRIES, _STEPS, _FIXED, _OPERATIONS, _ENTRIES = 8, 120, 1e-9, 2**31, 2**23
"""Starts at most, steps of each, and the relative gain of a step below which a solution stands still; products of a step of
all starts together, so that fewer are tried where classes are many; entries of derivatives that are held at once."""

_SPREAD, _TINY = 0.02, 1e-24
"""Standard deviation of the logits by which a start tells images of one label apart; sum of squares of solved equations."""

_LIKELY, _AS_GOOD, _SOLVED, _EXPLAINED = 1e3, 30.0, 1e-2, 100.0
"""Times the least sum of squares up to which a solution is looked at closely, and up to which it is as good then; share of
the equations that may stay unsolved; times the rounding that the gradient shows up to which it explains what a solution
leaves: others are the bottoms of other valleys."""


@dataclass(frozen=True)
class HeadMembers:
    """The images of one step at the head, in the order of the labels.

    Derivatives ``(n, C)`` of the loss at the logits; inputs ``(n, d)``, an estimate, or what images of the label put in on
    the whole, for those that are not ``sure`` ``(n,)``.
    """

    derivatives: Tensor
    inputs: Tensor
    sure: Tensor


@dataclass(frozen=True)
class _Equations:
    """D(Q R)^T Q = U, of groups of images that share their representation."""

    left: Tensor  # U (C, g)
    values: Tensor  # (g,) singular values of n dW; R is they times the right singular vectors
    logits: Tensor  # (g, C) R W^T, what R makes of the logits
    bias: Tensor  # b (C,)
    slope: Tensor  # n db (C,)
    truth: Tensor  # (g, C) one-hot labels
    sizes: Tensor  # (g,) images of each group

    def derivatives(self, mixing: Tensor) -> Tensor:
        """Return the rows of D ``(..., g, C)`` of mixings ``(..., g, g)``, those of a group summed."""
        chances: Tensor = (mixing @ self.logits + self.bias).softmax(-1)
        return self.sizes.unsqueeze(1) * (chances - self.truth)

    def left_over(self, mixing: Tensor, weights: Tensor) -> Tensor:
        """Return the part that stays unsolved ``(..., C g + C)``, columns of the first part times ``weights`` ``(g,)``."""
        pulls = self.derivatives(mixing)
        first = (pulls.mT @ mixing - self.left) * weights
        return torch.cat([first.flatten(-2), pulls.sum(-2) - self.slope], -1)

    def slopes(self, mixing: Tensor, weights: Tensor) -> Tensor:
        """Return the derivative of :meth:`left_over` at mixings ``(k, g, g)``, ``(k, C g + C, g g)``."""
        chances: Tensor = (mixing @ self.logits + self.bias).softmax(-1)
        number, n_classes = self.truth.shape
        # How D_jc moves with Q_jl: s_j p_jc (L_lc - sum_m p_jm L_lm); of another row it does not.
        leads = self.logits - (chances @ self.logits.mT).unsqueeze(-1)
        turns = self.sizes[:, None, None] * chances.unsqueeze(-2) * leads
        first = torch.einsum("bjk,bjlc->bckjl", mixing, turns)
        first.diagonal(dim1=2, dim2=4).add_(self.derivatives(mixing).permute(0, 2, 1).unsqueeze(-1))
        first = first * weights[:, None, None]
        second = turns.permute(0, 3, 1, 2)
        unknowns = number * number
        return torch.cat([first.reshape(-1, n_classes * number, unknowns), second.reshape(-1, n_classes, unknowns)], 1)


def members_of_head(
    weight: Tensor, bias: Tensor, head: tuple[Tensor, Tensor], labels: Tensor, generator: torch.Generator
) -> HeadMembers | None:
    """Return each image's inputs to a head; None where the equations have no solution that can be found.

    Of gradients dW ``(C, d)`` and db ``(C,)`` of the mean cross-entropy, W and b before the step, and labels ``(n,)``.
    """
    count, labels = len(labels), labels.cpu()
    given = [value.double().cpu() for value in (weight, bias, *head)]
    if not 2 <= count <= min(MOST_AT_HEAD, len(given[1]) - 1) or int(labels.min()) < 0:
        return None
    classes, of_class = labels.unique(return_inverse=True)
    alone, together = torch.arange(count), len(classes) < count
    for groups, current in ((alone, labels), *([(of_class, classes)] if together else [])):
        result = _solved(given, current, torch.bincount(groups).double(), count, generator)
        if result is not None:
            pulls, inputs, errors = result
            sizes = torch.bincount(groups)
            sure = (errors < SURE) & (sizes == 1)
            return HeadMembers((pulls / sizes.unsqueeze(1))[groups].float(), inputs[groups].float(), sure[groups])
    return None


def _solved(
    given: list[Tensor], labels: Tensor, sizes: Tensor, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return D ``(g, C)``, representations ``(g, d)`` and their relative errors ``(g,)`` of groups; None for no solution."""
    weight, bias, head, head_bias = given
    left, values, right = torch.linalg.svd(count * weight, full_matrices=False)
    number, n_classes = len(labels), len(bias)
    if len(values) < number or float(values[number - 1]) <= _HEAD_RANK * float(values[0]):
        return None
    basis = values[:number, None] * right[:number]
    truth = functional.one_hot(labels, n_classes).double()
    equations = _Equations(left[:, :number], values[:number], basis @ head.T, head_bias, count * bias, truth, sizes)
    tried, losses = _tried(equations, count, generator)
    least = float(losses.min())
    if not least <= _SOLVED**2 * number:
        return None
    # In the gradient's own units rounding is alike everywhere, which is what errors follow from.
    weights = equations.values / equations.values[0]
    polished, lefts = _descended(equations, tried[losses < max(_LIKELY * least, _TINY)], weights)
    best, loss = polished[lefts.argmin()], float(lefts.min())
    others = polished[lefts < max(_AS_GOOD * loss, _TINY)] @ basis
    rounding = float(values[number]) if len(values) > number else 0.0
    rounding = max(rounding / (math.sqrt(n_classes) + math.sqrt(weight.shape[1])), 1e-8 * float(values[0]))
    rounding, noise = rounding / float(values[0]), math.sqrt(loss / (number * n_classes))
    inputs, errors = best @ basis, _errors(equations, best, max(rounding, noise))
    if noise > _EXPLAINED * rounding:
        errors = torch.full_like(errors, torch.inf)
    for other in others:
        apart = torch.cdist(inputs, other).where(labels.unsqueeze(1) == labels, torch.inf).amin(1)
        errors = errors.maximum(apart / inputs.norm(dim=1))
    return equations.derivatives(best), inputs, errors


def _start(equations: _Equations, count: int, generator: torch.Generator) -> Tensor:
    """Return a first mixing ``(g, g)``: that of derivatives by the mean prediction, images of one label drawn apart."""
    total = (equations.sizes.unsqueeze(1) * equations.truth).sum(0)
    mean = ((equations.slope + total) / count).clamp(min=1e-9)
    draws = torch.randn(equations.truth.shape, generator=generator, dtype=mean.dtype)
    pulls = equations.sizes.unsqueeze(1) * ((mean.log() + _SPREAD * draws).softmax(1) - equations.truth)
    values: Tensor = torch.linalg.pinv(pulls.T, rtol=1e-2) @ equations.left
    draws = torch.randn(values.shape, generator=generator, dtype=mean.dtype)
    values += 1e-3 * float(values.norm()) / len(values) * draws
    return values


def _tried(equations: _Equations, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the solutions ``(k, g, g)`` of one start, or of all where that fails, and what they leave ``(k,)``."""
    ones, (number, n_classes) = torch.ones(len(equations.values)).double(), equations.truth.shape
    first = _descended(equations, _start(equations, count, generator)[None], ones)
    tries = min(_OPERATIONS // (n_classes * (number + 1) * number**4), _TRIES - 1)
    if float(first[1]) <= _FIXED or not tries:
        return first
    starts = torch.stack([_start(equations, count, generator) for _ in range(tries)])
    points, losses = zip(first, _descended(equations, starts, ones), strict=True)
    return torch.cat(points), torch.cat(losses)


def _descended(equations: _Equations, starts: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the solutions ``(k, g, g)`` that starts lead to, and the sums of squares ``(k,)`` that are left."""
    number, n_classes = equations.truth.shape
    at_once = max(_ENTRIES // (n_classes * (number + 1) * number**2), 1)
    points, losses = zip(*(_side_by_side(equations, some, weights) for some in starts.split(at_once)), strict=True)
    return torch.cat(points), torch.cat(losses)


def _side_by_side(equations: _Equations, starts: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same of starts that are followed at once, each with a damping of its own until it ends."""
    points = starts.clone()
    rest = equations.left_over(points, weights)
    losses = rest.square().sum(1)
    dampings, steps = torch.full_like(losses, 1e-3), torch.zeros_like(losses)
    going = losses.isfinite()
    losses = losses.where(going, torch.inf)
    while bool(going.any()):
        rows = going.nonzero().flatten()
        at, damping = points[rows], dampings[rows]
        slopes = equations.slopes(at, weights)
        squares, pull = slopes.mT @ slopes, slopes.mT @ rest[rows].unsqueeze(2)
        current = squares.diagonal(dim1=1, dim2=2)
        steep = squares + torch.diag_embed(damping[:, None] * (current + 1e-14 * current.sum(1, keepdim=True)))
        step, failed = torch.linalg.solve_ex(steep, -pull)
        there = at + step.view(at.shape)
        left = equations.left_over(there, weights)
        values = left.square().sum(1)
        better = (failed == 0) & (values < losses[rows])
        gains = (losses[rows] - values).where(better, torch.inf)
        moved = rows[better]
        points[moved], rest[moved], losses[moved] = there[better], left[better], values[better]
        dampings[rows] = (damping / 5).clamp(min=1e-14).where(better, damping * 4)
        steps[rows] += better
        still = (gains < _FIXED * losses[rows]) | (losses[rows] < _TINY) | (steps[rows] >= _STEPS)
        going[rows] = ~still & (dampings[rows] < 1e6)
    return points, losses


def _errors(equations: _Equations, mixing: Tensor, noise: float) -> Tensor:
    """Return the relative error ``(g,)`` of each representation that noise of the equations makes."""
    number = len(mixing)
    slopes = equations.slopes(mixing[None], equations.values / equations.values[0])[0]
    # In units of what each unknown does to a representation, so that what is left open shows as what it is.
    scaled = slopes / equations.values.repeat(number)
    _, sizes, ways = torch.linalg.svd(scaled, full_matrices=False)
    spread = (ways / sizes.clamp(min=_TINY).unsqueeze(1)).square().sum(0).view(number, number).sum(1)
    result: Tensor = noise * spread.sqrt() / (mixing * equations.values).norm(dim=1)
    return result
