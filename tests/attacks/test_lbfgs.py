"""Batched L-BFGS against torch.optim.LBFGS, row by row."""

import dataclasses

import torch
from lbfgs_cases import CASES, ROSENBROCK_STARTS, quadratic, rosenbrock, with_gradient
from looped import each

from fedpriv.attacks.search.lbfgs import LbfgsSettings, minimise


def alone(function, start, row, settings):
    """Return the best point that torch comes by with one row."""
    point = start.clone().requires_grad_()
    optimiser = torch.optim.LBFGS([point], max_iter=settings.inner_steps, history_size=settings.history)
    seen = []

    def closure():
        optimiser.zero_grad()
        loss = function(point.unsqueeze(0), torch.tensor([row])).sum()
        loss.backward()
        seen.append((float(loss.detach()), point.detach().clone()))
        return loss

    for _ in range(settings.outer_steps):
        optimiser.step(closure)
    closure()
    return min(seen, key=lambda pair: pair[0])[1]


@each("name, history", [(name, history) for name in CASES for history in (3, 100)])
def test_every_row_goes_where_torch_goes_alone(name, history):
    function, start = CASES[name]
    for outer in (1, 2, 4):
        settings = LbfgsSettings(outer_steps=outer, history=history, inner_steps=8)
        found = minimise(with_gradient(function), start, settings)
        for row in range(len(start)):
            expected = alone(function, start[row], row, settings)
            torch.testing.assert_close(found.best[row], expected, rtol=1e-6, atol=1e-8)


def test_rows_do_not_depend_on_their_company():
    settings = LbfgsSettings(outer_steps=4)
    together = minimise(with_gradient(rosenbrock), ROSENBROCK_STARTS, settings)
    for row in range(len(ROSENBROCK_STARTS)):
        single = minimise(with_gradient(rosenbrock), ROSENBROCK_STARTS[row : row + 1], settings)
        torch.testing.assert_close(together.best[row], single.best[0], rtol=1e-9, atol=1e-12)
        assert together.evaluations[row] == single.evaluations[0]


def test_the_loss_is_that_of_the_best_point():
    function, start = CASES["gradient matching"]
    found = minimise(with_gradient(function), start, LbfgsSettings(outer_steps=3, inner_steps=5))
    torch.testing.assert_close(function(found.best, torch.arange(len(start))), found.loss)


def test_a_row_that_is_not_finite_ends_without_harming_the_others():
    def partly_bad(points, rows):
        return torch.where(rows == 1, torch.nan, quadratic(points, rows))

    _, start = CASES["quadratic"]
    found = minimise(with_gradient(partly_bad), start, LbfgsSettings(outer_steps=10))
    assert found.loss[1] == torch.inf
    assert found.evaluations[1] == 1
    assert (found.loss[[0, 2]] < 1e-8).all()


def test_a_stuck_row_is_not_evaluated_again():
    found = minimise(with_gradient(quadratic), torch.zeros(2, 10, dtype=torch.float64), LbfgsSettings(outer_steps=5))
    assert found.evaluations.tolist() == [1, 1]


def test_rows_below_the_goal_stop():
    _, start = CASES["quadratic"]
    goal = torch.tensor([1.0, 0.0, 0.01], dtype=torch.float64)
    with_goal = minimise(with_gradient(quadratic), start, LbfgsSettings(outer_steps=10), goal)
    without = minimise(with_gradient(quadratic), start, LbfgsSettings(outer_steps=10))
    assert (with_goal.loss < torch.tensor([1.0, 1e-8, 0.01])).all()
    assert (with_goal.evaluations < without.evaluations).tolist() == [True, False, True]


def test_a_row_that_gets_nowhere_is_given_up_and_others_are_not():
    def one_is_flat(points, rows):
        """A slope that never ends beside a bowl."""
        flat = 1000.0 - 1e-3 * points.sum(1)
        return torch.where(rows == 0, flat, points.pow(4).sum(1))

    start = torch.linspace(1, 2, 6, dtype=torch.float64).expand(2, 6).clone()
    settings = LbfgsSettings(outer_steps=30, inner_steps=4)
    patient = minimise(with_gradient(one_is_flat), start, settings)
    found = minimise(with_gradient(one_is_flat), start, dataclasses.replace(settings, patience=3))
    assert found.evaluations[0] < 0.5 * patient.evaluations[0]
    assert found.evaluations[1] == patient.evaluations[1]
    torch.testing.assert_close(found.best[1], patient.best[1])
    alone = minimise(with_gradient(one_is_flat), start[:1], dataclasses.replace(settings, patience=3))
    torch.testing.assert_close(alone.best[0], found.best[0])
    assert alone.evaluations[0] == found.evaluations[0]
