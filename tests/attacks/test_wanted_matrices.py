"""Wanted gradients by their factors, and what went into a layer asked for together with them."""

from dataclasses import replace

import pytest
import torch
from gradient_cases import CPU
from torch import nn

from fedpriv.attacks.gradients.chain_aims import Aim, Factors, wanted_matrix
from fedpriv.attacks.gradients.gradient_matching import Matcher
from fedpriv.attacks.gradients.layer_inputs import LayerInputs
from fedpriv.attacks.gradients.separated_batch import Known, KnownInputs
from fedpriv.attacks.gradients.update import LocalStep
from fedpriv.attacks.inputs.updates import Tangent
from fedpriv.attacks.observation import BatchFacts


def all_known(view, inputs):
    return Known(view, inputs, torch.ones(len(inputs), dtype=torch.bool))


def matrices(rows, height, width, rank, noise=0.0):
    draw = torch.Generator().manual_seed(7)
    left, right, beside = (
        torch.randn(rows, *size, generator=draw) for size in ((height, rank), (rank, width), (height, width))
    )
    found = left @ right
    return found + noise * found.norm() / beside.norm() * beside


def test_sums_of_few_products_are_taken_by_their_factors():
    dense = matrices(3, 60, 90, 4)
    found = wanted_matrix(dense, 4)
    assert found.left is not None
    assert found.left.shape[2] < 10
    inputs, delta = torch.randn(3, 4, 90), torch.randn(3, 4, 60)
    torch.testing.assert_close(found.times(inputs), inputs @ dense.mT, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(found.transposed(delta), delta @ dense, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("rank", "noise"), [(40, 0.0), (2, 1e-2)])
def test_others_are_taken_whole(rank, noise):
    dense = matrices(2, 60, 90, rank, noise)
    found = wanted_matrix(dense, 2)
    assert found.left is None
    torch.testing.assert_close(found.times(torch.eye(90).expand(2, -1, -1)), dense.mT)


def test_rounding_that_differences_of_weights_leave_has_no_part():
    dense = matrices(2, 60, 90, 2, 2e-5)
    assert wanted_matrix(dense, 2).left is not None


def test_few_outputs_are_taken_whole():
    assert wanted_matrix(matrices(1, 10, 90, 1), 1).left is None


@pytest.mark.parametrize("kind", ["cosine", "squared"])
def test_distances_by_factors_are_those_by_whole_matrices(kind, monkeypatch):
    model = nn.Sequential(nn.Flatten(), nn.Linear(90, 60), nn.ReLU(), nn.Linear(60, 10)).double()
    step, images = one_step(model, 2)
    found = []
    for factored in (True, False):
        compare = Matcher(model, (1, 9, 10), BatchFacts(2, 0.1, 1), "unrolled", CPU).against([step], [2])
        if not factored:
            monkeypatch.setattr("fedpriv.attacks.gradients.chain_aims._LEFT_OUT", -1.0)
        own = (images * 0.7).requires_grad_()
        value = getattr(compare, kind)(own, torch.eye(10, dtype=torch.float64)[:2][None], torch.arange(1))
        found.append((value.detach(), torch.autograd.grad(value.sum(), own)[0]))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-12)


def test_truncated_gradients_are_compared_by_factors_likewise(monkeypatch):
    model = nn.Sequential(nn.Flatten(), nn.Linear(90, 60), nn.ReLU(), nn.Linear(60, 10)).double()
    step, images = one_step(model, 3)
    left, _, right = torch.linalg.svd(step.gradient["1.weight"])
    onto = Tangent({"1.weight": left[:, :2]}, {"1.weight": right[:2]})
    step = replace(step, gradient=onto(step.gradient), project=onto)
    for kind in ("cosine", "squared"):
        found = []
        for left_out in (1e-4, -1.0):
            monkeypatch.setattr("fedpriv.attacks.gradients.chain_aims._LEFT_OUT", left_out)
            compare = Matcher(model, (1, 9, 10), BatchFacts(3, 0.1, 1), "unrolled", CPU).against([step], [3])
            own = (images * 0.7).requires_grad_()
            value = getattr(compare, kind)(own, torch.eye(10, dtype=torch.float64)[:3][None], torch.arange(1))
            found.append((value.detach(), torch.autograd.grad(value.sum(), own)[0]))
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-12)


def test_a_squared_distance_of_nearly_nothing_is_not_lost_in_rounding():
    dense = matrices(1, 60, 90, 1)
    layer = chained(nn.Sequential(nn.Flatten(), nn.Linear(90, 60, bias=False)))
    aim = Aim("squared", {layer.weight: dense}, dense.norm().view(1), None, frozenset([layer.weight]))
    left, values, right = torch.linalg.svd(dense)
    inputs, delta = right[:, :1] * values[:, :1, None], left[:, :, :1].mT * (1 + 1e-4)
    inputs[0, 0, 0] += 1e-3 * values[0, 0]
    whole = (delta.double().mT @ inputs.double() - dense.double()).square().sum()
    value, direction = aim.compare([Factors(layer, inputs, delta)])
    assert direction.weights[layer.weight].left is not None
    assert float(value) == pytest.approx(float(whole), rel=1e-2)


