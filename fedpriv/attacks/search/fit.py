"""Fit the images of N candidates to what was observed: Adam on any prior, with a stop rule of each candidate's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw

from fedpriv.attacks.search.cuda_graph import Replay, recorder_on

_GAIN = 0.99  # share to which the lowest objective must fall to count as progress
_LOOK_EVERY = 10  # steps between two looks at which rows have finished; results depend on it in the last digits only


def cooling(progress: float) -> float:
    """Return the share of a step size that is left: half a period of a cosine, from 1 to 0."""
    return 0.5 * (1 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class Schedule:
    """Course and stop rules of an optimisation; only the objective decides."""

    iterations: int  # of a row, at most
    learning_rate: float  # Adam's step size
    anneal: bool = False  # let the step size fall to zero along half a cosine
    average: float = 0.0  # decay of the running mean of the images shown, in [0, 1); 0 is no averaging
    tolerance: float = 1e-3  # a row is finished when its objective falls below
    patience: int = 300  # a row is finished when its lowest objective has not fallen by 1 % for so many steps
    fits: float = 0.0  # distance, penalties aside, at which an image counts as found; the search goes on below it
    halvings: tuple[float, ...] = ()  # shares of the iterations at each of which the worse half of a target's rows ends


class Adam:
    """Adam (Kingma and Ba 2015) and AdamW by torch's own functions: to the last bit ``torch.optim.Adam`` and ``AdamW``.

    Those classes import torch's compiler, a second or two of every process. ``weight_decay`` is AdamW's (Loshchilov and
    Hutter 2019); ``fused`` takes one kernel a tensor, on a GPU a few for all, which rounds otherwise.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        learning_rate: float,
        *,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        fused: bool = False,
    ) -> None:
        self.parameters = list(parameters)
        self._weight_decay, self._betas, self._epsilon, self._fused = weight_decay, betas, epsilon, fused
        self._means = [torch.zeros_like(value) for value in self.parameters]
        self._squares = [torch.zeros_like(value) for value in self.parameters]
        self._taken = [torch.zeros((), device=value.device if fused else None) for value in self.parameters]
        in_place = fused and self.parameters[0].is_cuda  # where recorded steps read it
        self.learning_rate = self.parameters[0].new_tensor(learning_rate) if in_place else learning_rate

    def pace(self, learning_rate: float) -> None:
        """Take steps of this size from now on."""
        if isinstance(self.learning_rate, Tensor):
            self.learning_rate.fill_(learning_rate)
        else:
            self.learning_rate = learning_rate

    def descend(self, loss: Tensor) -> None:
        """Take a step down a loss."""
        for value in self.parameters:
            value.grad = None
        loss.backward()
        self.step([value.grad for value in self.parameters])

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor | None]) -> None:
        """Move every parameter against its gradient; those without stay."""
        moved = [number for number, gradient in enumerate(gradients) if gradient is not None]
        parameters, means, squares, taken = (
            [values[number] for number in moved]
            for values in (self.parameters, self._means, self._squares, self._taken)
        )
        slopes = [_laid_out_as(self.parameters[number], gradients[number]) for number in moved]
        update = adamw if self._weight_decay else adam
        known: dict[str, Any] = {"lr": self.learning_rate, "weight_decay": self._weight_decay, "eps": self._epsilon}
        known |= {"beta1": self._betas[0], "beta2": self._betas[1], "amsgrad": False, "maximize": False}
        update(parameters, slopes, means, squares, [], taken, fused=self._fused, **known)

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows of every parameter only (int64 positions on the device of the parameters)."""
        self.parameters = [value.detach()[rows].requires_grad_() for value in self.parameters]
        self._means, self._squares = ([value[rows] for value in values] for values in (self._means, self._squares))


def _laid_out_as(value: Tensor, gradient: Tensor | None) -> Tensor:
    """Return a gradient in the memory order of its parameter, which fused kernels take for granted."""
    assert gradient is not None
    return gradient if gradient.stride() == value.stride() else torch.empty_like(value).copy_(gradient)


class Prior:
    """N rows of images, in the form in which they are searched for. Every parameter has the rows as its first axis.

    Attributes:
        parameters: leaf tensors to optimise; :func:`fit` puts others in their place.
    """

    parameters: list[Tensor]

    def prepare(self, progress: float) -> Hashable:
        """Draw what this iteration needs, and return its kind: iterations of one kind do the same operations."""
        return 0

    def shown(self, moving: Tensor) -> Tensor:
        """Return this iteration's images ``(N, c, h, w)``, with noise where a row is ``moving`` ``(N,)`` (bool)."""
        return self.clean()

    def clean(self) -> Tensor:
        """Return the images ``(N, c, h, w)`` of the present parameters without noise."""
        raise NotImplementedError

    def penalty(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return the summand ``(n,)`` beside the distance of images ``(n, c, h, w)`` of rows ``(n,)`` (first numbers)."""
        return images.new_zeros(len(images))

    def project(self) -> None:
        """Bring the parameters back to where they are allowed, after a step."""

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only (int64 positions on the CPU) of all but the parameters, which :func:`fit` sets."""


Distance = Callable[[Tensor, Tensor], Tensor]
"""(images ``(n, c, h, w)``, their rows ``(n,)`` int64 on the CPU) -> ``(n,)`` distances to what was observed."""


@dataclass(frozen=True)
class Fitted:
    """N rows after their last step."""

    images: Tensor  # (N, c, h, w) in [0, 1]
    objective: Tensor  # (N,) of exactly these images
    converged: Tensor  # (N,) bool, whether the objective is below the tolerance, or the distance alone says so
    steps: Tensor  # (N,) int64

    @property
    def iterations(self) -> int:
        """Steps of the slowest row."""
        return int(self.steps.max())


def fit(prior: Prior, distance: Distance, schedule: Schedule, tick: Callable[[int], None], restarts: int = 1) -> Fitted:
    """Optimise the rows of a prior until each has met its stop rule or the iterations are used up.

    The host looks every few steps only: then rows that ended are settled, and dropped when half are left. The ``restarts``
    rows of a target stand side by side. A row's result is the best, by the objective, of the image of its last parameters
    without noise, the running mean of the images shown, and the best image shown. ``tick`` is called with the steps done.
    """
    rate = schedule.learning_rate
    optimiser = Adam([p.detach().clone().requires_grad_() for p in prior.parameters], rate, fused=True)
    prior.parameters = optimiser.parameters
    rows = _Rows(prior, distance, schedule, restarts)

    def move() -> None:
        images = prior.shown(rows.moving)
        value = rows.objective(images, rows.numbers)
        # By a sum, of which every row has the slope one: slopes that are given make torch load its compiler's shapes.
        gradients = torch.autograd.grad(value.sum(), prior.parameters)
        rows.note(images.detach(), value.detach())
        optimiser.step(gradients)
        prior.project()

    device = optimiser.parameters[0].device
    step_again = Replay(move, (rows, optimiser, prior), recorder_on(device))
    step = 0
    for step in range(1, schedule.iterations + 1):
        done = (step - 1) / schedule.iterations
        if schedule.anneal:
            optimiser.pace(rate * cooling(done))
        step_again(prior.prepare(done))
        rows.halve(step)
        if step % _LOOK_EVERY == 0:
            if rows.look(step):
                step_again.reset()  # distances of other rows were computed, in place of what was kept for these
            left = rows.drop()
            if left is not None:
                if not len(left):
                    break
                optimiser.keep(left.to(device))
                prior.keep(left)
                prior.parameters = optimiser.parameters
        tick(step)
    return rows.finish(step)


class _Rows:
    """Rows on their way, and the images of those that have ended. Steps stay on the device: the host looks now and then.

    Of rows that are still computed it has their first ``numbers`` ``(n,)`` (int64 on the CPU), the running ``mean`` of the
    images shown, not yet divided by its weight, the ``best`` image shown, the ``clean`` one shown right after a row's last
    step ``(n, c, h, w)``, ``steps`` until the row met its stop rule, or so far, the ``lowest`` objective ``(n,)``, and which
    are ``moving`` ``(n,)``: the others are to show their clean image.
    """

    def __init__(self, prior: Prior, distance: Distance, schedule: Schedule, restarts: int) -> None:
        self._prior, self._distance, self._schedule, self._restarts = prior, distance, schedule, restarts
        with torch.no_grad():
            first = prior.clean().detach()
        rows = len(first)
        self.numbers, self._running = torch.arange(rows), torch.ones(rows, dtype=torch.bool)
        self.mean, self.best, self.clean = torch.zeros_like(first), first.clone(), first.clone()
        self.steps = torch.zeros(rows, dtype=torch.int64, device=first.device)
        self.lowest, self._mark = first.new_full((rows,), torch.inf), first.new_full((rows,), torch.inf)
        self._marked_at, self._now = torch.zeros_like(self.steps), torch.zeros_like(self.steps[0])
        self.moving = torch.ones(rows, dtype=torch.bool, device=first.device)
        # Of all rows that began.
        self._images, self._objective = first.clone(), first.new_full((rows,), torch.inf)
        self._ended_at, self._halved = torch.zeros(rows, dtype=torch.int64), torch.full((rows,), torch.inf)

    def objective(self, images: Tensor, numbers: Tensor) -> Tensor:
        """Return distance and penalty ``(n,)`` of images of some rows."""
        return self._distance(images, numbers) + self._prior.penalty(images, numbers)

    def note(self, images: Tensor, value: Tensor) -> None:
        """Remember the images shown at this step, whose objective is ``value`` ``(n,)``."""
        self._now += 1
        if self._schedule.average:
            mean = torch.lerp(self.mean, images, 1 - self._schedule.average)
            self.mean = torch.where(self.moving.view(-1, 1, 1, 1), mean, self.mean)
        self.steps = self.steps + self.moving
        # A row's image without noise after its last step is what it shows at the next.
        self.clean = torch.where((self.steps == self._now - 1).view(-1, 1, 1, 1), images, self.clean)
        better = (value < self.lowest) & self.moving
        self.lowest = torch.where(better, value, self.lowest)
        self.best = torch.where(better.view(-1, 1, 1, 1), images, self.best)
        gained = self.lowest < _GAIN * self._mark
        self._mark = torch.where(gained, self.lowest, self._mark)
        self._marked_at = torch.where(gained, self._now, self._marked_at)
        lately = self._marked_at > self._now - self._schedule.patience
        self.moving = self.moving & lately & (self.lowest >= self._schedule.tolerance) & (value < math.inf)

    def halve(self, step: int) -> None:
        """End the worse rows of each target, where this step is one to do so."""
        ends = [max(1, round(share * self._schedule.iterations)) for share in self._schedule.halvings]
        if step in ends and self._restarts > 1:
            number = -(-self._restarts // 2 ** sum(end <= step for end in ends))
            self._halved[self.numbers] = self.lowest.cpu()
            rank = self._halved.view(-1, self._restarts).argsort(dim=1, stable=True).argsort(1)
            self.moving = self.moving & (rank < number).flatten()[self.numbers].to(self.moving.device)

    def look(self, step: int) -> bool:
        """Settle the rows that have ended; return whether there are any."""
        ended_at = self.steps.cpu()
        # A row that ended with this very step has not shown its image without noise yet.
        return self._settle(self._running & (ended_at < step), ended_at, self.clean)

    def drop(self) -> Tensor | None:
        """Go on with the rows that run, and return their positions, where these are half or fewer; else None."""
        if 2 * int(self._running.sum()) > len(self._running):
            return None
        left = self._running.nonzero().flatten()
        names = "mean best clean steps lowest _mark _marked_at moving numbers _running"
        for name in names.split():
            values = getattr(self, name)
            setattr(self, name, values[left.to(values.device)])
        return left

    @torch.no_grad()
    def finish(self, step: int) -> Fitted:
        """Settle whatever is left after the last step."""
        if self._running.any():
            ended_at = self.steps.cpu().clamp_min(1)
            shown = (ended_at < step).view(-1, 1, 1, 1).to(self._images.device)
            self._settle(self._running, ended_at, torch.where(shown, self.clean, self._prior.clean()))
        apart = self._distance(self._images, torch.arange(len(self._images)))
        converged = (self._objective < self._schedule.tolerance) | (apart < self._schedule.fits)
        return Fitted(self._images, self._objective, converged, self._ended_at)

    @torch.no_grad()
    def _settle(self, ended: Tensor, ended_at: Tensor, clean: Tensor) -> bool:
        if not ended.any():
            return False
        places = ended.nonzero().flatten()
        there, numbers, steps = places.to(clean.device), self.numbers[places], ended_at[places]
        # The running mean started from zero; dividing by its weight makes it a mean (as in Adam).
        weight = 1 - self._schedule.average ** steps.to(clean.device, clean.dtype).view(-1, 1, 1, 1)
        lowest, chosen = torch.full_like(self._objective[numbers], torch.inf), self.best[there]
        means = (self.mean[there] / weight,) if self._schedule.average else ()
        for candidate in (clean[there], *means, self.best[there]):
            images = candidate.clamp(0, 1)
            value = self.objective(images, numbers)
            better = value < lowest
            lowest = torch.where(better, value, lowest)
            chosen = torch.where(better.view(-1, 1, 1, 1), images, chosen)
        self._images[numbers.to(clean.device)], self._objective[numbers.to(clean.device)] = chosen, lowest
        self._running = self._running & ~ended
        self._ended_at[numbers] = steps
        return True
