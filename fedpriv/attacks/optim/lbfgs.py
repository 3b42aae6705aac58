"""L-BFGS on N independent problems at once, without line search or with one.

Without, each row is minimised exactly as ``torch.optim.LBFGS`` would minimise it alone: its own curvature pairs, its own
step sizes, its own stop rules. All inner products are sums over a row. The two-loop recursion is that of Nocedal (1980).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedpriv.attacks.optim.line_search import search

Evaluate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(points ``(n, D)``, their rows ``(n,)`` int64) -> (losses ``(n,)``, gradients ``(n, D)``)."""

_LEAST_CURVATURE = 1e-10
"""A pair of step s and gradient change y is used only where ``y . s`` is above (the value of ``torch.optim.LBFGS``)."""


@dataclass(frozen=True)
class LbfgsSettings:
    """Settings of the search. The defaults are those of ``torch.optim.LBFGS`` but for the number of outer steps.

    Attributes:
        outer_steps: calls of the optimiser; each begins with an evaluation.
        inner_steps: steps in a call.
        learning_rate: step size, but for the very first step, which is shortened to ``min(1, 1 / ||g||_1)`` of it.
        history: curvature pairs remembered.
        tolerance_grad: a call ends when no entry of the gradient is larger.
        tolerance_change: a call ends when the loss or every entry of the point changes by less.
        line_search: ``strong-wolfe`` looks for a step along each direction, at several evaluations; None takes it whole.
        search_evaluations: most evaluations of one line search.
    """

    outer_steps: int
    inner_steps: int = 20
    learning_rate: float = 1.0
    history: int = 100
    tolerance_grad: float = 1e-7
    tolerance_change: float = 1e-9
    line_search: Literal["strong-wolfe"] | None = None
    search_evaluations: int = 25


@dataclass(frozen=True)
class Minimum:
    """Ends of N rows.

    Attributes:
        last: ``(N, D)`` the last iterate.
        best: ``(N, D)`` the evaluated iterate with the lowest loss.
        loss: ``(N,)`` the loss of ``best``; infinite for a row that was never finite.
        evaluations: ``(N,)`` int64, evaluations of the row.
    """

    last: Tensor
    best: Tensor
    loss: Tensor
    evaluations: Tensor


