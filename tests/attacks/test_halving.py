"""Successive halving: the budget is spent to the last iteration, on the rows that their own target's results speak for."""

from itertools import pairwise

import pytest
import torch
from compare import expect_same
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.observation import Knowledge, TargetId, ThreatModel
from fedpriv.attacks.search.candidates import Solved
from fedpriv.attacks.search.halving import Rung, climb, ladder

SHAPE = (1, 2, 2)
TARGETS = tuple(TargetId(0, client) for client in range(5))


def problem(chunk_rows=None, targets=TARGETS, progress=None):
    knowledge = Knowledge(ThreatModel(), SHAPE, 10)
    return AttackProblem((), knowledge, targets, seed=3, chunk_rows=chunk_rows, progress=progress)


class Race:
    """Rows whose objective falls by iterations, each at a speed of its own, and that add up what they took."""

    def __init__(self, speed):
        self.speed = speed
        self.taken = {}

    def __call__(self, rows, iterations, begun, tick):
        start = torch.zeros(len(rows), 1, *SHAPE) if begun is None else begun
        done = start[:, 0, 0, 0, 0] + torch.tensor([iterations * self.speed(row) for row in rows])
        for row in rows:
            self.taken[row] = self.taken.get(row, 0) + iterations
        objective = 1 / (1 + done)
        return Solved(
            start + done.view(-1, 1, 1, 1, 1) - start,
            objective,
            objective < 0,
            done.new_zeros(len(rows), 1),
            iterations,
        )


def speed_of(row):
    return float((row.target.client + row.restart) % 4 + 1)


@given(st.integers(1, 20), st.integers(1, 5000), st.floats(0, 0.9))
def test_the_budget_is_spent_exactly(rows, budget, trial):
    rungs = ladder(rows, budget, trial, 12)
    assert sum(rung.rows * rung.iterations for rung in rungs) == budget
    assert rungs[-1].rows == 1
    assert all(later.rows < earlier.rows for earlier, later in pairwise(rungs))
    assert all(rung.iterations >= 12 for rung in rungs[:-1])
    assert sum(rung.rows * rung.iterations for rung in rungs[:-1]) <= trial * budget


def test_a_budget_too_small_for_trials_goes_to_one_row():
    assert ladder(4, 100, 0.2, 12) == (Rung(1, 100),)
    assert ladder(4, 200, 0.2, 12) == (Rung(2, 20), Rung(1, 160))
    assert ladder(10**9, 200, 0.2, 12) == (Rung(2, 20), Rung(1, 160))
    assert ladder(4, 1000, 0.2, 12) == (Rung(4, 25), Rung(2, 50), Rung(1, 800))


def test_the_fastest_row_of_each_target_wins_and_takes_the_rest():
    race = Race(speed_of)
    found = climb(problem(), race, ladder(4, 1000, 0.2, 12), 1)
    expect_same(found.chosen, torch.tensor([3, 2, 1, 0, 3]))
    expect_same(found.chosen, found.objective.argmin(1))
    assert [sum(own for row, own in race.taken.items() if row.target == target) for target in TARGETS] == [1000] * 5
    assert (found.cost.evaluations, found.cost.rows, found.cost.iterations) == (1000, 20, 875)


@pytest.mark.parametrize("chunk_rows", [1, 3, 7])
def test_chunks_and_companions_change_nothing(chunk_rows):
    rungs = ladder(4, 1000, 0.2, 12)
    whole = climb(problem(), Race(speed_of), rungs, 1)
    parts = climb(problem(chunk_rows), Race(speed_of), rungs, 1)
    alone = climb(problem(targets=TARGETS[2:3]), Race(speed_of), rungs, 1)
    for name in ("images", "objective", "chosen"):
        expect_same(getattr(whole, name), getattr(parts, name))
        expect_same(getattr(whole, name)[2:3], getattr(alone, name))


def test_a_row_that_fails_does_not_go_on_and_one_that_gets_worse_keeps_what_it_had():
    def failing(row):
        return float("nan") if row.restart == 3 else speed_of(row)

    found = climb(problem(), Race(failing), ladder(4, 1000, 0.2, 12), 1)
    assert (found.chosen != 3).all()
    assert found.objective[:, 3].isnan().all()

    class Tiring(Race):
        def __call__(self, rows, iterations, begun, tick):
            solved = super().__call__(rows, iterations, begun, tick)
            if begun is not None:
                solved.objective.add_(10)
            return solved

    first = climb(problem(), Race(speed_of), (Rung(2, 50),), 1)
    again = climb(problem(), Tiring(speed_of), (Rung(2, 50), Rung(1, 900)), 1)
    expect_same(first.images, again.images)
    expect_same(first.objective, again.objective)


def test_progress_ends_with_the_budget():
    told = []
    climb(
        problem(3, progress=lambda done, planned: told.append((done, planned))),
        Race(speed_of),
        ladder(4, 1000, 0.2, 12),
        1,
    )
    assert told == sorted(told)
    assert told[-1] == (5000, 5000)
