"""Candidates: an attack works on a batch of rows, a row being one target with one restart.

Every row draws from its own generator, so its result does not depend on which rows it is computed with, but for the last
digits: sums over a batch are added in an order that depends on its size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.observation import Cost, Reconstruction, TargetId
from fedpriv.attacks.search.fit import Distance, Prior, Schedule, fit
from fedpriv.util import seeds
from fedpriv.util.compute import FLOAT32, Numerics, free_memory, require
from fedpriv.util.errors import UserError, shown
from fedpriv.util.seeds import Last

_CPU_CHUNK_BYTES = 1 << 30
"""Most memory that a chunk takes on a CPU. Larger chunks gain no speed there."""

_SHARE = 0.5
"""Share of the free memory, of a graphics card or of the machine, that a chunk may take."""

_ROW_BYTES = 200
"""Memory of a row beside its images."""

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
    """N rows, solved.

    Attributes:
        images: ``(N, M, c, h, w)`` in [0, 1].
        objective: ``(N,)`` final objective of exactly these images, lower is better; not finite for a row that failed.
        converged: ``(N,)`` bool, whether the row met the attack's convergence rule.
        labels: ``(N, M)`` int64 labels that the row used or recovered, or -1.
        iterations: iterations of the row that took most.
        evaluations: ``(N,)`` int64, evaluations of the objective with its derivative; None for one an iteration.
    """

    images: Tensor
    objective: Tensor
    converged: Tensor
    labels: Tensor
    iterations: int
    evaluations: Tensor | None = None

    def evaluated(self) -> Tensor:
        """Return ``(N,)`` int64, evaluations that no row took more of."""
        each = torch.full((len(self.objective),), self.iterations)
        return each if self.evaluations is None else self.evaluations.cpu()


Solver = Callable[[Sequence[Row], Callable[[int], None]], Solved]
"""Solves a chunk of rows; the second argument is to be called with the number of iterations done."""


TargetDistance = Callable[[Tensor, Tensor], Tensor]
"""(images ``(n, M, c, h, w)``, places ``(n,)`` int64 of their targets, on the CPU) -> ``(n,)`` distances to the uploads."""


def by_target(rows: Sequence[Row], distance: TargetDistance, count: int = 1) -> Distance:
    """Return a distance of rows' pictures, each of ``count`` images, from one by targets."""
    positions = torch.tensor([row.position for row in rows])
    places: Last[Tensor, Tensor] = Last(lambda which: positions[which])
    return lambda pictures, which: distance(pictures.unflatten(1, (count, -1)), places(which))


