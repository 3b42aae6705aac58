"""FedAvgDBE: the running mean of representations, what is sent of it, and the translation that stays."""

from dataclasses import replace

import torch
from compare import expect_close, expect_same
from method_cases import SIZES, WIDTH, World, trained
from torch.nn.functional import cross_entropy

from fedpriv.federation.local_training import local_batches, represent
from fedpriv.federation.states import put
from fedpriv.methods import fedavgdbe
from fedpriv.util.seeds import generator
from fedpriv.wire.payloads import (
    FeatureMean,
    find_payload,
    get_payload,
)


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
