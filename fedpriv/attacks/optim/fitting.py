"""Fit the images of N rows to what was observed: Adam on any prior, with a stop rule of each row's own."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedpriv.attacks.optim.adam import Adam
from fedpriv.attacks.optim.cuda_recorder import recorder_on
from fedpriv.attacks.optim.replay import Replay
from fedpriv.attacks.optim.row_records import RowRecords
from fedpriv.attacks.optim.schedule import Schedule
from fedpriv.util.numerics import FLOAT32, Numerics


class Prior(Protocol):
    """N rows of something that gives images. Every parameter has the rows as its first axis.

    Attributes:
        parameters: leaf tensors to optimise; whoever optimises puts others in their place.
    """

    parameters: list[Tensor]

    def prepare(self, progress: float) -> Hashable:
        """Draw what this iteration needs, and return its kind: iterations of one kind do the same operations.

        ``progress`` runs from 0 to 1. None is a kind of which no two need be alike.
        """
        ...

    def shown(self, moving: Tensor) -> Tensor:
        """Return this iteration's images ``(N, c, h, w)``, with noise or jitter where a row is ``moving`` ``(N,)`` (bool).

        Rows that are not moving show what :meth:`clean` shows, and have drawn as the others do.
        """
        ...

    def clean(self) -> Tensor:
        """Return the images ``(N, c, h, w)`` of the present parameters without noise or jitter."""
        ...

    def penalty(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return the summand beside the distance of each image ``(n, c, h, w)``, ``(n,)``.

        ``rows`` ``(n,)`` (int64 on the CPU) says whose images they are, by their numbers at the beginning.
        """
        ...

    def project(self) -> None:
        """Bring the parameters back to where they are allowed, after a step."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only (int64 positions)."""
        ...

    def compile(self) -> None:
        """Have the networks compiled from now on."""
        ...


Distance = Callable[[Tensor, Tensor], Tensor]
"""(images ``(n, c, h, w)``, their rows ``(n,)`` int64 on the CPU) -> ``(n,)`` distances to what was observed."""


@dataclass(frozen=True)
class Fitted:
    """N rows after their last step.

    Attributes:
        images: ``(N, c, h, w)`` in [0, 1].
        objective: ``(N,)`` of exactly these images.
        converged: ``(N,)`` bool, whether the objective is below the tolerance, or the distance alone says that it fits.
        steps: ``(N,)`` int64 steps of each row.
    """

    images: Tensor
    objective: Tensor
    converged: Tensor
    steps: Tensor

    @property
    def iterations(self) -> int:
        """Steps of the slowest row."""
        return int(self.steps.max())


def fit(
    prior: Prior,
    distance: Distance,
    schedule: Schedule,
    tick: Callable[[int], None],
    numerics: Numerics = FLOAT32,
    restarts: int = 1,
) -> Fitted:
    """Optimise the rows of a prior until each has met its stop rule or the iterations are used up.

    A row that has met its stop rule shows its image without noise from the next step on, and nothing of it counts any
    more. The host looks every few steps only: then such rows are settled, and dropped from the computation as soon as
    no more than half are left. Of the ``restarts`` rows of a target, which stand side by side, those with the higher
    objectives end where the schedule has them end. Settling compares three candidates by the objective, each evaluated as
    it would be returned: the row's parameters after its last step without noise, the running mean of the images shown, and
    the image shown with the lowest objective. ``tick`` is called with the number of steps done. Whatever is kept or
    compared at the end is computed in float32; ``numerics`` is of the search.
    """
    start = [values.detach().clone().requires_grad_() for values in prior.parameters]
    optimiser = Adam(start, schedule.rate(0.0), fused=True)
    prior.parameters = optimiser.parameters
    if numerics.compiled:
        prior.compile()
    settled = _Settled(prior, distance, schedule, restarts)

    def move() -> None:
        moving = settled.records.next()
        with numerics.searching(moving.device):
            images = prior.shown(moving).float()
            value = settled.objective(images, settled.rows)
        # By a sum, of which every row has the slope one: slopes that are given make torch load its compiler's shapes.
        gradients = torch.autograd.grad(value.sum(), prior.parameters)
        settled.records.note(images.detach(), value.detach(), moving)
        optimiser.step(gradients)
        prior.project()

    device, recorded = optimiser.parameters[0].device, numerics.recorded and not numerics.compiled
    moved = Replay(move, (settled.records, optimiser, prior), recorder_on(device, recorded=recorded))
    step = 0
    for step in range(1, schedule.iterations + 1):
        done = (step - 1) / schedule.iterations
        optimiser.pace(schedule.rate(done))
        moved(prior.prepare(done))
        settled.halve(step)
        if step % schedule.look_every == 0:
            left = settled.look(step)
            moved.begin_anew()  # distances were asked of other rows
            if left is not None and not len(left):
                break
            if left is not None:
                optimiser.keep(left.to(device))
                prior.keep(left)
                prior.parameters = optimiser.parameters
        tick(step)
    return settled.finish(step)


