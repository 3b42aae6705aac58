"""Candidates: an attack works on a batch of rows, a row being one target with one restart, or with one of several settings.

Every row draws from its own generator, so its result depends on which rows it is computed with in the last digits only.

Successive halving: every row of a target begins, the better half goes on, and the last one takes what is left. Karnin, Koren
and Somekh, "Almost Optimal Exploration in Multi-Armed Bandits" (ICML 2013); Jamieson and Talwalkar, "Non-stochastic Best Arm
Identification and Hyperparameter Optimization" (AISTATS 2016). The last row gets the larger share of the budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.observation import Cost, Reconstruction, TargetId
from fedpriv.attacks.search.fit import Distance, Prior, Schedule, fit
from fedpriv.util import seeds
from fedpriv.util.compute import free_memory, require
from fedpriv.util.errors import UserError, shown

_CPU_CHUNK_BYTES = 1 << 30  # most memory that a chunk takes on a CPU; larger chunks gain no speed there
_SHARE = 0.5  # share of the free memory, of a graphics card or of the machine, that a chunk may take
_ROW_BYTES = 200  # memory of a row beside its images
_TRIAL = 0.2  # share of the iterations that choose the row that goes on

T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """One target, at its position among the attack's targets, with one restart."""

    target: TargetId
    position: int
    restart: int

    def generator(self, seed: int, *part: int | str) -> torch.Generator:
        """Return the row's own CPU generator, derived from (seed, round, client, index, restart) and the part of the row."""
        return seeds.generator(seed, self.target.round, self.target.client, self.target.index, self.restart, *part)


@dataclass(frozen=True)
class Solved:
    """N rows, solved."""

    images: Tensor  # (N, M, c, h, w) in [0, 1]
    objective: Tensor  # (N,) final, of exactly these images, lower is better; not finite for a row that failed
    converged: Tensor  # (N,) bool, whether the row met the attack's convergence rule
    labels: Tensor  # (N, M) int64 that the row used or recovered, or -1
    iterations: int  # of the row that took most
    evaluations: Tensor  # (N,) int64, of the objective with its derivative


_RESULTS = ("images", "objective", "converged", "labels")
"""Fields that hold the result of each row."""


Tick = Callable[[int], None]
"""Called with the number of iterations done."""

TargetDistance = Callable[[Tensor, Tensor], Tensor]
"""(images ``(n, M, c, h, w)``, places ``(n,)`` int64 of their targets, on the CPU) -> ``(n,)`` distances to the uploads."""


def fit_rows(
    rows: Sequence[Row],
    prior: Prior,
    distance: Distance,
    schedule: Schedule,
    tick: Tick,
    *,
    count: int = 1,
    restarts: int = 1,
) -> Solved:
    """Fit ``count`` images a row, which the prior shows one after the other along the channels; labels are the targets'.

    Where the schedule halves the rows of a target, they are ``restarts`` side by side.
    """
    fitted = fit(prior, distance, schedule, tick, restarts)
    labels = torch.tensor([row.target.label for row in rows], device=fitted.images.device)
    return Solved(
        images=fitted.images.unflatten(1, (count, -1)),
        objective=fitted.objective,
        converged=fitted.converged,
        labels=labels.unsqueeze(1).expand(-1, count),
        iterations=fitted.iterations,
        evaluations=fitted.steps,
    )


def rows_of(targets: Sequence[TargetId], restarts: int) -> tuple[Row, ...]:
    """Return targets x restarts, the restarts of a target side by side."""
    return tuple(Row(target, index, again) for index, target in enumerate(targets) for again in range(restarts))


def joined(parts: Sequence[tuple[Sequence[int], Solved]]) -> Solved:
    """Return solved rows as one, each part with the places of its rows, which are all of 0..N-1."""
    first, every = parts[0][1], [solved for _, solved in parts]
    if len(parts) == 1:
        return first
    order = torch.tensor([position for places, _ in parts for position in places]).argsort()

    def whole(name: str) -> Tensor:
        values = torch.cat([getattr(solved, name) for solved in every])
        return values[order.to(values.device)]

    evaluations = torch.cat([solved.evaluations.cpu() for solved in every])[order]
    iterations = max(solved.iterations for solved in every)
    return Solved(iterations=iterations, evaluations=evaluations, **{name: whole(name) for name in _RESULTS})


