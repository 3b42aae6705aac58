"""FedAPEN: two models that teach each other, mixed by a weight that a client learns."""

import math

import pytest
import torch
from compare import expect_close, expect_same
from method_cases import SHAPE, World, same
from torch.nn.functional import cross_entropy

from fedpriv.federation.local_training import classify
from fedpriv.federation.states import inner
from fedpriv.methods import small_model
from fedpriv.util.seeds import generator
from fedpriv.wire.payloads import SmallModel, get_payload


def test_fedapen_loss_by_hand():
    private, shared = torch.tensor([[math.log(3), 0.0]]), torch.tensor([[0.0, 0.0]])
    to_private = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    to_shared = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    mixed = math.log(1 + 3**-0.25)  # w P = (log 3 / 4, 0)
    expected = -math.log(0.75) + to_private - math.log(0.5) + to_shared + 2 * mixed
    loss = small_model.ensemble_loss(private, shared, torch.tensor([0]), torch.tensor([0.25]))
    assert float(loss) == pytest.approx(expected, abs=1e-6)


def test_fedapens_weight_descends_the_cross_entropy_of_the_mixture():
    torch.manual_seed(0)
    private, shared, labels = torch.randn(5, 4), torch.randn(5, 4), torch.tensor([0, 1, 3, 2, 2])
    options = small_model.FedApenOptions(set_learning_rate=0.1, set_epochs=1)
    weight = torch.tensor([0.5], requires_grad=True)
    loss = cross_entropy(small_model.mix(private, shared, weight), labels)
    (slope,) = torch.autograd.grad(loss, weight)
    learned = small_model.learn_weight(torch.tensor([0.5]), private, shared, labels, options, 5)
    expect_close(learned, 0.5 - 0.1 * slope, atol=1e-6)
    first = small_model.learn_weight(torch.tensor([0.5]), private[:3], shared[:3], labels[:3], options, 3)
    both = small_model.learn_weight(first, private[3:], shared[3:], labels[3:], options, 3)
    expect_close(small_model.learn_weight(torch.tensor([0.5]), private, shared, labels, options, 3), both)


def test_fedapen_learns_the_weight_on_its_set_after_aggregation():
    world = World("fedapen", {"set_learning_rate": 1.0, "set_share": 0.5})
    server, broadcast, states = world.start()
    setup = world.setups[0]
    # Nothing is learned from untrained models.
    assert world.method.apply_broadcast(setup, states[0], broadcast)["ensemble.weight"].tolist() == [0.5]
    _, broadcast, states, _ = world.round(1, server, broadcast, states)
    assert states[0]["ensemble.weight"].tolist() == [0.5]
    received = world.method.apply_broadcast(setup, states[0], broadcast)
    assert same(inner(received, "small"), dict(get_payload(broadcast, SmallModel).state))
    chosen = states[0]["ensemble.set"]
    assert len(chosen) == round(0.5 * len(setup.train)) == len(chosen.unique())
    logits = [classify(model, setup.train.images[chosen]) for model in small_model.load(setup, received)]
    expected = small_model.learn_weight(
        torch.tensor([0.5]), *logits, setup.train.labels[chosen], world.options, setup.training.batch_size
    )
    expect_same(received["ensemble.weight"], expected)
    assert expected.tolist() != [0.5]
    images = torch.rand(4, *SHAPE)
    private, shared = (classify(model, images) for model in small_model.load(setup, received))
    w = float(expected)
    expect_close(world.method.predict(setup, received, images), w * private + (1 - w) * shared, atol=1e-6)
    # The next training mixes by the learned weight, and keeps it.
    after, _ = world.method.client_step(setup, states[0], broadcast, generator(0))
    expect_same(after["ensemble.weight"], expected)