class _Settled:
    """The rows that are still computed, and the images of those that have ended, numbered as the caller does."""

    def __init__(self, prior: Prior, distance: Distance, schedule: Schedule, restarts: int) -> None:
        self._prior, self._distance, self._schedule, self._restarts = prior, distance, schedule, restarts
        with torch.no_grad():
            first = prior.clean().detach()
        self.records = RowRecords(first, schedule)
        self.rows = torch.arange(len(first))
        self._running = torch.ones(len(first), dtype=torch.bool)
        self._images = first.clone()
        self._objective = first.new_full((len(first),), torch.inf)
        self._steps = torch.zeros(len(first), dtype=torch.int64)
        self._lowest = torch.full((len(first),), torch.inf)

    def objective(self, images: Tensor, which: Tensor) -> Tensor:
        """Return distance and penalty ``(n,)`` of images of some rows."""
        return self._distance(images, which) + self._prior.penalty(images, which)

    def halve(self, step: int) -> None:
        """End the rows that their targets' others are ahead of, where this step is one to do so."""
        number = self._schedule.left(step, self._restarts)
        if number is None:
            return
        self._lowest[self.rows] = self.records.lowest.cpu()
        standing = self._lowest.view(-1, self._restarts).argsort(dim=1, stable=True).argsort(1)
        self.records.end((standing >= number).flatten()[self.rows])

    def look(self, step: int) -> Tensor | None:
        """Settle the rows that have ended; return which are left where that is half or fewer, else None."""
        ended_at = self.records.steps.cpu()
        # One that ended with this very step has not shown its image without noise yet.
        self._settle(self._running & (ended_at < step), ended_at, self.records.clean)
        if 2 * int(self._running.sum()) > len(self._running):
            return None
        left = self._running.nonzero().flatten()
        self.records.keep(left)
        self.rows, self._running = self.rows[left], self._running[left]
        return left

    @torch.no_grad()
    def finish(self, step: int) -> Fitted:
        """Settle whatever is left after the last step."""
        if self._running.any():
            ended_at = self.records.steps.cpu().clamp_min(1)
            shown = (ended_at < step).view(-1, 1, 1, 1).to(self._images.device)
            self._settle(self._running, ended_at, torch.where(shown, self.records.clean, self._prior.clean()))
        apart = self._distance(self._images, torch.arange(len(self._images)))
        converged = (self._objective < self._schedule.tolerance) | (apart < self._schedule.fits)
        return Fitted(self._images, self._objective, converged, self._steps)

    @torch.no_grad()
    def _settle(self, ended: Tensor, ended_at: Tensor, clean: Tensor) -> None:
        if not ended.any():
            return
        places = ended.nonzero().flatten()
        there, rows, steps = places.to(clean.device), self.rows[places], ended_at[places]
        # The running mean started from zero; dividing by its weight makes it a mean (as in Adam).
        weight = 1 - self._schedule.average ** steps.to(clean.device, clean.dtype).view(-1, 1, 1, 1)
        lowest, chosen = torch.full_like(self._objective[rows], torch.inf), self.records.best[there]
        means = (self.records.mean[there] / weight,) if self._schedule.average else ()
        for candidate in (clean[there], *means, self.records.best[there]):
            images = candidate.clamp(0, 1)
            value = self.objective(images, rows)
            better = value < lowest
            lowest = torch.where(better, value, lowest)
            chosen = torch.where(better.view(-1, 1, 1, 1), images, chosen)
        self._images[rows.to(clean.device)], self._objective[rows.to(clean.device)] = chosen, lowest
        self._running = self._running & ~ended
        self._steps[rows] = steps