def rows_that_fit(bytes_per_row: int, device: torch.device) -> int:
    """Return the number of rows to compute at a time by an estimate of their memory, at least one."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # memory that searches before this one left is free
        budget = int(torch.cuda.mem_get_info(device)[0] * _SHARE)
    else:
        free = free_memory()
        budget = _CPU_CHUNK_BYTES if free is None else min(_CPU_CHUNK_BYTES, int(free * _SHARE))
    return max(1, budget // max(1, bytes_per_row))


def in_chunks(
    problem: AttackProblem,
    rows: Sequence[Row],
    work: Callable[[Sequence[Row]], T],
    bytes_per_row: int,
    together: int = 1,
) -> Iterator[tuple[range, T]]:
    """Work on rows in chunks, in order; yield the places of each chunk with its result.

    Where a GPU runs out of memory, the chunk is halved and tried again, and so are those that follow. ``together`` rows side
    by side are never in different chunks. Refuses a chunk of no row, or one that the CPU's memory cannot hold.
    """
    if problem.chunk_rows is not None and problem.chunk_rows < 1:
        raise UserError(f"chunk_rows={problem.chunk_rows}: expected at least 1")
    size = min(len(rows), problem.chunk_rows or rows_that_fit(bytes_per_row, problem.device))
    size = max(1, size // together) * together

    def fits(free: int) -> str:
        most = free // max(1, bytes_per_row)
        return f"chunk_rows={shown(most)} would fit" if most else "a smaller image_size would fit"

    if problem.device.type == "cpu":
        require(size * bytes_per_row, f"{size:,} candidates (targets x restarts) at a time", fits, "chunk_rows")
    start = 0
    while start < len(rows):
        places = range(start, min(start + size, len(rows)))
        try:
            result = work(rows[start : places.stop])
        except torch.cuda.OutOfMemoryError:
            if len(places) == together:
                raise
            result = None
        if result is None:  # outside the handler, whose error holds the tensors of the chunk
            size = max(1, len(places) // 2 // together) * together
            torch.cuda.empty_cache()
            problem.say(
                f"the GPU's memory is too small for {len(places)} candidates at a time; going on with {size} "
                f"(chunk_rows={shown(size)} starts with that)"
            )
            continue
        yield places, result
        start = places.stop


def _all_rows(problem: AttackProblem, restarts: int) -> tuple[Row, ...]:
    """Return the rows of all targets; refuse more than memory holds: every image is kept until the best are known."""
    number, each = len(problem.targets), 4 * math.prod(problem.knowledge.image_shape) + _ROW_BYTES

    def fits(free: int) -> str:
        return f"restarts={shown(max(1, free // (number * each)))} would fit"

    require(number * restarts * each, f"{number:,} targets with {restarts:,} restarts each", fits, "restarts")
    return rows_of(problem.targets, restarts)


def solve_rows(
    problem: AttackProblem,
    solve: Callable[[Sequence[Row], Tick], Solved],
    *,
    restarts: int,
    iterations: int,
    bytes_per_row: int,
    together: bool = False,
) -> Reconstruction:
    """Solve every row in chunks and keep each target's restart with the lowest objective; refuse more than memory holds.

    The chunk size follows from ``bytes_per_row`` where the problem names none; ``together`` keeps all rows of a target in
    one chunk.
    """
    rows, parts = _all_rows(problem, restarts), list[tuple[range, Solved]]()

    def solve_some(some: Sequence[Row]) -> Solved:
        done = parts[-1][0].stop if parts else 0
        planned = iterations * (len(parts) + -(-(len(rows) - done) // len(some)))

        def tick(number: int) -> None:
            if problem.progress is not None:
                problem.progress(len(parts) * iterations + number, planned)

        solved = solve(some, tick)
        tick(iterations)
        return solved

    for part in in_chunks(problem, rows, solve_some, bytes_per_row, restarts if together else 1):
        parts.append(part)
    return _best_restarts(problem.targets, restarts, joined(parts))


def _best_restarts(targets: tuple[TargetId, ...], restarts: int, solved: Solved) -> Reconstruction:
    """Return the restart with the lowest objective of each target, of rows in the order of :func:`rows_of`."""
    objective = solved.objective.view(len(targets), restarts)
    # A row that failed has no finite objective and must not win: NaN would, in an argmin.
    chosen = objective.nan_to_num(nan=torch.inf).argmin(1)
    best = torch.arange(len(targets), device=chosen.device) * restarts + chosen
    spent = solved.evaluations.view(len(targets), restarts).sum(1)
    return Reconstruction(
        targets=targets,
        images=solved.images[best],
        objective=objective,
        converged=solved.converged[best],
        labels=solved.labels[best],
        cost=Cost(iterations=solved.iterations, rows=len(targets) * restarts, evaluations=int(spent.max())),
    )


class Rung(NamedTuple):
    """A part of the budget of a target: rows that take part, and the iterations of each."""

    rows: int
    iterations: int


Search = Callable[[Sequence[Row], int, Tensor | None, Tick], Solved]
"""(rows, iterations of each, their images so far ``(N, M, c, h, w)`` or None, listener of iterations) -> solved rows."""


def ladder(rows: int, budget: int, least: int) -> tuple[Rung, ...]:
    """Return rungs of fewer and fewer rows, which together take ``budget`` iterations of a target, neither more nor fewer.

    Rungs of more than one row take at most a fifth; so few rows begin that each has ``least`` iterations.
    """
    most = max(1, int(_TRIAL * budget / max(least, 1)))  # as many as the first rung can give so much
    for begin in range(min(rows, most), 0, -1):
        counts = [begin]
        while counts[-1] > 1:
            counts.append(-(-counts[-1] // 2))
        trials = counts[:-1]
        each = [int(_TRIAL * budget / len(trials) / count) for count in trials]
        if not each or min(each) >= least:
            break
    rungs = [Rung(count, iterations) for count, iterations in zip(trials, each, strict=True)]
    return (*rungs, Rung(1, budget - sum(rung.rows * rung.iterations for rung in rungs)))


def climb(problem: AttackProblem, search: Search, rungs: Sequence[Rung], bytes_per_row: int) -> Reconstruction:
    """Search rung by rung, each row from its best images on; return each target's row with the lowest objective ever."""
    starts = rungs[0].rows
    rows = _all_rows(problem, starts)
    planned, done = len(problem.targets) * sum(rung.rows * rung.iterations for rung in rungs), 0
    best: Solved | None = None
    iterations, which = torch.zeros(len(rows), dtype=torch.int64), torch.arange(len(rows))

    def go_on(some: Sequence[Row]) -> Solved:
        began = done

        def tick(number: int) -> None:
            if problem.progress is not None:
                problem.progress(began + number * len(some), planned)

        known = None if best is None else best.images[[row.position * starts + row.restart for row in some]]
        solved = search(some, rung.iterations, known, tick)
        tick(rung.iterations)
        return solved

    for rung in rungs:
        if best is not None:  # the best rows of each target go on; failed ones are last
            ranked = best.objective.view(-1, starts).nan_to_num(nan=torch.inf, posinf=torch.inf).cpu()
            leaders = ranked.argsort(dim=1, stable=True)[:, : rung.rows].sort(1).values
            which = (leaders + torch.arange(len(leaders))[:, None] * starts).flatten()
        parts = []
        for places, solved in in_chunks(problem, [rows[position] for position in which.tolist()], go_on, bytes_per_row):
            parts.append((places, solved))
            iterations[which[places.start : places.stop]] += solved.iterations
            done += len(places) * rung.iterations
        best = joined(parts) if best is None else _better(best, joined(parts), which)
    assert best is not None
    return _best_restarts(problem.targets, starts, replace(best, iterations=int(iterations.max())))


def _better(best: Solved, new: Solved, which: Tensor) -> Solved:
    """Return the better result of each row, ``new`` being those of the rows ``which``; evaluations add up."""
    earlier = best.objective[which.to(best.objective.device)]
    better = new.objective.nan_to_num(nan=torch.inf) < earlier.nan_to_num(nan=torch.inf)

    def chosen(name: str) -> Tensor:
        values: Tensor = getattr(best, name)
        position = which.to(values.device)
        mask = better.to(values.device).view(-1, *[1] * (values.dim() - 1))
        return values.index_copy(0, position, torch.where(mask, getattr(new, name), values[position]))

    spent = best.evaluations.cpu().index_add(0, which, new.evaluations.cpu())
    return Solved(iterations=best.iterations, evaluations=spent, **{name: chosen(name) for name in _RESULTS})
