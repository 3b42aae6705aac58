"""Hourglasses whose derivatives are written out, beside those by autograd, both beside the same in twice the precision."""

import pytest
import torch

from fedpriv.attacks.optim.fitting import fit
from fedpriv.attacks.optim.row_adam import RowAdam
from fedpriv.attacks.optim.schedule import Schedule
from fedpriv.attacks.priors import by_hand, dip, grouped
from fedpriv.attacks.priors.dip import DeepImagePrior, Hourglass

CPU = torch.device("cpu")
SLIM = Hourglass(channels=(6, 8, 10, 12), skip=2, input_channels=5)
FULL = Hourglass()


def prior_of(rows, side, shape):
    return DeepImagePrior([torch.Generator().manual_seed(row) for row in range(rows)], (3, side, side), shape, CPU)


def slopes(rows, side):
    return torch.randn(rows, 3, side, side, generator=torch.Generator().manual_seed(99))


def by_autograd(monkeypatch, prior, slope, kind=torch.float32):
    monkeypatch.setattr(dip, "done_by_hand", lambda maps: False)
    monkeypatch.setattr(grouped, "_NEIGHBOURS", {})
    monkeypatch.setattr(grouped, "_WIDENED", {})
    before = torch.get_default_dtype()
    torch.set_default_dtype(kind)
    try:
        prior.parameters = [values.detach().to(kind).requires_grad_() for values in prior.parameters]
        prior._input = prior._input.to(kind)
        images = prior.clean()
        return images.detach(), torch.autograd.grad((images * slope.to(kind)).sum(), prior.parameters)
    finally:
        torch.set_default_dtype(before)
        monkeypatch.undo()


def far(found, expected):
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize(
    ("rows", "side", "shape"),
    [(3, 3, SLIM), (2, 8, SLIM), (1, 8, SLIM), (2, 13, SLIM), (2, 28, FULL), (1, 32, FULL), (5, 32, FULL)],
)
def test_images_and_derivatives_are_those_by_autograd(rows, side, shape, monkeypatch):
    prior, slope = prior_of(rows, side, shape), slopes(rows, side)
    images = prior.clean()
    assert "_Drawn" in str(images.grad_fn.next_functions[0][0].next_functions)
    gradients = torch.autograd.grad((images * slope).sum(), prior.parameters)
    names = list(prior.named_parameters())
    plain, its = by_autograd(monkeypatch, prior, slope)
    exact, wanted = by_autograd(monkeypatch, prior, slope, torch.float64)
    assert far(images.detach(), exact) < 3 * far(plain, exact) + 1e-6
    # A LeakyReLU's slope may differ where rounding moves a value over zero.
    allowed = 10 * max(far(own, other) for own, other in zip(its, wanted, strict=True)) + 1e-2
    for name, found, other in zip(names, gradients, wanted, strict=True):
        assert found.shape == other.shape
        assert far(found, other) < allowed, name


class Kept:
    """Keeps what it is told."""

    by_row = True

    def __init__(self, parameters):
        self.found = [torch.full_like(values, torch.nan) for values in parameters]
        self.rows = 0

    def take(self, place, gradient, row=None):
        own = self.found[place] if row is None else self.found[place][row]
        own.copy_(gradient.reshape(own.shape))
        self.rows += row is not None


@pytest.mark.parametrize("side", [8, 32])
def test_what_is_told_is_what_is_returned(side, monkeypatch):
    monkeypatch.setattr(by_hand, "_OWN_ROW", 2**12)
    prior, slope = prior_of(3, side, FULL), slopes(3, side)
    with torch.no_grad():
        parameters = [values.clone() for values in prior.parameters]
    returned = torch.autograd.grad((prior.clean() * slope).sum(), prior.parameters)
    kept = Kept(parameters)
    assert prior.tells(kept)
    (nothing,) = torch.autograd.grad((prior.clean() * slope).sum(), prior.parameters[:1], allow_unused=True)
    assert nothing is None
    assert kept.rows > 0
    for found, expected in zip(kept.found, returned, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


def test_derivatives_are_there_once():
    prior = prior_of(1, 8, SLIM)
    total = prior.clean().sum()
    torch.autograd.grad(total, prior.parameters, retain_graph=True)
    with pytest.raises(RuntimeError, match="once"):
        torch.autograd.grad(total, prior.parameters)


def test_nothing_is_told_where_layers_are_not_computed_by_hand():
    prior = prior_of(2, 8, SLIM)
    taker = RowAdam([values.detach().clone() for values in prior.parameters])
    assert prior.tells(taker)
    with torch.autocast("cpu", torch.bfloat16):
        assert not prior.tells(taker)
    images = prior.clean()
    assert all(one is not None for one in torch.autograd.grad(images.sum(), prior.parameters))


def test_a_fit_by_hand_takes_the_steps_of_one_by_autograd(monkeypatch):
    wanted = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(4))

    def fitted():
        shape = Hourglass(channels=(6, 8, 10), skip=2, input_channels=5, input_noise=0.0)
        return fit(
            prior_of(3, 16, shape),
            lambda images, rows: (images - wanted[rows]).square().flatten(1).mean(1),
            Schedule(60, 1e-2, tolerance=0.0),
            lambda step: None,
        )

    found = fitted()
    monkeypatch.setattr(dip, "done_by_hand", lambda maps: False)
    plain = fitted()
    torch.testing.assert_close(found.objective, plain.objective, rtol=0.1, atol=0)


@pytest.mark.parametrize("side", [4, 8, 16, 32])
@pytest.mark.parametrize("channels", [2, 12])
@pytest.mark.parametrize("layer", ["convolve", "convolve_and_halve", "double_and_convolve"])
def test_each_layer_is_that_of_autograd(layer, channels, side, monkeypatch):
    draw = torch.Generator().manual_seed(0)
    maps = torch.randn(1, 3 * channels, side, side, generator=draw).requires_grad_()
    values = torch.randn(3, 4, channels, 3, 3, generator=draw).requires_grad_()
    size = (2 * side, 2 * side) if layer.startswith("double") else ()
    expected = getattr(grouped, layer)(maps, values, *size)
    slope = torch.randn(expected.shape, generator=draw)
    by_maps, by_values = torch.autograd.grad(expected, (maps, values), slope)
    kept = Kept([values.detach()])
    for own_row in (2**16, 1):
        monkeypatch.setattr(by_hand, "_OWN_ROW", own_row)
        with torch.no_grad():
            found, back = getattr(by_hand, layer)(maps, by_hand.Weight(values.detach(), 0, kept), *size)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(back(slope.clone()), by_maps, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(kept.found[0], by_values, rtol=1e-4, atol=1e-3)
