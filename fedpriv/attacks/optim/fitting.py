"""Fit the images of N rows to what was observed: Adam on any prior, with a stop rule of each row's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Prior(Protocol):
    """N rows of something that gives images. Every parameter has the rows as its first axis.

    Attributes:
        parameters: leaf tensors to optimise, replaced by :meth:`keep`.
    """

    parameters: list[Tensor]

    def shown(self, progress: float) -> Tensor:
        """Return this iteration's images ``(N, c, h, w)``, with noise or jitter; ``progress`` runs from 0 to 1."""
        ...

    def clean(self) -> Tensor:
        """Return the images ``(N, c, h, w)`` of the present parameters without noise or jitter."""
        ...

    def penalty(self, images: Tensor) -> Tensor:
        """Return the summand beside the distance of each image, ``(N,)``."""
        ...

    def project(self) -> None:
        """Bring the parameters back to where they are allowed, after a step."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only (int64 positions)."""
        ...


Distance = Callable[[Tensor, Tensor], Tensor]
"""(images ``(n, c, h, w)``, their rows ``(n,)`` int64 on the CPU) -> ``(n,)`` distances to what was observed."""


@dataclass(frozen=True)
class Schedule:
    """Course and stop rules of an optimisation; only the objective decides.

    Attributes:
        iterations: most steps of a row.
        learning_rate: Adam's step size.
        anneal: let the step size fall to zero along half a cosine.
        average: decay of the running mean of the images shown, in [0, 1); 0 is no averaging.
        tolerance: a row is finished when its objective falls below.
        patience: a row is finished when its lowest objective has not fallen by 1 % for so many steps.
        fits: distance to what was observed, penalties aside, at which an image counts as found. The search goes on below it.
    """

    iterations: int
    learning_rate: float
    anneal: bool = False
    average: float = 0.0
    tolerance: float = 1e-3
    patience: int = 300
    fits: float = 0.0


@dataclass(frozen=True)
class Fitted:
    """N rows after their last step.

    Attributes:
        images: ``(N, c, h, w)`` in [0, 1].
        objective: ``(N,)`` of exactly these images.
        converged: ``(N,)`` bool, whether the objective is below the tolerance, or the distance alone says that it fits.
        iterations: steps of the slowest row.
    """

    images: Tensor
    objective: Tensor
    converged: Tensor
    iterations: int


_GAIN = 0.99
"""Share to which the lowest objective must fall to count as progress."""


class _Records:
    """Memory of the rows still running, one entry a row."""

    def __init__(self, images: Tensor) -> None:
        rows = len(images)
        self.mean = torch.zeros_like(images)
        self.best = images.clone()
        self.lowest = images.new_full((rows,), torch.inf)
        self.mark = images.new_full((rows,), torch.inf)
        self.marked_at = torch.zeros(rows, device=images.device)

    def keep(self, rows: Tensor) -> None:
        for name, values in list(vars(self).items()):
            setattr(self, name, values[rows.to(values.device)])


def fit(prior: Prior, distance: Distance, schedule: Schedule, tick: Callable[[int], None]) -> Fitted:
    """Optimise the rows of a prior until each has met its stop rule or the iterations are used up.

    A finished row's images are settled at once and never touched again; the row itself is dropped from the computation
    as soon as more than half of the rows are finished. Settling compares three candidates by the objective, each
    evaluated as it would be returned: the present parameters without noise, the running mean of the images shown, and
    the image shown with the lowest objective. ``tick`` is called with the number of steps done.
    """
    optimiser = _adam(prior.parameters, schedule.learning_rate)
    with torch.no_grad():
        first = prior.clean()
    rows = torch.arange(len(first))  # which rows are still computed, as the caller numbers them
    running = torch.ones(len(first), dtype=torch.bool)  # among them, which are not settled
    settled_images = first.clone()
    settled_objective = first.new_full((len(first),), torch.inf)
    records = _Records(first)

    def objective(images: Tensor, which: Tensor) -> Tensor:
        return distance(images, which) + prior.penalty(images)

    @torch.no_grad()
    def settle(finished: Tensor, steps: int) -> None:
        # The running mean started from zero; dividing by its weight makes it a mean (as in Adam).
        mean = records.mean / (1 - schedule.average**steps)
        lowest = torch.full_like(settled_objective[rows], torch.inf)
        chosen = records.best.clone()
        for candidate in (prior.clean(), mean, records.best):
            images = candidate.clamp(0, 1)
            value = objective(images, rows)
            better = value < lowest
            chosen[better], lowest[better] = images[better], value[better]
        settled_images[rows[finished]], settled_objective[rows[finished]] = chosen[finished], lowest[finished]
        running[finished] = False

    step = 0
    for step in range(1, schedule.iterations + 1):
        done = (step - 1) / schedule.iterations
        images = prior.shown(done)
        value = objective(images, rows)
        gradients = torch.autograd.grad(value.sum(), prior.parameters)
        finished = _note(records, images.detach(), value.detach(), step, schedule) & running
        if schedule.anneal:
            optimiser.param_groups[0]["lr"] = schedule.learning_rate * 0.5 * (1 + math.cos(math.pi * done))
        for parameter, gradient in zip(prior.parameters, gradients, strict=True):
            # The fused optimiser walks through memory: a gradient laid out otherwise would be applied in wrong places.
            parameter.grad = gradient.contiguous()
        optimiser.step()
        prior.project()
        if finished.any():
            settle(finished, step)
            if not running.any():
                break
            if 2 * int(running.sum()) < len(running):
                left = running.nonzero().flatten()
                optimiser = _keep_rows(prior, optimiser, left)
                records.keep(left)
                rows, running = rows[left], running[left]
        tick(step)
    if running.any():
        settle(running.clone(), max(step, 1))
    with torch.no_grad():
        apart = distance(settled_images, torch.arange(len(first)))
    converged = (settled_objective < schedule.tolerance) | (apart < schedule.fits)
    return Fitted(settled_images, settled_objective, converged, step)


def _note(records: _Records, images: Tensor, value: Tensor, step: int, schedule: Schedule) -> Tensor:
    """Remember the images just shown, whose objective is ``value``; return which rows met the stop rule (CPU, bool)."""
    records.mean.mul_(schedule.average).add_(images, alpha=1 - schedule.average)
    better = value < records.lowest
    records.lowest = torch.where(better, value, records.lowest)
    records.best = torch.where(better.view(-1, 1, 1, 1), images, records.best)
    gained = records.lowest < _GAIN * records.mark
    records.mark = torch.where(gained, records.lowest, records.mark)
    records.marked_at = torch.where(gained, step, records.marked_at)
    failed = ~value.isfinite()
    finished = (records.lowest < schedule.tolerance) | (step - records.marked_at >= schedule.patience) | failed
    return finished.cpu()


def _adam(parameters: list[Tensor], learning_rate: float) -> torch.optim.Adam:
    return torch.optim.Adam(parameters, lr=learning_rate, fused=True)


def _keep_rows(prior: Prior, optimiser: torch.optim.Adam, left: Tensor) -> torch.optim.Adam:
    """Drop the other rows from the prior and from Adam's moments."""
    before = list(prior.parameters)
    prior.keep(left)
    fresh = _adam(prior.parameters, optimiser.param_groups[0]["lr"])
    for old, new in zip(before, prior.parameters, strict=True):
        moments = optimiser.state[old]
        fresh.state[new] = {
            "step": moments["step"],
            "exp_avg": moments["exp_avg"][left.to(old.device)],
            "exp_avg_sq": moments["exp_avg_sq"][left.to(old.device)],
        }
    return fresh
