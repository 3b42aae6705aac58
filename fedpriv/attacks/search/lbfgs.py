"""L-BFGS on N independent problems at once.

Each row is minimised exactly as ``torch.optim.LBFGS`` would minimise it alone: with curvature pairs, step sizes and stop
rules of its own. Each tick evaluates all rows once, whatever each is at; masks say what a row does, and the program looks
at them only every few ticks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.attacks.search.cuda_graph import Replay, recorder_on

Evaluate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(points ``(n, D)``, their rows ``(n,)`` int64) -> (losses ``(n,)``, gradients ``(n, D)``)."""

_LEAST_FALL = 0.1  # share of its loss that a row has to lose in :attr:`LbfgsSettings.patience` calls
_LOOK_EVERY = 5  # ticks between two looks at which rows are finished; till then a finished row is evaluated for nothing
_LEAST_CURVATURE = 1e-10  # a pair of step s and gradient change y is used only where y . s is above, as in torch's
_FLAT, _STILL = 1e-7, 1e-9  # a call ends when no entry of the gradient, or no change, is larger, as in torch's


@dataclass(frozen=True)
class LbfgsSettings:
    """Settings of the search; steps are of length one, but for the very first: ``min(1, 1 / ||g||_1)``."""

    outer_steps: int  # calls of the optimiser; each begins with an evaluation
    inner_steps: int = 20  # steps in a call
    history: int = 100  # curvature pairs remembered
    patience: int | None = None  # calls that must together take a tenth off a row's lowest loss; None for no such rule


def bytes_of_history(width: int) -> int:
    """Return the memory of a row's history: two vectors of D = ``width`` numbers a pair."""
    return 4 * 2 * LbfgsSettings.history * width


@dataclass(frozen=True)
class Minimum:
    """Ends of N rows."""

    best: Tensor  # (N, D) the evaluated iterate with the lowest loss
    loss: Tensor  # (N,) of best; infinite for a row that was never finite
    evaluations: Tensor  # (N,) int64


