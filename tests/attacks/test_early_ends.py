"""Rows that their targets' others are ahead of end early: the one that would have won goes on as if alone."""

from dataclasses import replace

import pytest
import torch

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.observation import Knowledge, KnowledgeCard, TargetId
from fedpriv.attacks.priors.pixels import PixelPrior, PixelSettings
from fedpriv.attacks.search.candidates import fit_rows, solve_rows
from fedpriv.attacks.search.fit import Schedule, fit

CPU = torch.device("cpu")
SHAPE = (1, 4, 4)
WANTED = torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(3))
HARDER = torch.tensor([1.0, 3.0, 2.0, 4.0, 3.0, 1.0, 4.0, 2.0])
"""Of the eight rows of two targets: what their distances are times."""


def distance(images, rows):
    return HARDER[rows] * (images - WANTED[rows // 4]).square().flatten(1).mean(1)


def searched(schedule, restarts=4):
    draws = [torch.Generator().manual_seed(7) for _ in HARDER]  # alike, so that only the factors differ
    return fit(PixelPrior(draws, SHAPE, PixelSettings(), CPU), distance, schedule, lambda step: None, restarts=restarts)


def test_of_four_rows_two_end_and_then_one():
    halved = searched(Schedule(40, 1e-2, tolerance=0.0, halvings=(0.1, 0.25)))
    assert halved.steps.tolist() == [40, 4, 10, 4, 4, 40, 4, 10]
    whole = searched(Schedule(40, 1e-2, tolerance=0.0))
    assert whole.steps.tolist() == [40] * 8
    best = [0, 5]
    torch.testing.assert_close(halved.images[best], whole.images[best], rtol=0, atol=1e-6)
    assert halved.objective.view(2, 4).argmin(1).tolist() == [0, 1]
    assert searched(Schedule(40, 1e-2, tolerance=0.0, halvings=(0.1, 0.25)), restarts=1).steps.tolist() == [40] * 8


@pytest.mark.parametrize("chunk_rows", [1, 5, None])
def test_a_chunk_holds_all_rows_of_its_targets(chunk_rows):
    targets = tuple(TargetId(0, 0, place, 0) for place in range(2))
    problem = AttackProblem((), Knowledge(KnowledgeCard(), SHAPE, 10), targets, chunk_rows=chunk_rows)
    schedule, sizes = Schedule(20, 1e-2, tolerance=0.0, halvings=(0.25,)), []

    def solve(rows, tick):
        sizes.append(len(rows))
        prior = PixelPrior([row.generator(0) for row in rows], SHAPE, PixelSettings(), CPU)
        places = torch.tensor([4 * row.position + row.restart for row in rows])
        return fit_rows(rows, prior, lambda images, which: distance(images, places[which]), schedule, tick, restarts=4)

    found = solve_rows(problem, solve, restarts=4, iterations=20, bytes_per_row=1, together=True)
    assert sizes == ([8] if chunk_rows is None else [4, 4])
    assert found.cost.evaluations == 2 * 5 + 2 * 20
    whole = solve_rows(
        replace(problem, chunk_rows=None), solve, restarts=4, iterations=20, bytes_per_row=1, together=True
    )
    torch.testing.assert_close(found.images, whole.images, rtol=0, atol=1e-6)
    assert found.chosen.tolist() == whole.chosen.tolist()
