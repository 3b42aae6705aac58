"""FedMD and DS-FL: distillation on public samples against hand-computed cases."""

import copy
import math

import pytest
import torch
from compare import expect_close, expect_same
from method_cases import CLASSES, World, expect_step, same
from torch.nn.functional import cross_entropy, l1_loss

from fedpriv.federation.local_training import classify
from fedpriv.federation.method import GuardedTraining, LocalTraining
from fedpriv.federation.states import put
from fedpriv.methods import fedmd
from fedpriv.methods.fedmd import on_public
from fedpriv.uploads.payloads import PublicLogits, PublicSamples, get_payload
from fedpriv.util.seeds import generator

QUICK = {"fedmd": {"public_epochs": 1}, "ds-fl": {"server": {"epochs": 1}}}


@pytest.mark.parametrize("name", QUICK)
def test_a_round_asks_for_samples_and_the_next_carries_the_consensus_on_them(name):
    world = World(name, QUICK[name] | {"samples": 5})
    server, first, states = world.start()
    assert [payload.kind for payload in first] == ["public-samples"]
    asked = get_payload(first, PublicSamples).samples
    assert len(set(asked.tolist())) == 5
    assert set(asked.tolist()) <= set(range(12))
    _, second, states, uploads = world.round(1, server, first, states)
    for k, upload in uploads:
        sent = get_payload(upload, PublicLogits)
        expect_same(sent.samples, asked)
        put(world.setups[k].model, states[k], "model")
        logits = classify(world.setups[k].model, world.server.public[asked])
        expect_close(sent.values, logits if name == "fedmd" else logits.softmax(1), atol=1e-6)
    consensus = get_payload(second, PublicLogits)
    expect_same(consensus.samples, asked)
    mean = sum(get_payload(upload, PublicLogits).values for _, upload in uploads) / 3
    expect_close(consensus.values, mean if name == "fedmd" else (mean / 0.1).softmax(1), atol=1e-6)
    assert not torch.equal(get_payload(second, PublicSamples).samples, asked)


def test_aggregates_by_hand():
    mean = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.4, 0.4]])
    sharpened = fedmd.aggregated(mean, fedmd.DsFlOptions())
    powers = [math.exp(6.0), math.exp(3.0), math.exp(1.0)]
    expect_close(sharpened[0], torch.tensor([power / sum(powers) for power in powers]), atol=1e-6)
    expect_close(fedmd.aggregated(mean, fedmd.DsFlOptions(aggregation="sa")), mean, atol=1e-7)
    # A temperature of one is not simple aggregation: the softmax of shares, which flattens them.
    assert float(fedmd.aggregated(mean, fedmd.DsFlOptions(temperature=1.0))[0, 0]) < 0.6 < float(sharpened[0, 0])


def test_one_step_of_digest_goes_down_the_distance_to_the_consensus_and_then_revisits():
    world = World("fedmd", {"public_epochs": 0}, batch_size=20, learning_rate=0.1)
    _, broadcast, states = world.start()
    setup = world.setups[0]
    ready = states[0] | {fedmd.READY: torch.ones(1, dtype=torch.bool)}
    samples, wanted = torch.tensor([1, 4, 7]), torch.randn(3, CLASSES, generator=generator(1))
    put(setup.model, ready, "model")
    distance = l1_loss(setup.model(setup.public[samples]), wanted)
    slopes = torch.autograd.grad(distance, list(setup.model.parameters()))
    with torch.no_grad():
        for parameter, slope in zip(setup.model.parameters(), slopes, strict=True):
            parameter -= 0.1 * slope
    model = copy.deepcopy(setup.model)
    message = (*broadcast, PublicLogits(wanted, samples))
    trained, _ = world.method.client_step(setup, ready, message, generator(4))
    expect_step(model, trained, cross_entropy(model(setup.train.images), setup.train.labels), 0.1)


def test_transfer_learning_comes_once_whenever_a_client_first_takes_part(monkeypatch):
    world = World("fedmd", {"public_epochs": 2}, batch_size=4)
    server, broadcast, states = world.start()
    learned = []

    def noting(model, images, wanted, *rest):
        learned.append("classes" if wanted.dim() == 1 else "consensus")

    monkeypatch.setattr(fedmd, "distil", noting)
    for number, chosen in enumerate((0, 0, 1, 1), start=1):
        server, broadcast, states, _ = world.round(number, server, broadcast, states, chosen=(chosen,))
        assert bool(states[chosen][fedmd.READY])
    assert learned == ["classes", "consensus"] * 2
    assert not bool(states[2][fedmd.READY])


def test_the_servers_model_learns_from_the_aggregate_alone_and_is_no_clients_model():
    world = World("ds-fl", {"server": {"epochs": 30, "batch_size": 4}, "aggregation": "sa"}, batch_size=4)
    server, _, states = world.start()
    wanted = torch.eye(CLASSES)[torch.arange(12) % CLASSES]
    uploads = [(0, (PublicLogits(wanted, server["asked"]),))]
    before = {name: value.clone() for name, value in server.items()}
    after, _ = world.method.server_step(world.server, server, uploads, generator(2))
    assert same(server, before)

    def right(state):
        logits = world.method.server_predict(world.server, state, world.server.public)
        return float((logits.argmax(1) == wanted.argmax(1)).float().mean())

    assert right(after) > max(0.8, right(server))
    assert not any(
        torch.equal(server[f"server.{name.removeprefix('model.')}"], value)
        for name, value in states[0].items()
        if value.dim() > 1
    )


def test_private_guards_and_limits_do_not_reach_public_training():
    private = GuardedTraining(
        learning_rate=0.3, momentum=0.5, max_steps=1, drop_last=True, guards=(print,), poisson=True
    )
    training = on_public(private, 7, 3)
    assert type(training) is LocalTraining
    assert (training.learning_rate, training.momentum, training.epochs, training.batch_size) == (0.3, 0.5, 7, 3)
    assert training.max_steps is None
    assert not training.drop_last
