"""Successive halving: every row of a target begins, the better half goes on, and the last one takes what is left.

Karnin, Koren and Somekh, "Almost Optimal Exploration in Multi-Armed Bandits" (ICML 2013); Jamieson and Talwalkar,
"Non-stochastic Best Arm Identification and Hyperparameter Optimization" (AISTATS 2016). Departs from them in that the last
row gets the larger share of the budget: here a row is not only judged by what it finds, it is what is wanted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.observation import Cost, Reconstruction
from fedpriv.attacks.search.candidates import Row, Solved, in_chunks, refuse_restarts, rows_of


@dataclass(frozen=True)
class Rung:
    """A part of the budget of a target.

    Attributes:
        rows: of the target that take part.
        iterations: of each of them.
    """

    rows: int
    iterations: int


Search = Callable[[Sequence[Row], int, Tensor | None, Callable[[int], None]], Solved]
"""(rows, iterations of each, their images so far ``(N, M, c, h, w)`` or None, told of iterations done) -> solved rows."""


def together(parts: Sequence[tuple[Sequence[int], Solved]]) -> Solved:
    """Return solved rows as one, each part with the places of its rows, which are all of 0..N-1."""
    if len(parts) == 1:
        return parts[0][1]
    order = torch.tensor([place for places, _ in parts for place in places]).argsort()

    def joined(name: str) -> Tensor:
        found = torch.cat([getattr(solved, name) for _, solved in parts])
        return found[order.to(found.device)]

    return Solved(
        images=joined("images"),
        objective=joined("objective"),
        converged=joined("converged"),
        labels=joined("labels"),
        iterations=max(solved.iterations for _, solved in parts),
        evaluations=torch.cat([solved.evaluated() for _, solved in parts])[order],
    )


def ladder(rows: int, budget: int, trial: float, least: int) -> tuple[Rung, ...]:
    """Return rungs of fewer and fewer rows, which together take ``budget`` iterations of a target, neither more nor fewer.

    Args:
        rows: that would begin.
        budget: iterations of all of a target's rows together, at least one.
        trial: share of it that the rungs of more than one row may take.
        least: iterations of a row below which nothing can be seen; so few rows begin that each has as many.
    """
    most = max(1, int(trial * budget / max(least, 1)))  # as many as the first rung can give so much
    for begin in range(min(rows, most), 0, -1):
        counts = [begin]
        while counts[-1] > 1:
            counts.append(-(-counts[-1] // 2))
        trials = counts[:-1]
        each = [int(trial * budget / len(trials) / count) for count in trials]
        if not each or min(each) >= least:
            break
    spent = sum(count * own for count, own in zip(trials, each, strict=True))
    return (*(Rung(count, own) for count, own in zip(trials, each, strict=True)), Rung(1, budget - spent))


@dataclass(frozen=True)
class _Standing:
    """The best that a row has found so far."""

    row: Row
    images: Tensor
    objective: float
    converged: Tensor
    labels: Tensor
    iterations: int
    evaluations: int

    @property
    def rank(self) -> float:
        """Its objective; a row that failed comes last."""
        return math.inf if math.isnan(self.objective) else self.objective


def climb(problem: AttackProblem, search: Search, rungs: Sequence[Rung], bytes_per_row: int) -> Reconstruction:
    """Search rung by rung; the row with the lowest objective that any had is what is returned of a target.

    A row goes on from the images that it has found. Which rows go on depends on their own target alone, so results do not
    depend on chunks or on which targets are attacked together.

    Args:
        problem: T targets, the device, how many rows at a time, and whom to tell of progress.
        search: goes on with a chunk of rows.
        rungs: as of :func:`ladder`.
        bytes_per_row: estimate of a row's memory.

    Raises:
        UserError: for more rows than memory holds.
    """
    refuse_restarts(rungs[0].rows, problem)
    budget = sum(rung.rows * rung.iterations for rung in rungs)
    planned, done = len(problem.targets) * budget, 0
    standings: dict[Row, _Standing] = {}
    rows = rows_of(problem.targets, rungs[0].rows)

    def go_on(some: Sequence[Row], iterations: int) -> Solved:
        began = done

        def tick(number: int) -> None:
            if problem.progress is not None:
                problem.progress(began + number * len(some), planned)

        known = [standings[row].images for row in some if row in standings]
        found = search(some, iterations, torch.stack(known) if known else None, tick)
        tick(iterations)
        return found

    for rung in rungs:
        rows = _going_on(standings, len(problem.targets), rung.rows) if standings else rows
        for some, found in in_chunks(problem, rows, partial(go_on, iterations=rung.iterations), bytes_per_row):
            done += len(some) * rung.iterations
            _note(standings, some, found)
    return _chosen(problem, standings, rungs[0].rows)


def _going_on(standings: dict[Row, _Standing], targets: int, number: int) -> tuple[Row, ...]:
    """Return the best rows of each target, in the order of rows."""
    by_target: list[list[_Standing]] = [[] for _ in range(targets)]
    for one in standings.values():
        by_target[one.row.position].append(one)
    best = [sorted(own, key=lambda one: (one.rank, one.row.restart))[:number] for own in by_target]
    return tuple(one.row for own in best for one in sorted(own, key=lambda one: one.row.restart))


def _note(standings: dict[Row, _Standing], some: Sequence[Row], found: Solved) -> None:
    """Keep what each row has found, unless it had found better before."""
    each = zip(some, found.objective.tolist(), found.evaluated().tolist(), strict=True)
    for place, (row, objective, taken) in enumerate(each):
        own = found.images[place], objective, found.converged[place], found.labels[place]
        new = _Standing(row, *own, found.iterations, taken)
        before = standings.get(row)
        if before is not None:
            best = before if before.rank <= new.rank else new
            taken += before.evaluations
            new = replace(best, iterations=before.iterations + new.iterations, evaluations=taken)
        standings[row] = new


def _chosen(problem: AttackProblem, standings: dict[Row, _Standing], each: int) -> Reconstruction:
    """Return the best row of each target."""
    found = [standings[row] for row in rows_of(problem.targets, each)]
    by_target = [found[start : start + each] for start in range(0, len(found), each)]
    best = [min(own, key=lambda one: (one.rank, one.row.restart)) for own in by_target]
    spent = max(sum(one.evaluations for one in own) for own in by_target)
    device = best[0].images.device
    return Reconstruction(
        targets=problem.targets,
        images=torch.stack([one.images for one in best]),
        objective=torch.tensor([one.objective for one in found], device=device).view(-1, each),
        chosen=torch.tensor([one.row.restart for one in best], device=device),
        converged=torch.stack([one.converged for one in best]),
        labels=torch.stack([one.labels for one in best]),
        cost=Cost(iterations=max(one.iterations for one in found), rows=len(found), evaluations=spent),
    )
