"""The inverse Hessian of L-BFGS for N rows at once, in compact form.

Byrd, Nocedal and Schnabel, "Representations of quasi-Newton matrices and their use in limited memory methods" (1994),
theorem 2.2: with the steps S and the changes Y of the gradient as columns, R the upper triangle of S'Y (in the order in
which pairs came), D its diagonal, and H0 = scale * I,

    H g = scale (g - Y p) + S q,    p = R^-1 S'g,    q = R^-T ((D + scale Y'Y) p - scale Y'g).

All sums over the D variables are two products with the whole history, instead of two for each pair one after the other.
R^-1 is kept as it is: a new pair adds a column to it, and where the oldest pair goes its row and column go too, whatever
the order of places in memory. So each row has its own ring, and nothing is moved or solved.


Line search to the strong Wolfe conditions, for N rows at once.

Nocedal and Wright, "Numerical Optimization" (2nd edition, 2006), algorithms 3.5 and 3.6 with the cubic interpolation of
equation 3.59. Each row brackets a good step and then narrows the bracket down, an evaluation at a time; which of both a row
is at is told by masks, so a row's steps do not depend on its company. Lengths, losses and slopes are double precision.


L-BFGS on N independent problems at once, without line search or with one.

Without, each row is minimised exactly as ``torch.optim.LBFGS`` would minimise it alone: its own curvature pairs, its own
step sizes, its own stop rules. All inner products are sums over a row. Each tick evaluates all rows once, whatever each is
at; what a row does is told by masks, and the program looks at them only every few ticks.

"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedpriv.attacks.search.cuda_graph import Replay, recorder_on

_LEAST_CURVATURE = 1e-10
"""A pair of step s and gradient change y is used only where ``y . s`` is above (the value of ``torch.optim.LBFGS``)."""


def whole_ring(device: torch.device) -> bool:
    """True where places that hold no pair yet are computed with too, as zeros: where steps of equal shapes are recorded."""
    return device.type == "cuda"


class Curvature:
    """Curvature pairs of N rows. Rows reject pairs on their own, so each has its own place in its own ring.

    Attributes:
        depth: places that were computed with for the last direction; -1 before the first.
    """

    def __init__(self, size: int, start: Tensor) -> None:
        rows, width = start.shape
        # One place more than the ring has: where rows write what they reject. It is never read.
        self._pairs = start.new_zeros(rows, 2, size + 1, width)
        self._inverse = start.new_zeros(rows, size + 1, size + 1)
        self._changes = start.new_zeros(rows, size + 1, size + 1)
        self._curvature = start.new_zeros(rows, size + 1)
        self._scale = start.new_ones(rows, 1)
        self._nothing = start.new_zeros(())  # a number of Python's would be moved to a GPU, which waits for it
        self._count = torch.zeros(rows, dtype=torch.int64, device=start.device)
        self._size = size
        self._rows = torch.arange(rows, device=start.device)
        self.depth = -1

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only (int64 positions)."""
        for name in ("_pairs", "_inverse", "_changes", "_curvature", "_scale", "_count"):
            setattr(self, name, getattr(self, name)[rows])
        self._rows = torch.arange(len(rows), device=rows.device)

    def direction(self, gradient: Tensor, step: Tensor, change: Tensor, taken: Tensor) -> Tensor:
        """Take in the pairs of the rows that took a step, and return minus the inverse Hessian times the gradients.

        Args:
            gradient: ``(N, D)``.
            step: ``(N, D)``.
            change: ``(N, D)`` of the gradient along the step.
            taken: ``(N,)`` bool; of other rows ``step`` and ``change`` have no part. The first time, of all rows.
        """
        whole = self.depth >= 0 and whole_ring(gradient.device)
        depth = self.depth = self._size if whole else min(self.depth + 1, self._size)  # so many pairs a row may have
        if not depth:
            return -gradient
        place, curvature = self._remember(step, change, taken)
        pairs = self._pairs[:, :, :depth].flatten(0, 1)
        both = torch.stack([gradient, change], 1)
        products = torch.bmm(both.unsqueeze(1).expand(-1, 2, -1, -1).flatten(0, 1), pairs.mT).view(-1, 2, 2, depth)
        self._fill(products[:, :, 1], place, curvature)
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
        count = self._count.unsqueeze(1)
        place = torch.where(good, count % self._size, self._size)
        self._pairs[self._rows, :, place[:, 0]] = torch.stack([step, change], 1)
        square = torch.linalg.vecdot(change, change).unsqueeze(1)
        self._scale = torch.where(good, curvature / square, self._scale)
        self._count = self._count + good[:, 0]
        return place, torch.where(good, curvature, 1.0)

    def _fill(self, products: Tensor, place: Tensor, curvature: Tensor) -> None:
        """Enter the newest change's products ``(N, 2, depth)`` with all steps and all changes at each row's place."""
        depth = self.depth
        rows, column = self._rows, place[:, 0]
        others = torch.ones_like(self._curvature).scatter_(1, place, 0.0)[:, :depth]
        self._inverse[rows, column] = self._nothing
        older = torch.bmm(self._inverse[:, :depth, :depth], (products[:, 0] * others).unsqueeze(2)).squeeze(2)
        self._inverse[rows, :depth, column] = (1 - others - older) / curvature
        self._changes[rows, column, :depth] = products[:, 1]
        self._changes[rows, :depth, column] = products[:, 1]
        self._curvature.scatter_(1, place, curvature)


