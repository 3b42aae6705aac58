"""Line search to the strong Wolfe conditions, for N rows at once.

Nocedal and Wright, "Numerical Optimization" (2nd edition, 2006), algorithms 3.5 and 3.6 with the cubic interpolation of
equation 3.59. Each row's search is a coroutine of plain numbers that asks for one evaluation at a time; what the rows
ask for in a round is evaluated together, so a row's steps do not depend on its company.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass

import torch
from torch import Tensor

_DECREASE = 1e-4
"""Sufficient decrease: f(t) <= f(0) + this * t * f'(0)."""

_CURVATURE = 0.9
"""Curvature: |f'(t)| <= this * |f'(0)|, the value that suits quasi-Newton directions."""


@dataclass(frozen=True)
class _Trial:
    """One evaluation: step length, loss there, slope along the direction there, number of the evaluation."""

    length: float
    loss: float
    slope: float
    number: int


_Search = Generator[float, tuple[float, float, int], _Trial]


@dataclass(frozen=True)
class Found:
    """Ends of the searches of R rows: step lengths ``(R,)``, losses ``(R,)`` and gradients ``(R, D)`` there."""

    lengths: Tensor
    losses: Tensor
    gradients: Tensor


def search(
    evaluate: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    directions: Tensor,
    lengths: Tensor,
    losses: Tensor,
    gradients: Tensor,
    most: int,
) -> Found:
    """Find a step length for each row.

    Args:
        evaluate: (step lengths ``(r,)``, which of the R rows ``(r,)``) -> losses ``(r,)``, gradients ``(r, D)``.
        directions: ``(R, D)``, downhill.
        lengths: ``(R,)`` first step lengths to try.
        losses: ``(R,)`` at the start.
        gradients: ``(R, D)`` at the start.
        most: evaluations a row may ask for, at least 1. When they are used up, the lowest point found is taken.
    """
    slopes = (gradients * directions).sum(1)
    starts = zip(lengths.tolist(), losses.tolist(), slopes.tolist(), strict=True)
    searches = [_strong_wolfe(_Trial(0.0, loss, slope, 0), length, most) for length, loss, slope in starts]
    asked = {row: next(one) for row, one in enumerate(searches)}
    seen: list[dict[int, Tensor]] = [{0: gradients[row]} for row in range(len(searches))]
    ends: dict[int, _Trial] = {}
    number = 0
    while asked:
        number += 1
        rows = torch.tensor(list(asked), device=directions.device)
        tried = torch.tensor(list(asked.values()), dtype=directions.dtype, device=directions.device)
        loss, gradient = evaluate(tried, rows)
        slope = (gradient * directions[rows]).sum(1)
        answers = zip(list(asked), loss.tolist(), slope.tolist(), gradient, strict=True)
        for row, its_loss, its_slope, its_gradient in answers:
            seen[row][number] = its_gradient
            try:
                asked[row] = searches[row].send((its_loss, its_slope, number))
            except StopIteration as stop:
                ends[row] = stop.value
                del asked[row]
    order = range(len(searches))
    return Found(
        lengths.new_tensor([ends[row].length for row in order]),
        losses.new_tensor([ends[row].loss for row in order]),
        torch.stack([seen[row][ends[row].number] for row in order]),
    )


def _strong_wolfe(start: _Trial, length: float, most: int) -> _Search:
    """Bracket a good step, then narrow the bracket down; yields step lengths, is sent (loss, slope, number)."""
    before = lowest = start
    for asked in range(1, most + 1):
        now = _Trial(length, *(yield length))
        if not math.isfinite(now.loss) or not math.isfinite(now.slope):
            # Too far out to say anything: come closer, and never take it.
            length = 0.5 * (before.length + length)
            continue
        if now.loss < lowest.loss:
            lowest = now
        if not _decreases(now, start) or (asked > 1 and now.loss >= before.loss):
            return (yield from _narrow(start, before, now, most - asked))
        if abs(now.slope) <= -_CURVATURE * start.slope:
            return now
        if now.slope >= 0:
            return (yield from _narrow(start, now, before, most - asked))
        length = min(max(_cubic_minimum(before, now), 1.1 * now.length), 10 * now.length)
        before = now
    return lowest


def _narrow(start: _Trial, low: _Trial, high: _Trial, most: int) -> _Search:
    """Shrink a bracket that holds good steps; ``low`` is its end with the lower loss."""
    for _ in range(most):
        width = abs(high.length - low.length)
        if width * abs(start.slope) < 1e-12:
            break
        least, greatest = sorted((low.length, high.length))
        # Stay a tenth of the bracket away from its ends, or it might hardly shrink.
        length = min(max(_cubic_minimum(low, high), least + 0.1 * width), greatest - 0.1 * width)
        now = _Trial(length, *(yield length))
        if not math.isfinite(now.loss) or not _decreases(now, start) or now.loss >= low.loss:
            high = now
            continue
        if abs(now.slope) <= -_CURVATURE * start.slope:
            return now
        if now.slope * (high.length - low.length) >= 0:
            high = low
        low = now
    return low


def _decreases(now: _Trial, start: _Trial) -> bool:
    return now.loss <= start.loss + _DECREASE * now.length * start.slope


def _cubic_minimum(first: _Trial, second: _Trial) -> float:
    """Return the minimiser of the cubic through both trials' losses and slopes, their middle where there is none."""
    middle = 0.5 * (first.length + second.length)
    if first.length == second.length or not math.isfinite(second.loss) or not math.isfinite(second.slope):
        return middle
    chord = first.slope + second.slope - 3 * (first.loss - second.loss) / (first.length - second.length)
    inside = chord * chord - first.slope * second.slope
    if inside < 0:
        return middle
    root = math.copysign(math.sqrt(inside), second.length - first.length)
    bottom = second.slope - first.slope + 2 * root
    if bottom == 0:
        return middle
    return second.length - (second.length - first.length) * (second.slope + root - chord) / bottom
