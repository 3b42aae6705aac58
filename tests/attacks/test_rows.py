"""The rows engine: what a row draws, how chunks are put together, which restart is kept, and successive halving."""

from itertools import pairwise

import pytest
import torch
from compare import expect_same
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.observation import Knowledge, TargetId, ThreatModel
from fedpriv.attacks.search.candidates import Row, Rung, Solved, climb, ladder, rows_of, solve_rows
from fedpriv.util import compute
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator

CPU = torch.device("cpu")
TARGETS = tuple(TargetId(1, client, index, label=index) for client in range(2) for index in range(3))


def draw_solver(seed):
    """Solve a row by what its generator draws: the objective first, then the image."""

    def solve(rows, tick):
        draws = [row.generator(seed) for row in rows]
        objective = torch.cat([torch.rand(1, generator=draw) for draw in draws])
        images = torch.stack([torch.rand(1, 1, 2, 2, generator=draw) for draw in draws])
        tick(3)
        labels = torch.tensor([[row.target.label] for row in rows])
        return Solved(images, objective, objective < 0.5, labels, 3, torch.full((len(rows),), 3))

    return solve


def solve(chunk_rows=None, restarts=4, solver=None, progress=None, bytes_per_row=100):
    problem = AttackProblem((), Knowledge(ThreatModel(), (1, 2, 2), 10), TARGETS, 7, CPU, chunk_rows, progress)
    return solve_rows(problem, solver or draw_solver(7), restarts=restarts, iterations=5, bytes_per_row=bytes_per_row)


@given(st.integers(1, 40))
def test_chunks_do_not_matter(chunk_rows):
    whole, parts = solve(), solve(chunk_rows)
    for name in ("images", "objective", "converged", "labels"):
        expect_same(getattr(whole, name), getattr(parts, name), name)


def test_the_restart_with_the_lowest_objective_is_kept():
    best = solve()
    assert best.objective.shape == (6, 4)
    for place, target in enumerate(TARGETS):
        draw = Row(target, place, int(best.objective[place].argmin())).generator(7)
        assert torch.rand(1, generator=draw) == best.objective[place].min()
        expect_same(torch.rand(1, 1, 2, 2, generator=draw), best.images[place])
        assert best.labels[place, 0] == target.label
        assert best.converged[place] == (best.objective[place].min() < 0.5)


def test_a_row_draws_from_a_generator_of_its_own():
    row = Row(TargetId(3, 1, 4), 0, 2)
    expected = torch.rand(5, generator=generator(9, 3, 1, 4, 2))
    expect_same(torch.rand(5, generator=row.generator(9)), expected)
    firsts = [float(torch.rand(1, generator=row.generator(9))) for row in rows_of(TARGETS, 3)]
    assert len(set(firsts)) == len(firsts)


def test_a_failed_restart_never_wins():
    def failing(rows, tick):
        solved = draw_solver(7)(rows, tick)
        broken = torch.tensor([row.restart == 0 for row in rows])
        solved.objective[broken] = torch.nan
        return solved

    best = solve(solver=failing)
    assert best.objective[:, 0].isnan().all()
    for place, winner in enumerate(best.objective.nan_to_num(nan=2.0).argmin(1).tolist()):
        draw = Row(TARGETS[place], place, winner).generator(7)
        torch.rand(1, generator=draw)
        expect_same(torch.rand(1, 1, 2, 2, generator=draw), best.images[place])


def test_a_chunk_of_no_rows_is_refused():
    with pytest.raises(UserError, match="at least 1"):
        solve(chunk_rows=0)


def card_of(most):
    """Return a solver on a card that holds ``most`` rows, and the sizes of chunks that it was asked for."""
    asked = []

    def on_card(rows, tick):
        asked.append(len(rows))
        if len(rows) > most:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return draw_solver(7)(rows, tick)

    return on_card, asked