_DECREASE = 1e-4
"""Sufficient decrease: f(t) <= f(0) + this * t * f'(0)."""

_CURVATURE = 0.9
"""Curvature: |f'(t)| <= this * |f'(0)|, the value that suits quasi-Newton directions."""

_LEAST_CHANGE = 1e-12
"""A bracket is narrow enough when the loss can hardly change by more within."""


class _Trial(NamedTuple):
    """Evaluated steps of N rows: lengths, losses there, slopes along the direction there; each ``(N,)``."""

    length: Tensor
    loss: Tensor
    slope: Tensor


class WolfeSearch:
    """The searches of N rows, some of which are under way.

    Attributes:
        active: ``(N,)`` bool, whether the row is searching.
        length: ``(N,)`` the step found, of rows that have arrived; of those that search the step to evaluate.
        loss: ``(N,)`` the loss at the step found.
        gradient: ``(N, D)`` the gradient there.
    """

    def __init__(self, points: Tensor, most: int) -> None:
        """Prepare for rows ``(N, D)``; a search asks at most ``most`` evaluations, then takes the lowest point it saw."""
        self._most = most
        zero = points.new_zeros(len(points), dtype=torch.float64)
        self.active = torch.zeros(len(points), dtype=torch.bool, device=points.device)
        self._narrowing = self.active
        self._number = torch.zeros(len(points), dtype=torch.int64, device=points.device)
        self.length = self.loss = zero
        self.gradient = torch.zeros_like(points)
        self._start = self._low = self._high = _Trial(zero, zero, zero)

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only (int64 positions)."""
        for name, value in list(vars(self).items()):
            if isinstance(value, Tensor):
                setattr(self, name, value[rows])
            elif isinstance(value, _Trial):
                setattr(self, name, _Trial(*(part[rows] for part in value)))

    def begin(self, which: Tensor, loss: Tensor, slope: Tensor, gradient: Tensor, length: Tensor) -> None:
        """Let some rows search.

        Args:
            which: ``(N,)`` bool.
            loss: ``(N,)`` at the start.
            slope: ``(N,)`` along the direction at the start, below zero.
            gradient: ``(N, D)`` at the start.
            length: ``(N,)`` first step to try.
        """
        start = _Trial(torch.zeros_like(self.length), loss.double(), slope.double())
        self._start, self._low = _chosen(which, start, self._start), _chosen(which, start, self._low)
        self.gradient = torch.where(which.unsqueeze(1), gradient, self.gradient)
        self.length = torch.where(which, length.double(), self.length)
        self._number = torch.where(which, 0, self._number)
        self._narrowing = self._narrowing & ~which
        self.active = self.active | which

    def asked(self, points: Tensor, directions: Tensor) -> Tensor:
        """Return where to evaluate ``(N, D)``: ahead of the points of rows that search, at the points of others."""
        ahead = points + self.length.to(points.dtype).unsqueeze(1) * directions
        return torch.where(self.active.unsqueeze(1), ahead, points)

    def answer(self, loss: Tensor, slope: Tensor, gradient: Tensor) -> Tensor:
        """Take in losses ``(N,)``, slopes and gradients ``(N, D)`` at the steps asked for; return which rows arrived.

        The gradient kept is that of the lower end of the bracket, which is what a search without success ends with.
        """
        now, start, low, high = _Trial(self.length, loss.double(), slope.double()), self._start, self._low, self._high
        self._number = self._number + self.active
        finite = now.loss.isfinite() & now.slope.isfinite()
        decreases = now.loss <= start.loss + _DECREASE * now.length * start.slope
        good = now.slope.abs() <= -_CURVATURE * start.slope
        first, narrowing = self._number <= 1, self._narrowing
        # What is too high, or too far out to say anything, bounds the bracket and is never taken.
        above = ~decreases | (now.loss >= low.loss) & (narrowing | ~first)
        unusable = torch.where(narrowing, ~finite | above, ~finite)
        high_now = ~unusable & above | narrowing & unusable
        success = ~unusable & ~above & good
        rises = torch.where(narrowing, now.slope * (high.length - low.length), now.slope) >= 0
        # The old lower end bounds the bracket on the other side where the loss rises again.
        turned = ~unusable & ~above & ~good & rises
        becomes_low = ~unusable & ~above
        self._high = _chosen(high_now, now, _chosen(turned, low, high))
        self._low = _chosen(becomes_low & self.active, now, low)
        self.gradient = torch.where((becomes_low & self.active).unsqueeze(1), gradient, self.gradient)
        self._narrowing = narrowing | (~unusable & (above | turned))
        self.length = self._next(now, low, finite)
        width = (self._high.length - self._low.length).abs() * start.slope.abs()
        given_up = (self._number >= self._most) | self._narrowing & (width < _LEAST_CHANGE)
        arrived = self.active & (success | given_up)
        self.length = torch.where(arrived, self._low.length, self.length)
        self.loss = torch.where(arrived, self._low.loss, self.loss)
        self.active = self.active & ~arrived
        return arrived

    def _next(self, now: _Trial, before: _Trial, finite: Tensor) -> Tensor:
        """Return the next steps to try, after ``now``; ``before`` is what was the lower end then."""
        low, high = self._low, self._high
        least, greatest = torch.minimum(low.length, high.length), torch.maximum(low.length, high.length)
        margin = 0.1 * (greatest - least)  # stay away from the ends, or the bracket might hardly shrink
        inside = torch.minimum(torch.maximum(_cubic_minimum(low, high), least + margin), greatest - margin)
        ahead = torch.minimum(torch.maximum(_cubic_minimum(before, now), 1.1 * now.length), 10 * now.length)
        ahead = torch.where(finite, ahead, 0.5 * (before.length + now.length))
        return torch.where(self._narrowing, inside, ahead)


def _chosen(which: Tensor, first: _Trial, second: _Trial) -> _Trial:
    return _Trial(*(torch.where(which, one, other) for one, other in zip(first, second, strict=True)))


def _cubic_minimum(first: _Trial, second: _Trial) -> Tensor:
    """Return the minimiser of the cubic through both trials' losses and slopes, their middle where there is none."""
    middle = 0.5 * (first.length + second.length)
    apart = second.length - first.length
    chord = first.slope + second.slope - 3 * (second.loss - first.loss) / apart
    root = torch.copysign((chord * chord - first.slope * second.slope).sqrt(), apart)
    bottom = second.slope - first.slope + 2 * root
    found = second.length - apart * (second.slope + root - chord) / bottom
    # No number, or none that is finite, wherever there is no such minimum.
    return torch.where(found.isfinite(), found, middle)


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
