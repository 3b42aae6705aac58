"""Methods that average heads, extractors, models or outputs: hand-computed cases, equalities, invariances."""

import pytest
import torch
from compare import expect_close, expect_same
from method_cases import SMALL, World, same, same_message, trained
from torch.nn.functional import cross_entropy

from fedpriv.federation.local_training import local_batches
from fedpriv.federation.states import parameters, put
from fedpriv.methods import fedrep
from fedpriv.models.split import Blueprint
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator
from fedpriv.wire.payloads import (
    Classifier,
    Extractor,
    Model,
    SampleCount,
    get_payload,
)


def count_of(number):
    return SampleCount(torch.tensor([number]))


@pytest.mark.parametrize(
    ("name", "options", "plain"),
    [
        ("fedprox", {"mu": 0}, "fedavg"),
        ("fedala", {"rate": 0}, "fedavg"),
        ("fedala", {"rate": 0, "layer_idx": 0}, "fedavg"),
        ("fedavgdbe", {"kappa": 0, "translation": False}, "fedavg"),
        ("fedgen-homogeneous", SMALL | {"weight": 0}, "fedavg"),
        ("fedgen", SMALL | {"weight": 0}, "lg-fedavg"),
        ("fd", {"weight": 0}, "local"),
    ],
)
def test_without_what_it_adds_a_method_is_the_plain_one_bit_for_bit(name, options, plain):
    training = {"weight_decay": 0.01, "momentum": 0.5}
    _, _, _, states, uploads = trained(name, options, **training)
    _, _, _, expected, plain_uploads = trained(plain, **training)
    for state, want in zip(states, expected, strict=True):
        assert same({key: value for key, value in state.items() if key.startswith("model.")}, want)
    for (_, upload), (_, want) in zip(uploads, plain_uploads, strict=True):
        if want:
            assert same_message(upload, want)


# ---------------------------------------------------------------- LG-FedAvg


def test_lg_fedavg_averages_heads_by_sample_counts_and_leaves_extractors_alone():
    world = World("lg-fedavg")
    uploads = [
        (0, (Classifier({"bias": torch.tensor([1.0]), "weight": torch.tensor([[2.0]])}), count_of(1))),
        (2, (Classifier({"bias": torch.tensor([5.0]), "weight": torch.tensor([[6.0]])}), count_of(3))),
    ]
    state, broadcast = world.method.server_step(world.server, {}, uploads, generator(0))
    assert get_payload(broadcast, Classifier).state["bias"].tolist() == [4.0]
    assert state["global.weight"].tolist() == [[5.0]]
    _, _, broadcast, states, uploads = trained("lg-fedavg")
    assert set(get_payload(uploads[0][1], Classifier).state) == {"bias", "weight"}
    received = world.method.apply_broadcast(world.setups[0], states[0], broadcast)
    changed = {key for key in received if not torch.equal(received[key], states[0][key])}
    assert changed == {"model.head.weight", "model.head.bias"}


# ---------------------------------------------------------------- FedProx


def test_fedprox_steps_down_the_gradient_plus_mu_times_the_way_from_the_global_model():
    world = World("fedprox", {"mu": 0.7}, batch_size=4, max_steps=2, learning_rate=0.2)
    _, broadcast, states = world.start()
    setup, model = world.setups[0], world.setups[0].model
    state, _ = world.method.client_step(setup, states[0], broadcast, generator(5))
    anchors = get_payload(broadcast, Model).state
    put(model, states[0], "model")
    for index in local_batches(len(setup.train), setup.training, generator(5)):
        images, labels = setup.train.batch(index)
        slopes = torch.autograd.grad(cross_entropy(model(images), labels), list(model.parameters()))
        with torch.no_grad():
            for (name, weight), slope in zip(model.named_parameters(), slopes, strict=True):
                weight -= 0.2 * (slope + 0.7 * (weight - anchors[name]))
    for name, weight in model.named_parameters():
        expect_close(state[f"model.{name}"], weight, atol=1e-6)


# ---------------------------------------------------------------- FedRep


def test_fedreps_head_never_leaves_and_is_never_replaced():
    world, server, broadcast, states, uploads = trained("fedrep")
    for _, upload in uploads:
        assert not any(name.startswith("head") for name in get_payload(upload, Extractor).state)
    assert not any("head" in name for name in server)
    assert not torch.equal(states[0]["model.head.weight"], states[1]["model.head.weight"])
    received = world.method.apply_broadcast(world.setups[0], states[0], broadcast)
    expect_same(received["model.head.weight"], states[0]["model.head.weight"])
    base = get_payload(broadcast, Extractor).state
    for name, value in base.items():
        expect_same(received[f"model.{name}"], value)
        assert not torch.equal(states[0][f"model.{name}"], value)
    assert len(base) == len(parameters(world.setups[0].model)) - 2


def test_each_phase_of_fedrep_moves_its_half_only():
    world = World("fedrep", {"head_epochs": 3}, batch_size=4, learning_rate=0.1)
    _, _, states = world.start()
    setup, model = world.setups[0], world.setups[0].model
    put(model, states[0], "model")
    fedrep.train_head(setup, generator(1))
    after_head = parameters(model)
    fedrep.train_base(setup, generator(2))
    after_base = parameters(model)
    for name, first in after_head.items():
        before = states[0][f"model.{name}"]
        assert torch.equal(before, first) is not name.startswith("head.")
        assert torch.equal(first, after_base[name]) is name.startswith("head.")


def test_methods_that_average_models_refuse_different_architectures():
    from fedpriv.federation.prepared import check_plan
    from fedpriv.methods import METHODS

    setups = World("lg-fedavg").setups
    for name in ("fedprox", "fedrep", "fedala", "fedavgdbe", "fedgen-homogeneous"):
        method = METHODS.load(name)
        with pytest.raises(UserError, match=r"needs one architecture for all clients.*pass one model"):
            check_plan(method, setups, method.options(), has_public=False)
    for name in ("lg-fedavg", "fedgen", "fd"):
        method = METHODS.load(name)
        check_plan(method, setups, method.options(), has_public=False)
        assert isinstance(setups[1].blueprint, Blueprint)
