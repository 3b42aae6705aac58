"""Methods that average heads, extractors or models, plain and with something added: hand-computed cases, equalities."""

from dataclasses import replace

import pytest
import torch
from compare import expect_close, expect_same
from method_cases import SIZES, SMALL, WIDTH, World, same, same_message, trained
from torch.nn.functional import cross_entropy

from fedpriv.federation.local_training import local_batches, represent
from fedpriv.federation.states import parameters, put
from fedpriv.methods import fedavgdbe
from fedpriv.uploads.payloads import Classifier, Extractor, FeatureMean, Model, SampleCount, find_payload, get_payload
from fedpriv.util.seeds import generator


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
        ("fedtgp", {"weight": 0}, "local"),
        ("fpl", {"contrast": 0, "consistency": 0}, "local"),
        ("fedhenn", {"weight": 0}, "local"),
        ("fedhenn-kernel", {"weight": 0}, "local"),
        ("fedhenn-homogeneous", {"weight": 0}, "fedavg"),
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


def test_dbe_sends_the_running_mean_once_and_the_server_sends_the_average_from_the_second_round_on():
    world = World("fedavgdbe", {}, batch_size=4)
    server, broadcast, states = world.start()
    assert find_payload(broadcast, FeatureMean) is None
    server, broadcast, states, uploads = world.round(1, server, broadcast, states)
    means = [get_payload(upload, FeatureMean).mean for _, upload in uploads]
    average = sum(size / sum(SIZES) * mean for size, mean in zip(SIZES, means, strict=True))
    expect_close(get_payload(broadcast, FeatureMean).mean, average, atol=1e-6)
    server, again, states, uploads = world.round(2, server, broadcast, states)
    assert all(find_payload(upload, FeatureMean) is None for _, upload in uploads)
    expect_same(get_payload(again, FeatureMean).mean, get_payload(broadcast, FeatureMean).mean)


def test_the_running_mean_of_dbe_starts_from_zero_and_forgets_by_its_momentum():
    world = World("fedavgdbe", {"momentum": 0.25}, batch_size=4, max_steps=2, learning_rate=1e-9)
    _, broadcast, states = world.start()
    setup, model = world.setups[0], world.setups[0].model
    _, upload = world.method.client_step(setup, states[0], broadcast, generator(5))
    put(model, states[0], "model")
    one, two = (
        represent(model, setup.train.images[index]).mean(0)
        for index in local_batches(len(setup.train), setup.training, generator(5))
    )
    expect_close(get_payload(upload, FeatureMean).mean, 0.75 * 0.25 * one + 0.25 * two, atol=1e-6)


def test_a_step_of_dbe_is_its_loss_by_hand():
    options = {"kappa": 3.0, "momentum": 0.5}
    world, _, broadcast, states, _ = trained("fedavgdbe", options, batch_size=4, learning_rate=0.2)
    setup, model = world.setups[0], world.setups[0].model
    setup = replace(setup, training=replace(setup.training, max_steps=2))
    assert bool(states[0][fedavgdbe.TRANSLATION].any())
    state, upload = world.method.client_step(setup, states[0], broadcast, generator(5))
    assert [payload.kind for payload in upload] == ["model", "sample-count"]
    put(model, world.method.apply_broadcast(setup, states[0], broadcast), "model")
    shift = states[0][fedavgdbe.TRANSLATION].clone().requires_grad_()
    target, running = get_payload(broadcast, FeatureMean).mean, torch.zeros(WIDTH)
    for index in local_batches(len(setup.train), setup.training, generator(5)):
        images, labels = setup.train.batch(index)
        features = model.represent(images)
        running = 0.5 * running.detach() + 0.5 * features.mean(0)
        penalty = (0.5 * (running - target) ** 2).sum() / WIDTH
        loss = cross_entropy((features + shift) @ model.head.weight.T + model.head.bias, labels) + 3 * penalty
        slopes = torch.autograd.grad(loss, [*model.parameters(), shift])
        with torch.no_grad():
            for weight, slope in zip([*model.parameters(), shift], slopes, strict=True):
                weight -= 0.2 * slope
    for name, weight in model.named_parameters():
        expect_close(state[f"model.{name}"], weight, atol=1e-5)
    expect_close(state[fedavgdbe.TRANSLATION], shift, atol=1e-5)


def test_dbes_translation_is_private_and_used_in_prediction():
    world, server, broadcast, states, uploads = trained("fedavgdbe")
    setup, images = world.setups[0], torch.rand(3, 1, 8, 8)
    shift = states[0][fedavgdbe.TRANSLATION]
    crossed = [t for message in (broadcast, *(upload for _, upload in uploads)) for p in message for t in p.tensors()]
    assert not any("translation" in name for name in [*crossed, *server])
    assert all(not torch.equal(shift, value) for value in server.values())
    put(setup.model, states[0], "model")
    logits = (represent(setup.model, images) + shift) @ setup.model.head.weight.T + setup.model.head.bias
    expect_close(world.method.predict(setup, states[0], images), logits, atol=1e-5)
    received = world.method.apply_broadcast(setup, states[0], broadcast)
    expect_same(received[fedavgdbe.TRANSLATION], shift)
