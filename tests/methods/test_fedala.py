"""FedALA: how a client learns to merge its model with the global one, by hand and by the formula."""

from dataclasses import replace

import pytest
import torch
from compare import expect_close, expect_same
from method_cases import SIZES, World, trained
from torch.nn.functional import cross_entropy

from fedpriv.federation.method import LocalTraining, Plan
from fedpriv.federation.states import parameters, put
from fedpriv.methods import fedala
from fedpriv.uploads.payloads import Model, get_payload
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator


def test_fedala_steps_its_weights_and_clips_them():
    names = ["w"]
    shares = {"w": torch.tensor([1.0, 1.0, 0.5, 0.1])}
    slopes = {"w": torch.tensor([0.2, -3.0, 1.0, 1.0])}
    local = {"w": torch.tensor([0.0, 1.0, 2.0, 3.0])}
    received = {"w": torch.tensor([1.0, 3.0, 1.0, 9.0])}
    stepped = fedala.step_shares(shares, slopes, local, received, rate=0.5)
    # 1 - .5*.2*1; 1 + .5*3*2 -> 1; .5 + .5*1*1 = 1; .1 - .5*6 -> 0
    expect_close(stepped["w"], torch.tensor([0.9, 1.0, 1.0, 0.0]))
    assert list(stepped) == names


def test_fedala_merges_where_it_has_weights_and_overwrites_elsewhere():
    local = {"a": torch.tensor([1.0, 1.0, 1.0]), "b": torch.tensor([7.0])}
    received = {"a": torch.tensor([3.0, 3.0, 3.0]), "b": torch.tensor([9.0])}
    merged = fedala.merge(local, received, {"a": torch.tensor([0.0, 0.5, 1.0])})
    assert merged["a"].tolist() == [1.0, 2.0, 3.0]
    assert merged["b"].tolist() == [9.0]
    exact = torch.randn(1000)
    expect_same(fedala.merge({"a": torch.randn(1000)}, {"a": exact}, {"a": torch.ones(1000)})["a"], exact)


def learn(options, state=None, **training):
    """Learn the weights of client 0 for a global model that is not its own; return (world, state, broadcast, W)."""
    world, _, broadcast, states, _ = trained("fedala", options, rounds=1, **training)
    state = states[0] if state is None else state
    return world, state, broadcast, fedala.learn_shares(world.setups[0], state, broadcast, generator(4))


def test_one_pass_of_fedala_over_one_batch_is_the_formula():
    options = {"share": 1.0, "first_passes": 1, "rate": 30.0}
    world, state, broadcast, shares = learn(options, batch_size=100, epochs=3)
    setup, model = world.setups[0], world.setups[0].model
    received = get_payload(broadcast, Model).state
    put(model, state | {f"model.{name}": value for name, value in received.items()}, "model")
    model.eval()
    loss = cross_entropy(model(setup.train.images), setup.train.labels)
    slopes = torch.autograd.grad(loss, [model.head.weight, model.head.bias])
    assert set(shares) == {"head.weight", "head.bias"}
    for name, slope in zip(("head.weight", "head.bias"), slopes, strict=True):
        way = received[name] - state[f"model.{name}"]
        expect_close(shares[name], (1 - 30 * slope * way).clamp(0, 1), atol=1e-5)
    assert any(0 < float(share) < 1 for share in shares["head.weight"].flatten())


def passes(monkeypatch, options, state=None):
    """Return over how many passes the weights were learned."""
    calls = []
    original = fedala.step_shares
    monkeypatch.setattr(fedala, "step_shares", lambda *rest: calls.append(1) or original(*rest))
    learn(options | {"share": 1.0}, state, batch_size=100)
    return len(calls)


def test_fedala_learns_long_once_and_then_for_one_pass(monkeypatch):
    assert passes(monkeypatch, {"first_passes": 17, "threshold": 1e-12}) == 17
    assert passes(monkeypatch, {"first_passes": 17, "threshold": 1e9}) == 10
    _, state, _, shares = learn({})
    known = state | {f"{fedala.SHARES}.{name}": share for name, share in shares.items()}
    assert passes(monkeypatch, {"first_passes": 17, "threshold": 1e-12}, known) == 1


def test_fedala_refuses_to_merge_more_tensors_than_there_are():
    world = World("fedala")
    plan = Plan(
        blueprints=(world.setups[0].blueprint,),
        options=fedala.Options(layer_idx=99),
        train_sizes=SIZES[:1],
        training=LocalTraining(),
    )
    with pytest.raises(UserError, match=r"layer_idx is 99.*choose 1 to \d+, or 0 for all"):
        world.method.check(plan)
    held = len(parameters(world.setups[0].model))
    world.method.check(replace(plan, options=fedala.Options(layer_idx=held)))