def test_a_direction_holds_factors_where_there_are_few():
    dense = matrices(1, 60, 90, 1).double()
    layer = chained(nn.Sequential(nn.Flatten(), nn.Linear(90, 60, bias=False)))
    aim = Aim("cosine", {layer.weight: dense}, dense.norm().view(1), None, frozenset([layer.weight]))
    inputs, delta = torch.randn(1, 1, 90).double(), torch.randn(1, 1, 60).double()
    _, direction = aim.compare([Factors(layer, inputs, delta)])
    gradient = delta.mT @ inputs
    share = (gradient * dense).sum() / gradient.square().sum()
    wanted = dense - share * gradient
    torch.testing.assert_close(direction.applied(0), (inputs @ wanted.mT)[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(direction.transposed(0), (delta @ wanted)[0], rtol=1e-5, atol=1e-5)
    assert direction.weights[layer.weight].wanted.left is not None


def chained(model):
    from fedpriv.attacks.gradients.chain import chain_of

    return chain_of(model)[-1]


def one_step(model, count, readout="", image_shape=(1, 9, 10)):
    """Return a step on random images, and the images ``(1, n, c, h, w)``."""
    torch.manual_seed(1)
    images = torch.rand(count, *image_shape, dtype=next(model.parameters()).dtype)
    loss = nn.functional.cross_entropy(model(images), torch.arange(count))
    names, values = zip(*model.named_parameters(), strict=True)
    gradient = dict(zip(names, torch.autograd.grad(loss, values), strict=True))
    weights = {name: value.detach() for name, value in model.named_parameters()}
    if readout:
        gradient = {name: value for name, value in gradient.items() if not name.startswith("4.")}
    return LocalStep(weights, gradient, readout=readout), images[None]


@pytest.mark.parametrize("kind", ["cosine", "squared"])
@pytest.mark.parametrize("count", [1, 3])
def test_inputs_asked_for_together_weigh_what_they_weigh_apart(kind, count):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(168, 20), nn.Linear(20, 10))
    shape = (1, 9, 10)
    step, images = one_step(model, count, "3", shape)
    view = LayerInputs(model, step.weights, "3", shape, CPU)
    wanted = view(images[0]).detach()
    matcher = Matcher(model, shape, BatchFacts(count, 0.1, 1), "unrolled", CPU)
    assert matcher.takes_inputs
    own = torch.rand(3, count, *shape).requires_grad_()
    slopes, weights = torch.rand(3, count, 20), torch.tensor([1.0, -2.0, 0.5])
    shares = torch.tensor([0.3, 0.0, 0.1])
    known = [
        None if not share else (times * wanted, share.expand(count))
        for share, times in zip(shares, (1, 1, 2), strict=True)
    ]
    rows = torch.arange(3)
    inside = matcher.against([step] * 3, [count] * 3, known)
    assert inside.asks_for_inputs
    together = getattr(inside, kind)(own, slopes, rows)
    plain = matcher.against([step] * 3, [count] * 3)
    assert not plain.asks_for_inputs
    beside = KnownInputs([all_known(view, wanted), None, all_known(view, 2 * wanted)]).distance(own, rows)
    apart = getattr(plain, kind)(own, slopes, rows) + beside * shares
    torch.testing.assert_close(together, apart)
    found, expected = (torch.autograd.grad(value, own, weights)[0] for value in (together, apart))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(inside.of_updates(own, slopes, rows), plain.cosine(own, slopes, rows))
    alone = getattr(inside, kind)(own[2:], slopes[2:], torch.tensor([2]))
    torch.testing.assert_close(alone, together[2:])


def test_a_readout_whose_own_weights_were_not_sent_is_asked_for_inputs_all_the_same():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(168, 20), nn.Linear(20, 10))
    step, images = one_step(model, 1, "3")
    left = replace(step, gradient={name: value for name, value in step.gradient.items() if name.startswith("0.")})
    matcher = Matcher(model, (1, 9, 10), BatchFacts(1, 0.1, 1), "unrolled", CPU)
    wanted = LayerInputs(model, step.weights, "3", (1, 9, 10), CPU)(images[0]).detach()
    own, slopes = (images * 0.5).requires_grad_(), torch.rand(1, 1, 20)
    rows = torch.arange(1)
    together = matcher.against([left], [1], [(wanted, torch.tensor([0.3]))]).cosine(own, slopes, rows)
    view = LayerInputs(model, step.weights, "3", (1, 9, 10), CPU)
    apart = matcher.against([left], [1]).cosine(own, slopes, rows)
    apart = apart + 0.3 * KnownInputs([all_known(view, wanted)]).distance(own, rows)
    torch.testing.assert_close(together, apart)
    found, expected = (torch.autograd.grad(value.sum(), own)[0] for value in (together, apart))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