def minimise(
    evaluate: Evaluate,
    start: Tensor,
    settings: LbfgsSettings,
    stop_below: Tensor | None = None,
    tick: Callable[[int], None] | None = None,
    numbers: Tensor | None = None,
) -> Minimum:
    """Minimise N independent functions of D variables from ``start`` ``(N, D)``; ``evaluate`` must not mix rows.

    A row that cannot move, is not finite, is below ``stop_below`` ``(N,)``, or has run out of patience is finished for good.
    ``tick`` is called with the outer steps that all rows have done; ``numbers`` ``(N,)`` is what ``evaluate`` calls the rows
    (0, 1, ... by default), always in the same tensor for as long as they are the same.
    """
    start = start.detach()
    rows = torch.arange(len(start), device=start.device)
    goal = start.new_full((len(start),), -torch.inf) if stop_below is None else stop_below
    result = Minimum(start.clone(), start.new_full((len(start),), torch.inf), torch.zeros_like(rows))
    if not len(start):
        return result
    descent = _Descent(evaluate, start, settings, goal, rows if numbers is None else numbers)
    tick_again = Replay(descent.tick, (descent, descent.curvature), recorder_on(start.device))
    most = settings.outer_steps * settings.inner_steps + 1  # ticks of a row
    done = 0
    while True:
        tick_again(descent.curvature.depth)
        done += 1
        if done % _LOOK_EVERY and done != most:
            continue
        descent.give_up()
        left = (~descent.finished).nonzero().flatten()
        # Where ticks are recorded they would be anew after every row that is dropped.
        if len(left) > (len(rows) // 2 if start.device.type == "cuda" else len(rows) - 1):
            if tick is not None:
                tick(int(descent.calls[left].min()))  # that every row has ended which is not finished
            continue
        result.best[rows], result.loss[rows] = descent.best, descent.lowest
        result.evaluations[rows] = descent.evaluations
        if not len(left):
            return result
        rows = rows[left]
        descent.keep(left)


class _Descent:
    """Rows on their way, each at an evaluation of its own: last iterates ``point`` and best ones ``(N, D)``."""

    def __init__(
        self, evaluate: Evaluate, start: Tensor, settings: LbfgsSettings, goal: Tensor, numbers: Tensor
    ) -> None:
        self._evaluate, self._settings, self._goal, self._numbers = evaluate, settings, goal, numbers
        self.curvature = _Curvature(settings.history, start)
        self.point = self.best = start
        self._direction = self._gradient = torch.zeros_like(start)
        self._length = self._loss = start.new_zeros(len(start))
        self.lowest = start.new_full((len(start),), torch.inf)
        self.evaluations = torch.zeros(len(start), dtype=torch.int64, device=start.device)
        self._steps = self.calls = self.evaluations  # steps of the present call, calls ended
        self.finished = torch.zeros(len(start), dtype=torch.bool, device=start.device)
        self._fresh = ~self.finished  # has not taken a direction yet
        # Lowest loss when patience last began, and calls by then; changed in place, since ticks do not change them.
        self._marked, self._marked_at = self.lowest.clone(), self.calls.clone()

    def give_up(self) -> None:
        """Finish rows that have got nowhere for as long as there is patience."""
        if self._settings.patience is None:
            return
        due = self.calls - self._marked_at >= self._settings.patience
        self.finished = self.finished | (due & (self.lowest > (1 - _LEAST_FALL) * self._marked))
        self._marked.copy_(torch.where(due, self.lowest, self._marked))
        self._marked_at.copy_(torch.where(due, self.calls, self._marked_at))

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only."""
        for holder in (self, self.curvature):
            for name, value in list(vars(holder).items()):
                if isinstance(value, Tensor):
                    setattr(holder, name, value[rows])

    def tick(self) -> None:
        """Evaluate each row once, and let it do what follows from that."""
        settings = self._settings
        loss, gradient = self._evaluate(self.point, self._numbers)
        live = ~self.finished
        self.evaluations = self.evaluations + live
        better = live & (loss < self.lowest)
        self.best = torch.where(better.unsqueeze(1), self.point, self.best)
        self.lowest = torch.where(better, loss, self.lowest)
        began = self._steps == 0  # the others have just taken a step
        move = self._direction * self._length.unsqueeze(1)
        flat = gradient.abs().amax(1) <= _FLAT
        # After the last call comes one more evaluation, of the last step.
        over = ~loss.isfinite() | (loss < self._goal) | (began & (flat | (self.calls >= settings.outer_steps)))
        self.finished = self.finished | over
        still = (move.abs().amax(1) <= _STILL) | flat
        still = still | ((loss - self._loss).abs() < _STILL)
        ended = ~began & (still | (self._steps >= settings.inner_steps))
        self._end(ended)
        self._step(loss, gradient, move, began, ~ended & ~self.finished)

    def _end(self, which: Tensor) -> None:
        self.calls = self.calls + which
        self._steps = torch.where(which, 0, self._steps)

    def _step(self, loss: Tensor, gradient: Tensor, move: Tensor, began: Tensor, go_on: Tensor) -> None:
        """Let rows take a direction, and move along it."""
        settings = self._settings
        change = gradient - self._gradient
        direction = self.curvature.direction(gradient, move, change, go_on & ~self._fresh)
        every = go_on.unsqueeze(1)
        self._direction = torch.where(every, direction, self._direction)
        self._gradient = torch.where(every, gradient, self._gradient)
        self._loss = torch.where(go_on, loss, self._loss)
        shortened = gradient.abs().sum(1).reciprocal().clamp_max(1.0)
        length = torch.where(self._fresh, shortened, 1.0)
        self._length = torch.where(go_on, length, self._length)
        self._fresh = self._fresh & ~go_on
        downhill = torch.linalg.vecdot(gradient, direction) <= -_STILL
        uphill, moving = go_on & ~downhill, go_on & downhill
        # The next call would begin at the same point and stop there again.
        self.finished = self.finished | (uphill & began)
        self._steps = self._steps + moving
        self.point = torch.where(moving.unsqueeze(1), self.point + direction * length.unsqueeze(1), self.point)
        self._end(uphill | (moving & (self._steps >= settings.inner_steps)))


class _Curvature:
    """The inverse Hessians of N rows, in compact form; ``depth`` places were computed with last, -1 before the first.

    Byrd, Nocedal and Schnabel, "Representations of quasi-Newton matrices and their use in limited memory methods" (1994),
    theorem 2.2: with the steps S and the changes Y of the gradient as columns, R the upper triangle of S'Y (in the order in
    which pairs came), D its diagonal, and H0 = scale * I,

        H g = scale (g - Y p) + S q,    p = R^-1 S'g,    q = R^-T ((D + scale Y'Y) p - scale Y'g).

    All sums over variables are two products with the whole history. A new pair adds a column to R^-1, and the oldest pair
    takes its row and column along, so each row has its own ring of places, and nothing is moved or solved.
    """

    def __init__(self, size: int, start: Tensor) -> None:
        rows, width = start.shape
        # One place more than the ring has: where rows write what they reject. It is never read.
        self._pairs = start.new_zeros(rows, 2, size + 1, width)
        self._inverse = start.new_zeros(rows, size + 1, size + 1)
        self._changes = start.new_zeros(rows, size + 1, size + 1)
        self._curvature = start.new_zeros(rows, size + 1)
        self._scale = start.new_ones(rows, 1)
        self._count = torch.zeros(rows, dtype=torch.int64, device=start.device)
        self._size = size
        self.depth = -1

    def direction(self, gradient: Tensor, step: Tensor, change: Tensor, taken: Tensor) -> Tensor:
        """Take in pairs of rows that took a step; return minus the inverse Hessian times gradients ``(N, D)``."""
        whole = self.depth >= 0 and gradient.is_cuda  # recorded steps have equal shapes
        depth = self.depth = self._size if whole else min(self.depth + 1, self._size)  # so many pairs a row may have
        if not depth:
            return -gradient
        position, curvature = self._remember(step, change, taken)
        pairs = self._pairs[:, :, :depth].flatten(0, 1)
        both = torch.stack([gradient, change], 1)
        products = torch.bmm(both.unsqueeze(1).expand(-1, 2, -1, -1).flatten(0, 1), pairs.mT).view(-1, 2, 2, depth)
        self._fill(products[:, :, 1], position, curvature)
        along, across = products[:, 0, 0], self._scale * products[:, 1, 0]
        inverse = self._inverse[:, :depth, :depth]
        inner = torch.bmm(inverse, along.unsqueeze(2))
        bent = torch.bmm(self._changes[:, :depth, :depth], inner).squeeze(2)
        first = inner.squeeze(2)
        second = self._curvature[:, :depth] * first + self._scale * bent - across
        second = torch.bmm(second.unsqueeze(1), inverse)
        shares = torch.stack([second.squeeze(1), -self._scale * first], 1).view(-1, 1, depth)
        moved = torch.bmm(shares, pairs).view(-1, 2, gradient.shape[1]).sum(1)
        return -torch.addcmul(moved, gradient, self._scale)

    def _remember(self, step: Tensor, change: Tensor, taken: Tensor) -> tuple[Tensor, Tensor]:
        """Write the pairs whose curvature is large enough; return their places ``(N, 1)`` and curvatures ``(N, 1)``."""
        curvature = torch.linalg.vecdot(step, change).unsqueeze(1)
        good = taken.unsqueeze(1) & (curvature > _LEAST_CURVATURE)
        position = torch.where(good, self._count.unsqueeze(1) % self._size, self._size)
        rows = torch.arange(len(step), device=step.device)
        self._pairs[rows, :, position[:, 0]] = torch.stack([step, change], 1)
        square = torch.linalg.vecdot(change, change).unsqueeze(1)
        self._scale = torch.where(good, curvature / square, self._scale)
        self._count = self._count + good[:, 0]
        return position, torch.where(good, curvature, 1.0)

    def _fill(self, products: Tensor, values: Tensor, curvature: Tensor) -> None:
        """Enter the newest change's products ``(N, 2, depth)`` with all steps and all changes at each row's place."""
        depth = self.depth
        rows, column = torch.arange(len(values), device=values.device), values[:, 0]
        others = torch.ones_like(self._curvature).scatter_(1, values, 0.0)[:, :depth]
        self._inverse[rows, column] = torch.zeros_like(self._curvature)
        older = torch.bmm(self._inverse[:, :depth, :depth], (products[:, 0] * others).unsqueeze(2)).squeeze(2)
        self._inverse[rows, :depth, column] = (1 - others - older) / curvature
        self._changes[rows, column, :depth] = products[:, 1]
        self._changes[rows, :depth, column] = products[:, 1]
        self._curvature.scatter_(1, values, curvature)