@pytest.mark.parametrize("most", [1, 2, 5, 23])
def test_a_chunk_that_a_gpu_cannot_hold_is_halved_and_said(most):
    told, seen = [], []
    solver, asked = card_of(most)
    problem = AttackProblem(
        *((), Knowledge(ThreatModel(), (1, 2, 2), 10), TARGETS, 7, CPU, None),
        progress=lambda done, planned: seen.append(done / planned),
        say=told.append,
    )
    found = solve_rows(problem, solver, restarts=4, iterations=5, bytes_per_row=100)
    whole = solve()
    for name in ("images", "objective", "converged", "labels"):
        expect_same(getattr(whole, name), getattr(found, name), name)
    failed = [size for size in asked if size > most]
    assert failed == [size for size in (24, 12, 6, 3, 2) if size > most][: len(failed)]
    assert len(told) == len(failed)
    assert told[0].startswith("the GPU's memory is too small for 24 candidates at a time; going on with 12 (")
    assert told[0].endswith("(chunk_rows=12 starts with that)")
    assert seen[-1] == 1
    assert all(0 <= share <= 1 for share in seen)


def test_a_gpu_that_cannot_hold_one_row_says_so():
    solver, asked = card_of(0)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        solve(solver=solver)
    assert asked == [24, 12, 6, 3, 1]


def test_what_a_cpu_cannot_hold_is_refused_before_it_is_tried(monkeypatch):
    monkeypatch.setattr(compute, "free_memory", lambda: 10_000)
    with pytest.raises(
        UserError, match=r"^24 candidates .* at a time would take 23.4 KiB .*; chunk_rows=10 would fit$"
    ):
        solve(chunk_rows=100, bytes_per_row=1000, solver=None)
    with pytest.raises(UserError, match=r"; a smaller image_size would fit$"):
        solve(bytes_per_row=20_000)
    with pytest.raises(UserError, match=r"^6 targets with 1,000 restarts each would take .*; restarts=7 would fit$"):
        solve(restarts=1000)


SHAPE = (1, 2, 2)
RACING = tuple(TargetId(0, client) for client in range(5))


def problem(chunk_rows=None, targets=RACING, progress=None):
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
        images = start + done.view(-1, 1, 1, 1, 1) - start
        taken = torch.full((len(rows),), iterations)
        return Solved(images, objective, objective < 0, done.new_zeros(len(rows), 1), iterations, taken)


def speed_of(row):
    return float((row.target.client + row.restart) % 4 + 1)


@given(st.integers(1, 20), st.integers(1, 5000))
def test_the_budget_is_spent_exactly(rows, budget):
    rungs = ladder(rows, budget, 12)
    assert sum(rung.rows * rung.iterations for rung in rungs) == budget
    assert rungs[-1].rows == 1
    assert all(later.rows < earlier.rows for earlier, later in pairwise(rungs))
    assert all(rung.iterations >= 12 for rung in rungs[:-1])
    assert sum(rung.rows * rung.iterations for rung in rungs[:-1]) <= 0.2 * budget


def test_a_budget_too_small_for_trials_goes_to_one_row():
    assert ladder(4, 100, 12) == (Rung(1, 100),)
    assert ladder(4, 200, 12) == (Rung(2, 20), Rung(1, 160))
    assert ladder(10**9, 200, 12) == (Rung(2, 20), Rung(1, 160))
    assert ladder(4, 1000, 12) == (Rung(4, 25), Rung(2, 50), Rung(1, 800))


def test_the_fastest_row_of_each_target_wins_and_takes_the_rest():
    race = Race(speed_of)
    found = climb(problem(), race, ladder(4, 1000, 12), 1)
    expect_same(found.objective.argmin(1), torch.tensor([3, 2, 1, 0, 3]))
    assert [sum(own for row, own in race.taken.items() if row.target == target) for target in RACING] == [1000] * 5
    assert (found.cost.evaluations, found.cost.rows, found.cost.iterations) == (1000, 20, 875)


@pytest.mark.parametrize("chunk_rows", [1, 3, 7])
def test_chunks_and_companions_change_nothing(chunk_rows):
    rungs = ladder(4, 1000, 12)
    whole = climb(problem(), Race(speed_of), rungs, 1)
    parts = climb(problem(chunk_rows), Race(speed_of), rungs, 1)
    alone = climb(problem(targets=RACING[2:3]), Race(speed_of), rungs, 1)
    for name in ("images", "objective"):
        expect_same(getattr(whole, name), getattr(parts, name))
        expect_same(getattr(whole, name)[2:3], getattr(alone, name))


def test_a_row_that_fails_does_not_go_on_and_one_that_gets_worse_keeps_what_it_had():
    def failing(row):
        return float("nan") if row.restart == 3 else speed_of(row)

    found = climb(problem(), Race(failing), ladder(4, 1000, 12), 1)
    assert found.objective[:, 3].isnan().all()
    assert found.objective[:, :3].isfinite().all()

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
