"""Strong-Wolfe line search: the conditions hold, and L-BFGS with it ends as well as torch's."""

import pytest
import torch
from lbfgs_cases import CASES, with_gradient

from fedpriv.attacks.gradients.dlg import DeepLeakage
from fedpriv.attacks.search.lbfgs import LbfgsSettings, WolfeSearch, minimise


def search(evaluate, directions, lengths, losses, gradients, most):
    """Return the search when all rows have arrived; ``evaluate`` maps step lengths to losses and gradients."""
    found = WolfeSearch(torch.zeros_like(directions), most)
    slopes = (gradients * directions).sum(1)
    found.begin(torch.ones(len(lengths), dtype=torch.bool), losses, slopes, gradients, lengths)
    while found.active.any():
        before = found.length
        loss, gradient = evaluate(found.asked(torch.zeros_like(directions), directions)[:, 0] / directions[:, 0])
        arrived = found.answer(loss, (gradient * directions).sum(1), gradient)
        assert not found.active[arrived].any()
        assert (found.active | arrived | (before == found.length)).all()  # who has arrived stays
    return found


def polynomial(length):
    """A function of one variable with several minima: (loss, slope)."""
    loss = 0.05 * length**4 - 0.6 * length**2 - 0.7 * length + torch.sin(3 * length)
    return loss, 0.2 * length**3 - 1.2 * length - 0.7 + 3 * torch.cos(3 * length)


@pytest.mark.parametrize("first", [0.001, 0.1, 1.0, 5.0, 60.0])
def test_the_conditions_hold_where_the_search_ends(first):
    starts = torch.tensor([0.5, 0.9, 2.8], dtype=torch.float64)
    loss, slope = polynomial(starts)
    direction = -slope.sign().unsqueeze(1)

    def evaluate(lengths):
        found, there = polynomial(starts + lengths * direction[:, 0])
        return found, there.unsqueeze(1)

    lengths = torch.full((3,), first, dtype=torch.float64)
    found = search(evaluate, direction, lengths, loss, slope.unsqueeze(1), 50)
    downhill = -slope.abs()
    assert (found.length > 0).all()
    assert (found.loss <= loss + 1e-4 * found.length * downhill).all()
    assert ((found.gradient * direction).sum(1).abs() <= 0.9 * downhill.abs()).all()
    torch.testing.assert_close(found.loss, evaluate(found.length)[0])
    torch.testing.assert_close(found.gradient, evaluate(found.length)[1])


def test_a_search_that_runs_out_takes_the_lowest_point_it_saw():
    def evaluate(lengths):
        return -lengths, -torch.ones(len(lengths), 1)  # downhill for ever

    start = torch.zeros(1)
    found = search(evaluate, torch.ones(1, 1), torch.ones(1), start, -torch.ones(1, 1), 3)
    assert found.length > 1
    assert found.loss == -found.length


def test_what_is_not_finite_is_never_taken():
    def evaluate(lengths):
        return torch.where(lengths > 0.3, torch.nan, (lengths - 0.2).square()), 2 * (lengths - 0.2).unsqueeze(1)

    found = search(evaluate, torch.ones(1, 1), torch.ones(1), torch.tensor([0.04]), torch.tensor([[-0.4]]), 25)
    assert 0 < found.length <= 0.3
    assert found.loss < 0.04


@pytest.mark.parametrize("name", CASES)
def test_it_ends_as_low_as_torch_does(name):
    function, start, _ = CASES[name]
    settings = LbfgsSettings(outer_steps=5, line_search="strong-wolfe")
    found = minimise(with_gradient(function), start, settings)
    for row in range(len(start)):
        point = start[row].clone().requires_grad_()
        optimiser = torch.optim.LBFGS([point], max_iter=20, history_size=100, line_search_fn="strong_wolfe")

        def closure(row=row, point=point, optimiser=optimiser):
            optimiser.zero_grad()
            loss = function(point.unsqueeze(0), torch.tensor([row])).sum()
            loss.backward()
            return loss

        for _ in range(5):
            optimiser.step(closure)
        assert found.loss[row] <= 1.1 * closure() + 1e-9


def test_rows_do_not_depend_on_their_company():
    function, start, _ = CASES["rosenbrock"]
    settings = LbfgsSettings(outer_steps=3, line_search="strong-wolfe")
    together = minimise(with_gradient(function), start, settings)
    for row in range(len(start)):
        single = minimise(with_gradient(function), start[row : row + 1], settings)
        torch.testing.assert_close(together.best[row], single.best[0], rtol=1e-9, atol=1e-12)
        assert together.evaluations[row] == single.evaluations[0]


def test_deep_leakage_takes_it():
    from gradient_cases import attack, images_and_labels, psnr, sigmoid_net

    images, labels = images_and_labels(2)
    made = DeepLeakage(outer_steps=10, redraws=0, line_search="strong-wolfe")
    found = attack(made, sigmoid_net(), images, labels)
    assert (psnr(found.images[:, 0], images) > 30).all()
