"""Candidates whose inputs lie in the span of what a fully connected layer was changed by."""

import math
from collections import OrderedDict

import pytest
import torch
from compare import expect_close
from gradient_cases import clients, knowledge_of, noise_images
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import softplus

from fedpriv.algebra.low_rank import compress
from fedpriv.attacks.gradients.update import Update
from fedpriv.attacks.inference.update_scores import hidden_layer, outside, update_signals
from fedpriv.attacks.observation import Observation
from fedpriv.uploads.payloads import LowRankModel, Model

EACH, ERROR = 6, 1e-9


def hidden_net(width=32):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


def weights(model):
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def signals(seen, model, pictures, facts=1):
    labels = torch.zeros(len(pictures), dtype=torch.int64)
    return update_signals([seen], pictures, labels, knowledge_of(model, labels, facts, given=False))[0]


def test_the_share_outside_of_one_direction_is_the_square_of_a_sine():
    change = torch.outer(torch.tensor([2.0, -1.0]), torch.tensor([1.0, 0.0, 0.0]))
    angles = torch.tensor([0.0, 30.0, 60.0, 90.0], dtype=torch.float64).deg2rad()
    inputs = 7 * torch.stack([angles.cos(), angles.sin(), torch.zeros(4)], 1)
    wanted = torch.tensor([0.0, 0.25, 0.75, 1.0], dtype=torch.float64)
    expect_close(outside(change.double(), ERROR, inputs), wanted, atol=1e-9)
    nothing = torch.zeros(2, 3, dtype=torch.float64)
    expect_close(outside(nothing, ERROR, inputs), torch.ones(4, dtype=torch.float64), atol=0)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 99), st.sampled_from([1e-6, 1e-2, 0.3]))
def test_it_is_the_least_distance_that_errors_allow(m, d, seed, error):
    draw = torch.Generator().manual_seed(seed)
    change = torch.randn(m, d, generator=draw, dtype=torch.float64)
    inputs = torch.randn(4, d, generator=draw, dtype=torch.float64)
    allowed = (error * (math.sqrt(m) + math.sqrt(d))) ** 2
    # min over u of ||x - M^T u||^2 + s ||u||^2, as one least-squares problem
    stacked = torch.cat([change.T, math.sqrt(allowed) * torch.eye(m, dtype=torch.float64)])
    target = torch.cat([inputs.T, torch.zeros(m, 4, dtype=torch.float64)])
    left = stacked @ torch.linalg.lstsq(stacked, target, driver="gelsd").solution - target
    expected = left.square().sum(0) / inputs.square().sum(1)
    expect_close(outside(change, error, inputs), expected.clamp(0, 1), atol=1e-6)


@pytest.mark.parametrize("loss", ["cross-entropy", "private"])
def test_all_images_of_a_batch_are_found_whatever_the_loss(loss):
    pictures, model = noise_images(4 * EACH), hidden_net()
    labels = torch.arange(4 * EACH) % 10
    if loss == "private":  # nobody can say what any candidate's gradient would be
        before, seen = weights(model), []
        for client, own in enumerate(pictures.split(EACH)):
            model.load_state_dict(before)
            private = torch.randn(EACH, 10, generator=torch.Generator().manual_seed(client))
            softplus(model(own) * private).sum().backward()
            after = {name: value.detach() - 0.1 * value.grad for name, value in model.named_parameters()}
            model.zero_grad()
            seen.append(Observation(0, client, (Model(after),), (Model(before),)))
    else:
        seen = clients(model, pictures, labels, batch_size=EACH, rate=0.1)
    for client, one in enumerate(seen):
        found = signals(one, model, pictures)
        mine = torch.zeros(len(pictures), dtype=torch.bool)
        mine[client * EACH : (client + 1) * EACH] = True
        assert found[mine].min() > found[~mine].max() + 5


def test_a_truncated_matrix_gives_its_members_too():
    pictures, model = noise_images(8), hidden_net()
    seen = clients(model, pictures, torch.arange(8) % 10, batch_size=2, rate=0.5)[0]
    (sent,), (got,) = seen.broadcast, seen.upload
    low = tuple(LowRankModel(compress(one.state, 0.95)) for one in (sent, got))
    found = signals(Observation(0, 0, low[1:], low[:1]), model, pictures)
    assert found[:2].min() > found[2:].max()


def test_the_first_layer_before_the_head_is_chosen():
    model = nn.Sequential(OrderedDict(first=nn.Linear(4, 5), second=nn.Linear(5, 6), head=nn.Linear(6, 2)))
    for kept, shape in ((("first", "second", "head"), (5, 5)), (("second", "head"), (6, 6))):
        state = {name: value for name, value in weights(model).items() if name.startswith(kept)}
        assert hidden_layer(model, Update(state, state), torch.rand(3, 4)).change.shape == shape
    alone = {"head.weight": model.head.weight}
    assert hidden_layer(model, Update(alone, alone), torch.rand(3, 4)) is None
    assert hidden_layer(nn.Conv2d(1, 1, 1), Update({}, {}), torch.rand(1, 1, 1, 1)) is None
