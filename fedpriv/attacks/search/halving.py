"""Successive halving: every row of a target begins, the better half goes on, and the last one takes what is left.

Karnin, Koren and Somekh, "Almost Optimal Exploration in Multi-Armed Bandits" (ICML 2013); Jamieson and Talwalkar,
"Non-stochastic Best Arm Identification and Hyperparameter Optimization" (AISTATS 2016). Departs from them in that the last
row gets the larger share of the budget: here the row is the result itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.observation import Reconstruction
from fedpriv.attacks.search.candidates import Row, Solved, best_restarts, in_chunks, joined, refuse_restarts, rows_of


@dataclass(frozen=True)
class Rung:
    """A part of the budget of a target: rows that take part, and the iterations of each."""

    rows: int
    iterations: int


Search = Callable[[Sequence[Row], int, Tensor | None, Callable[[int], None]], Solved]
"""(rows, iterations of each, their images so far ``(N, M, c, h, w)`` or None, listener of iterations) -> solved rows."""


def ladder(rows: int, budget: int, trial: float, least: int) -> tuple[Rung, ...]:
    """Return rungs of fewer and fewer rows, which together take ``budget`` iterations of a target, neither more nor fewer.

    Rungs of more than one row take at most a share ``trial``; so few rows begin that each has ``least`` iterations.
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
    rungs = [Rung(count, iterations) for count, iterations in zip(trials, each, strict=True)]
    return (*rungs, Rung(1, budget - sum(rung.rows * rung.iterations for rung in rungs)))


def climb(problem: AttackProblem, search: Search, rungs: Sequence[Rung], bytes_per_row: int) -> Reconstruction:
    """Search rung by rung; the result of a target is the row with the lowest objective that any had.

    A row goes on from its best images. Which rows go on depends on their own target alone, so results do not depend on
    chunks or on which targets are attacked together.

    Raises:
        UserError: for more rows than memory holds.
    """
    starts = rungs[0].rows
    refuse_restarts(starts, problem)
    rows = rows_of(problem.targets, starts)
    places = {row: index for index, row in enumerate(rows)}
    planned, done = len(problem.targets) * sum(rung.rows * rung.iterations for rung in rungs), 0
    best: Solved | None = None
    iterations = torch.zeros(len(rows), dtype=torch.int64)

    def go_on(some: Sequence[Row]) -> Solved:
        began = done

        def tick(number: int) -> None:
            if problem.progress is not None:
                problem.progress(began + number * len(some), planned)

        known = None if best is None else best.images[[places[row] for row in some]]
        solved = search(some, rung.iterations, known, tick)
        tick(rung.iterations)
        return solved

    for rung in rungs:
        which = torch.arange(len(rows)) if best is None else _leaders(best.objective.view(-1, starts), rung.rows)
        parts: list[tuple[range, Solved]] = []
        for some, solved in in_chunks(problem, [rows[position] for position in which.tolist()], go_on, bytes_per_row):
            before = sum(len(part) for part, _ in parts)
            parts.append((range(before, before + len(some)), solved))
            iterations[which[before : before + len(some)]] += solved.iterations
            done += len(some) * rung.iterations
        best = joined(parts) if best is None else _better(best, joined(parts), which)
    assert best is not None
    evaluated = Solved(
        best.images, best.objective, best.converged, best.labels, int(iterations.max()), best.evaluated()
    )
    return best_restarts(problem.targets, starts, evaluated)


def _leaders(objective: Tensor, number: int) -> Tensor:
    """Return the positions of the best rows of each target, in order, by objectives ``(T, R)``; failed ones are last."""
    ranked = objective.nan_to_num(nan=torch.inf, posinf=torch.inf).cpu().argsort(dim=1, stable=True)[:, :number]
    return (ranked.sort(1).values + torch.arange(len(objective))[:, None] * objective.shape[1]).flatten()


def _better(best: Solved, new: Solved, which: Tensor) -> Solved:
    """Return the better result of each row, ``new`` being those of the rows ``which``; evaluations add up."""
    there = which.to(best.objective.device)
    better = new.objective.nan_to_num(nan=torch.inf) < best.objective[there].nan_to_num(nan=torch.inf)

    def chosen(name: str) -> Tensor:
        values: Tensor = getattr(best, name)
        position = which.to(values.device)
        mask = better.to(values.device).view(-1, *[1] * (values.dim() - 1))
        return values.index_copy(0, position, torch.where(mask, getattr(new, name), values[position]))

    return Solved(
        images=chosen("images"),
        objective=chosen("objective"),
        converged=chosen("converged"),
        labels=chosen("labels"),
        iterations=best.iterations,
        evaluations=best.evaluated().index_add(0, which, new.evaluated()),
    )