class _History:
    """Curvature pairs of N rows. Rows reject pairs on their own, so each has its own place in its own ring."""

    def __init__(self, size: int, start: Tensor) -> None:
        rows, width = start.shape
        self._steps = start.new_zeros(size, rows, width)
        self._changes = start.new_zeros(size, rows, width)
        self._inverse = start.new_zeros(size, rows)
        self._size = size
        self._count = torch.zeros(rows, dtype=torch.int64, device=start.device)
        self._scale = start.new_ones(rows)

    def remember(self, rows: Tensor, step: Tensor, change: Tensor) -> None:
        """Take in the pair of each row ``(n, D)`` whose curvature is large enough."""
        curvature = (step * change).sum(1)
        good = curvature > _LEAST_CURVATURE
        rows, step, change, curvature = rows[good], step[good], change[good], curvature[good]
        place = self._count[rows] % self._size
        self._steps[place, rows], self._changes[place, rows] = step, change
        self._inverse[place, rows] = 1 / curvature
        self._scale[rows] = curvature / change.square().sum(1)
        self._count[rows] += 1

    def direction(self, rows: Tensor, gradient: Tensor) -> Tensor:
        """Return minus the inverse Hessian times the gradient ``(n, D)`` of each row, by the two-loop recursion."""
        count = self._count[rows]
        depth = int(count.clamp_max(self._size).max())
        direction = -gradient
        shares = gradient.new_zeros(depth, len(rows))
        for back in range(depth):
            step, change, inverse = self._pair(rows, count, back)
            shares[back] = (step * direction).sum(1) * inverse
            direction = direction - shares[back].unsqueeze(1) * change
        direction = direction * self._scale[rows].unsqueeze(1)
        for back in reversed(range(depth)):
            step, change, inverse = self._pair(rows, count, back)
            rest = shares[back] - (change * direction).sum(1) * inverse
            direction = direction + rest.unsqueeze(1) * step
        return direction

    def _pair(self, rows: Tensor, count: Tensor, back: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the pair that each row remembered ``back`` pairs ago; its weight is zero where there is none."""
        place = (count - 1 - back) % self._size
        inverse = torch.where(back < count.clamp_max(self._size), self._inverse[place, rows], 0.0)
        if len(rows) == self._steps.shape[1] and bool((place == place[0]).all()):
            return self._steps[place[0]], self._changes[place[0]], inverse
        return self._steps[place, rows], self._changes[place, rows], inverse


def minimise(
    evaluate: Evaluate,
    start: Tensor,
    settings: LbfgsSettings,
    stop_below: Tensor | None = None,
    tick: Callable[[int], None] | None = None,
) -> Minimum:
    """Minimise N independent functions of D variables.

    A row whose call ends waits for the others' calls to end; it is not evaluated meanwhile. A row that cannot move any
    more (its call ends at its first evaluation), is not finite, or is below ``stop_below`` is finished for good.

    Args:
        evaluate: losses and gradients of some of the rows. Must not mix rows.
        start: ``(N, D)``.
        settings: of the search.
        stop_below: ``(N,)``, a row is finished when its loss falls below; None for never.
        tick: called with the number of outer steps done.
    """
    point = start.detach().clone()
    rows_total = len(point)
    device = point.device
    goal = point.new_full((rows_total,), -torch.inf) if stop_below is None else stop_below
    history = _History(settings.history, point)
    direction = torch.zeros_like(point)
    length = point.new_zeros(rows_total)
    before_gradient = torch.zeros_like(point)
    steps = torch.zeros(rows_total, dtype=torch.int64, device=device)
    evaluations = torch.zeros(rows_total, dtype=torch.int64, device=device)
    best, lowest = point.clone(), point.new_full((rows_total,), torch.inf)
    finished = torch.zeros(rows_total, dtype=torch.bool, device=device)

    def look(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        loss, gradient = evaluate(points, rows)
        evaluations[rows] += 1
        better = loss < lowest[rows]
        best[rows[better]], lowest[rows[better]] = points[better], loss[better]
        return loss, gradient

    def measure(rows: Tensor) -> tuple[Tensor, Tensor]:
        loss, gradient = look(point[rows], rows)
        finished[rows[~loss.isfinite() | (loss < goal[rows])]] = True
        return loss, gradient

    def searched(rows: Tensor, loss: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Set the rows' lengths by line search; return the loss and gradient where they lead."""

        def along(lengths: Tensor, among: Tensor) -> tuple[Tensor, Tensor]:
            which = rows[among]
            return look(point[which] + lengths.unsqueeze(1) * direction[which], which)

        found = search(along, direction[rows], length[rows], loss, gradient, settings.search_evaluations)
        length[rows] = found.lengths
        finished[rows[(found.losses < goal[rows]) | (found.lengths == 0)]] = True
        return found.losses, found.gradients

    for outer in range(settings.outer_steps):
        rows = (~finished).nonzero().flatten()
        if not len(rows):
            break
        loss, gradient = measure(rows)
        flat = gradient.abs().amax(1) <= settings.tolerance_grad
        finished[rows[flat]] = True
        go_on = ~finished[rows]
        rows, loss, gradient = rows[go_on], loss[go_on], gradient[go_on]
        for inner in range(settings.inner_steps):
            if not len(rows):
                break
            fresh = steps[rows] == 0
            old = rows[~fresh]
            if len(old):
                step = direction[old] * length[old].unsqueeze(1)
                history.remember(old, step, gradient[~fresh] - before_gradient[old])
            direction[rows] = history.direction(rows, gradient)
            steps[rows] += 1
            before_gradient[rows] = gradient
            shortened = (1 / gradient.abs().sum(1)).clamp_max(1.0) * settings.learning_rate
            length[rows] = torch.where(fresh, shortened, settings.learning_rate)
            downhill = (gradient * direction[rows]).sum(1) <= -settings.tolerance_change
            if inner == 0:
                finished[rows[~downhill]] = True  # the next call would find the same point and stop there again
            rows, loss, gradient = rows[downhill], loss[downhill], gradient[downhill]
            if not len(rows):
                break
            before_loss = loss
            if settings.line_search is not None:
                loss, gradient = searched(rows, loss, gradient)
            move = direction[rows] * length[rows].unsqueeze(1)
            point[rows] += move
            if inner + 1 == settings.inner_steps:
                break
            if settings.line_search is None:
                loss, gradient = measure(rows)
            ended = gradient.abs().amax(1) <= settings.tolerance_grad
            ended |= move.abs().amax(1) <= settings.tolerance_change
            ended |= (loss - before_loss).abs() < settings.tolerance_change
            go_on = ~(ended | finished[rows])
            rows, loss, gradient = rows[go_on], loss[go_on], gradient[go_on]
        if tick is not None:
            tick(outer + 1)
    rows = (~finished).nonzero().flatten()
    if len(rows):
        measure(rows)  # the last step of the last call has not been looked at yet
    return Minimum(point, best, lowest, evaluations)