def fit_rows(
    rows: Sequence[Row],
    prior: Prior,
    distance: Distance,
    schedule: Schedule,
    tick: Callable[[int], None],
    *,
    count: int = 1,
    restarts: int = 1,
    numerics: Numerics = FLOAT32,
) -> Solved:
    """Fit ``count`` images a row, which the prior shows one after the other along the channels; labels are the targets'.

    Where the schedule halves the rows of a target, they are ``restarts`` and stand side by side.
    """
    fitted = fit(prior, distance, schedule, tick, numerics, restarts)
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
    if len(parts) == 1:
        return parts[0][1]
    order = torch.tensor([position for places, _ in parts for position in places]).argsort()

    def values(name: str) -> Tensor:
        every = torch.cat([getattr(solved, name) for _, solved in parts])
        return every[order.to(every.device)]

    return Solved(
        images=values("images"),
        objective=values("objective"),
        converged=values("converged"),
        labels=values("labels"),
        iterations=max(solved.iterations for _, solved in parts),
        evaluations=torch.cat([solved.evaluated() for _, solved in parts])[order],
    )


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
) -> Iterator[tuple[Sequence[Row], T]]:
    """Work on rows in chunks, in order; yield each chunk with its result.

    Where a GPU runs out of memory, the chunk is halved and tried again, and so are those that follow. ``together`` rows side
    by side are never in different chunks.

    Raises:
        UserError: for a chunk of fewer than one row, or one that the CPU's memory cannot hold.
    """
    if problem.chunk_rows is not None and problem.chunk_rows < 1:
        raise UserError(f"chunk_rows={problem.chunk_rows}: expected at least 1")
    size = min(len(rows), problem.chunk_rows or rows_that_fit(bytes_per_row, problem.device))
    size = max(1, size // together) * together

    def fits(free: int) -> str:
        most = free // max(1, bytes_per_row)
        return f"chunk_rows={shown(most)} would fit" if most else "a smaller image_size would fit"

    if problem.device.type == "cpu":
        require(size * bytes_per_row, f"{size:,} rows of an attack (targets x restarts) at a time", fits, "chunk_rows")
    start = 0
    while start < len(rows):
        some = rows[start : start + size]
        try:
            result = work(some)
        except torch.cuda.OutOfMemoryError:
            if len(some) == together:
                raise
            result = None
        if result is None:  # outside the handler, whose error holds the tensors of the chunk
            size = max(1, len(some) // 2 // together) * together
            torch.cuda.empty_cache()
            problem.say(
                f"the GPU's memory is too small for {len(some)} rows of the attack at a time; going on with {size} "
                f"(chunk_rows={shown(size)} starts with that)"
            )
            continue
        yield some, result
        start += len(some)


def refuse_restarts(restarts: int, problem: AttackProblem) -> None:
    """Refuse more restarts than there is memory for their images, of which every one is kept until the best are known."""
    number, each = len(problem.targets), 4 * math.prod(problem.knowledge.image_shape) + _ROW_BYTES

    def fits(free: int) -> str:
        return f"restarts={shown(max(1, free // (number * each)))} would fit"

    require(number * restarts * each, f"{number:,} targets with {restarts:,} restarts each", fits, "restarts")


def solve_rows(
    problem: AttackProblem,
    solve: Solver,
    *,
    restarts: int,
    iterations: int,
    bytes_per_row: int,
    features: Tensor | None = None,
    together: bool = False,
) -> Reconstruction:
    """Solve every row in chunks and keep the restart with the lowest objective of each target.

    The chunk size follows from ``bytes_per_row`` where the problem names none; ``together`` keeps all rows of a target in
    one chunk. Images are fitted to ``features`` ``(T, d)``, if any.

    Raises:
        UserError: for fewer than one restart or row of a chunk, or more than memory holds.
    """
    targets, progress = problem.targets, problem.progress
    if restarts < 1:
        raise UserError(f"restarts={restarts}: expected at least 1")
    refuse_restarts(restarts, problem)
    rows = rows_of(targets, restarts)
    parts: list[tuple[range, Solved]] = []
    done = 0

    def solve_some(some: Sequence[Row]) -> Solved:
        planned = iterations * (len(parts) + -(-(len(rows) - done) // len(some)))

        def tick(number: int) -> None:
            if progress is not None:
                progress(len(parts) * iterations + number, planned)

        solved = solve(some, tick)
        tick(iterations)
        return solved

    for some, solved in in_chunks(problem, rows, solve_some, bytes_per_row, restarts if together else 1):
        parts.append((range(done, done + len(some)), solved))
        done += len(some)
    return best_restarts(targets, restarts, joined(parts), features)


def best_restarts(
    targets: tuple[TargetId, ...], restarts: int, solved: Solved, features: Tensor | None = None
) -> Reconstruction:
    """Return the restart with the lowest objective of each target, of rows in the order of :func:`rows_of`."""
    objective = solved.objective.view(len(targets), restarts)
    # A row that failed has no finite objective and must not win: NaN would, in an argmin.
    chosen = objective.nan_to_num(nan=torch.inf).argmin(1)
    best = torch.arange(len(targets), device=chosen.device) * restarts + chosen
    spent = solved.evaluated().view(len(targets), restarts).sum(1)
    return Reconstruction(
        targets=targets,
        images=solved.images[best],
        objective=objective,
        chosen=chosen,
        converged=solved.converged[best],
        labels=solved.labels[best],
        cost=Cost(iterations=solved.iterations, rows=len(targets) * restarts, evaluations=int(spent.max())),
        features=features,
    )
