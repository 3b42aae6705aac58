"""Weights before and after, read out of every kind of upload that holds a network."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from fedpriv.algebra.low_rank import compress, recover
from fedpriv.attacks.gradients.update import Tangent, local_step, read_update, stacked_projection
from fedpriv.attacks.observation import Observation
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint
from fedpriv.uploads.payloads import Entangled, Extractor, LowRankModel, Model, SampleCount, SmallModel
from fedpriv.util.errors import UserError

CPU = torch.device("cpu")
RATE = 0.1
BLUEPRINT = Blueprint("small-cnn", (1, 8, 8), 10, 128)


def network(seed=0):
    return build_model(BLUEPRINT, seed)


def one_step(model, energy=None, only_extractor=False):
    """Return weights before and after one step, and the gradient between them."""
    if energy is not None:  # what is broadcast is truncated too
        start = recover(compress(dict(model.state_dict()), energy))
        model.load_state_dict(start)
    draw = torch.Generator().manual_seed(3)
    loss = cross_entropy(model(torch.rand(2, 1, 8, 8, generator=draw)), torch.tensor([3, 7]))
    names = [name for name, _ in model.named_parameters() if not (only_extractor and name.startswith("head."))]
    parameters = dict(model.named_parameters())
    found = torch.autograd.grad(loss, [parameters[name] for name in names])
    gradient = dict(zip(names, found, strict=True))
    before = {name: parameters[name].detach().clone() for name in names}
    return before, {name: before[name] - RATE * gradient[name] for name in names}, gradient


@pytest.mark.parametrize("kind", [Model, SmallModel, Extractor])
def test_the_gradient_of_a_full_upload_is_the_clients_own(kind):
    model = network()
    before, after, gradient = one_step(model, only_extractor=kind is Extractor)
    seen = Observation(1, 0, (kind(after), SampleCount(torch.tensor([5]))), (kind(before),))
    update = read_update(seen, model, CPU)
    assert update.project is None
    # In the architecture's order, whatever the order on the wire: the last layer is found by it.
    assert list(update.before) == [
        n for n, _ in model.named_parameters() if kind is not Extractor or not n.startswith("head.")
    ]
    for name, value in update.gradient(RATE).items():
        torch.testing.assert_close(value, gradient[name], rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("energy", [0.3, 0.6])
def test_of_a_truncated_upload_the_projected_gradient_is_exact(energy):
    model = network()
    before, after, gradient = one_step(model, energy)
    seen = Observation(1, 0, (LowRankModel(compress(after, energy)),), (LowRankModel(compress(before, 1.0)),))
    update = read_update(seen, model, CPU)
    found, wanted = update.gradient(RATE), update.project(gradient)
    lost = 0.0
    for name, value in found.items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-3, atol=2e-5)
        lost += float((gradient[name] - wanted[name]).square().sum())
    assert lost > 0  # something was truncated, and without the projection the comparison would be wrong
    naive = sum(float(((update.before[n] - update.after[n]) / RATE - gradient[n]).square().sum()) for n in found)
    assert naive > 100 * lost


def random_tangent(draw, rows, columns, rank):
    left = torch.linalg.qr(torch.randn(3, rows, rank, generator=draw))[0]
    right = torch.linalg.qr(torch.randn(3, columns, rank, generator=draw))[0].mT
    return Tangent({"w": left}, {"w": right})


@given(st.integers(0, 1000), st.integers(2, 6), st.integers(2, 6))
def test_the_projection_is_idempotent_symmetric_and_shrinks(seed, rows, columns):
    draw = torch.Generator().manual_seed(seed)
    tangent = random_tangent(draw, rows, columns, rank=min(rows, columns) - 1)
    first, second = torch.randn(2, 3, rows, columns, generator=draw)
    once = tangent({"w": first})["w"]
    torch.testing.assert_close(tangent({"w": once})["w"], once, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close((once * second).sum(), (first * tangent({"w": second})["w"]).sum(), rtol=1e-3, atol=1e-4)
    assert once.norm() <= first.norm() * 1.0001
    assert tangent({"b": first})["b"] is first


def test_projections_of_several_clients_stack():
    draw = torch.Generator().manual_seed(1)
    tangents = [random_tangent(draw, 5, 4, 1), random_tangent(draw, 5, 4, 3), Tangent()]
    gradients = torch.randn(3, 3, 5, 4, generator=draw)
    both = stacked_projection(tangents)({"w": gradients})["w"]
    for one, tangent, own in zip(both, tangents, gradients, strict=True):
        torch.testing.assert_close(one, tangent({"w": own})["w"], rtol=1e-4, atol=1e-5)
    assert stacked_projection([None, None]) is None
    with pytest.raises(TypeError, match="cannot be stacked"):
        stacked_projection([None, tangents[0]])


def test_an_extractor_needs_its_head_to_be_matched():
    model = network()
    before, after, _ = one_step(model, only_extractor=True)
    seen = Observation(2, 1, (Extractor(after),), (Extractor(before),))
    with pytest.raises(UserError, match=r"client 1 in round 2.*pass knowledge={'extractor': 'white_box'}") as caught:
        local_step(seen, model, RATE, CPU)
    assert "\n" not in str(caught.value)
    head = (torch.ones(10, 128), torch.zeros(10))
    step = local_step(seen, model, RATE, CPU, head)
    assert list(step.fixed) == ["head.weight", "head.bias"]
    assert step.weights.keys() == step.gradient.keys() == before.keys()
    assert step.fixed["head.weight"] is head[0]


def test_other_uploads_and_other_shapes_are_refused():
    model = network()
    before, after, _ = one_step(model)
    mixture = Entangled(torch.zeros(4), torch.zeros(10))
    with pytest.raises(UserError, match="in the upload, got entangled"):
        read_update(Observation(1, 0, (mixture,), (Model(before),)), model, CPU)
    with pytest.raises(UserError, match="in the broadcast, got nothing"):
        read_update(Observation(1, 0, (Model(after),), ()), model, CPU)
    del after["head.bias"]
    with pytest.raises(UserError, match=r"upload parameter 'head.bias' should be \(10,\), got nothing"):
        read_update(Observation(1, 0, (Model(after),), (Model(before),)), model, CPU)
