"""L-BFGS on N independent problems at once, without line search or with one.

Without, each row is minimised exactly as ``torch.optim.LBFGS`` would minimise it alone: its own curvature pairs, its own
step sizes, its own stop rules. All inner products are sums over a row. Each tick evaluates all rows once, whatever each is
at; what a row does is told by masks, and the program looks at them only every few ticks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedpriv.attacks.optim.cuda_recorder import recorder_on
from fedpriv.attacks.optim.curvature import Curvature
from fedpriv.attacks.optim.line_search import WolfeSearch
from fedpriv.attacks.optim.replay import Replay

Evaluate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(points ``(n, D)``, their rows ``(n,)`` int64) -> (losses ``(n,)``, gradients ``(n, D)``)."""

_LEAST_FALL = 0.1
"""Share of its loss that a row has to lose in :attr:`LbfgsSettings.patience` calls."""

_LOOK_EVERY = 5
"""Ticks between two looks at which rows are finished. A finished row is evaluated until then, and nothing comes of it."""


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
        patience: a row is finished when so many calls together took less than a tenth off its lowest loss; None for never.
    """

    outer_steps: int
    inner_steps: int = 20
    learning_rate: float = 1.0
    history: int = 100
    tolerance_grad: float = 1e-7
    tolerance_change: float = 1e-9
    line_search: Literal["strong-wolfe"] | None = None
    search_evaluations: int = 25
    patience: int | None = None


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


def minimise(
    evaluate: Evaluate,
    start: Tensor,
    settings: LbfgsSettings,
    stop_below: Tensor | None = None,
    tick: Callable[[int], None] | None = None,
    numbers: Tensor | None = None,
) -> Minimum:
    """Minimise N independent functions of D variables.

    A row that cannot move any more (its call ends at its first evaluation), is not finite, is below ``stop_below``, or has
    got nowhere for as long as ``settings`` have patience is finished for good.

    Args:
        evaluate: losses and gradients of some of the rows. Must not mix rows. It is handed the same tensor of rows for as
            long as they are the same.
        start: ``(N, D)``.
        settings: of the search.
        stop_below: ``(N,)``, a row is finished when its loss falls below; None for never.
        tick: called with the number of outer steps that all rows have done.
        numbers: ``(N,)`` int64, what ``evaluate`` calls the rows; None for 0, 1, ...
    """
    start = start.detach()
    rows = torch.arange(len(start), device=start.device)
    goal = start.new_full((len(start),), -torch.inf) if stop_below is None else stop_below
    numbers = rows if numbers is None else numbers
    found = Minimum(start.clone(), start.clone(), start.new_full((len(start),), torch.inf), torch.zeros_like(rows))
    if not len(start):
        return found
    descent = _Descent(evaluate, start, settings, goal, numbers)
    tick_again = Replay(descent.tick, descent.parts(), recorder_on(start.device))
    most = settings.outer_steps * settings.inner_steps + 1  # ticks of a row, if no line search asks for more
    done = 0
    while True:
        tick_again(descent.kind())
        done += 1
        if done % _LOOK_EVERY and done != most:
            continue
        descent.give_up()
        left = descent.left()
        # Where ticks are recorded they would be anew after every row that is dropped.
        if len(left) > (len(rows) // 2 if start.device.type == "cuda" else len(rows) - 1):
            if tick is not None:
                tick(descent.calls())
            continue
        found.last[rows], found.best[rows] = descent.point, descent.best
        found.loss[rows], found.evaluations[rows] = descent.lowest, descent.evaluations
        if not len(left):
            return found
        rows = rows[left]
        descent.keep(left)


class _Descent:
    """Rows on their way, each at an evaluation of its own.

    Attributes:
        point: ``(N, D)`` last iterates.
        best: ``(N, D)`` evaluated points with the lowest loss.
        lowest: ``(N,)`` their losses.
        evaluations: ``(N,)`` int64.
    """

    def __init__(
        self, evaluate: Evaluate, start: Tensor, settings: LbfgsSettings, goal: Tensor, numbers: Tensor
    ) -> None:
        self._evaluate = evaluate
        self._settings = settings
        self._goal, self._numbers = goal, numbers
        self._curvature = Curvature(settings.history, start)
        self._search = None if settings.line_search is None else WolfeSearch(start, settings.search_evaluations)
        self.point = self.best = start
        self._direction = self._gradient = torch.zeros_like(start)
        self._length = self._loss = start.new_zeros(len(start))
        self.lowest = start.new_full((len(start),), torch.inf)
        self.evaluations = torch.zeros(len(start), dtype=torch.int64, device=start.device)
        self._steps = self._calls = self.evaluations  # steps of the present call, calls ended
        self._finished = torch.zeros(len(start), dtype=torch.bool, device=start.device)
        self._fresh = ~self._finished  # has not taken a direction yet
        # Lowest loss when patience last began, and calls by then; changed in place, since ticks do not change them.
        self._marked, self._marked_at = self.lowest.clone(), self._calls.clone()

    def parts(self) -> tuple[object, ...]:
        """Return the objects that hold the numbers of the rows."""
        return self, self._curvature, *([] if self._search is None else [self._search])

    def kind(self) -> int:
        """Return the kind of the next tick: those of one kind do the same operations."""
        return self._curvature.depth

    def left(self) -> Tensor:
        """Return the positions of rows that are not finished."""
        return (~self._finished).nonzero().flatten()

    def calls(self) -> int:
        """Return the number of calls that every row has ended which is not finished."""
        return int(self._calls[~self._finished].min())

    def give_up(self) -> None:
        """Finish rows that have got nowhere for as long as there is patience."""
        if self._settings.patience is None:
            return
        due = self._calls - self._marked_at >= self._settings.patience
        self._finished = self._finished | (due & (self.lowest > (1 - _LEAST_FALL) * self._marked))
        self._marked.copy_(torch.where(due, self.lowest, self._marked))
        self._marked_at.copy_(torch.where(due, self._calls, self._marked_at))

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only."""
        for name, value in list(vars(self).items()):
            if isinstance(value, Tensor):
                setattr(self, name, value[rows])
        self._curvature.keep(rows)
        if self._search is not None:
            self._search.keep(rows)

    def tick(self) -> None:
        """Evaluate each row once, and let it do what follows from that."""
        search = self._search
        where = self.point if search is None else search.asked(self.point, self._direction)
        loss, gradient = self._evaluate(where, self._numbers)
        live = ~self._finished
        self.evaluations = self.evaluations + live
        better = live & (loss < self.lowest)
        self.best = torch.where(better.unsqueeze(1), where, self.best)
        self.lowest = torch.where(better, loss, self.lowest)
        if search is None:
            began = self._steps == 0
            arrived = ~began
        else:
            began = ~search.active
            arrived = search.answer(loss, torch.linalg.vecdot(gradient, self._direction), gradient)
            loss = torch.where(arrived, search.loss.to(loss.dtype), loss)
            gradient = torch.where(arrived.unsqueeze(1), search.gradient, gradient)
            self._length = torch.where(arrived, search.length.to(loss.dtype), self._length)
        move = self._direction * self._length.unsqueeze(1)
        if search is not None:
            self.point = torch.where(arrived.unsqueeze(1), self.point + move, self.point)
            self._finished = self._finished | (arrived & (self._length == 0))
        go_on = self._judged(loss, gradient, move, began, arrived)
        self._step(loss, gradient, move, began, go_on)

    def _judged(self, loss: Tensor, gradient: Tensor, move: Tensor, began: Tensor, arrived: Tensor) -> Tensor:
        """Finish rows and end calls ``(N,)``; return which rows take a step from where they are."""
        settings = self._settings
        flat = gradient.abs().amax(1) <= settings.tolerance_grad
        over = ~loss.isfinite() | (loss < self._goal)
        # After the last call comes one more evaluation, of the last step.
        self._finished = (
            self._finished | ((began | arrived) & over) | (began & (flat | (self._calls >= settings.outer_steps)))
        )
        ended = move.abs().amax(1) <= settings.tolerance_change
        ended = ended | flat | ((loss - self._loss).abs() < settings.tolerance_change)
        ended = arrived & (ended | (self._steps >= settings.inner_steps))
        self._end(ended)
        return (began | arrived) & ~ended & ~self._finished

    def _end(self, which: Tensor) -> None:
        self._calls = self._calls + which
        self._steps = torch.where(which, 0, self._steps)

    def _step(self, loss: Tensor, gradient: Tensor, move: Tensor, began: Tensor, go_on: Tensor) -> None:
        """Let rows take a direction, and move along it or begin to search along it."""
        settings = self._settings
        change = gradient - self._gradient
        direction = self._curvature.direction(gradient, move, change, go_on & ~self._fresh)
        every = go_on.unsqueeze(1)
        self._direction = torch.where(every, direction, self._direction)
        self._gradient = torch.where(every, gradient, self._gradient)
        self._loss = torch.where(go_on, loss, self._loss)
        shortened = gradient.abs().sum(1).reciprocal().clamp_max(1.0)
        length = settings.learning_rate * torch.where(self._fresh, shortened, 1.0)
        self._length = torch.where(go_on, length, self._length)
        self._fresh = self._fresh & ~go_on
        slope = torch.linalg.vecdot(gradient, direction)
        downhill = slope <= -settings.tolerance_change
        uphill = go_on & ~downhill
        self._finished = self._finished | (
            uphill & began
        )  # the next call would find the same point and stop there again
        moving = go_on & downhill
        self._steps = self._steps + moving
        if self._search is not None:
            self._end(uphill)
            self._search.begin(moving, loss, slope, gradient, self._length)
            return
        self.point = torch.where(moving.unsqueeze(1), self.point + direction * length.unsqueeze(1), self.point)
        self._end(uphill | (moving & (self._steps >= settings.inner_steps)))
