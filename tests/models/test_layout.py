"""Networks that work with the channels of a position side by side: which, and that nothing else changes."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedpriv.attacks.inversion.surrogate import ShadowTraining, train_substitute
from fedpriv.datasets.types import Samples
from fedpriv.federation.local_training import classification_loss, train
from fedpriv.federation.method import LocalTraining
from fedpriv.federation.states import Trace
from fedpriv.models import default_width, split
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint, takes_channels_last


class Viewing(nn.Module):
    """A network of somebody else's, which looks at its maps as vectors without a copy."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4 * 6 * 6, 2)

    def forward(self, images):
        return self.head(self.layer(images).view(len(images), -1))


def built(name, shape):
    return build_model(Blueprint(name, shape, 4, default_width(name, shape)), 0)


def test_only_networks_that_cannot_mind_are_asked_and_none_that_is_slower():
    assert takes_channels_last(built("small-cnn", (1, 8, 8)), cross_entropy)
    assert takes_channels_last(nn.ModuleList([built("cnn4", (3, 16, 16)), built("cnn-5", (3, 16, 16))]), cross_entropy)
    assert not takes_channels_last(built("small-mlp", (1, 8, 8)), cross_entropy)
    assert not takes_channels_last(Viewing(), cross_entropy)
    assert not takes_channels_last(nn.Sequential(Viewing(), nn.ReLU()), cross_entropy)
    assert not takes_channels_last(built("resnet18", (3, 32, 32)), cross_entropy)
    model = built("small-cnn", (1, 8, 8))
    assert takes_channels_last(model, classification_loss(model))
    assert not takes_channels_last(model, lambda images, labels: images.view(len(images), -1).sum())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("name", ["small-cnn", "small-cnn-deep", "resnet4", "lenet-sigmoid"])
def test_training_moves_weights_as_in_the_other_order(name, momentum, monkeypatch):
    shape = (3, 16, 16)
    draw = torch.Generator().manual_seed(0)
    samples = Samples(torch.randint(256, (12, *shape), generator=draw).byte(), torch.randint(4, (12,), generator=draw))
    training = LocalTraining(batch_size=6, learning_rate=0.01, momentum=momentum, max_steps=2)
    found = []
    for asked in (takes_channels_last, lambda module, loss: False):
        monkeypatch.setattr(split, "takes_channels_last", asked)
        model = copy.deepcopy(built(name, shape))
        train(model, samples, training, torch.Generator().manual_seed(1), classification_loss(model), Trace())
        assert all(value.is_contiguous() for value in model.state_dict().values())
        found.append(model.state_dict())
    for key, value in found[0].items():
        torch.testing.assert_close(value, found[1][key], rtol=1e-3, atol=1e-5)


def substitute_after(steps, enough=0.0):
    """Return a model that fused Adam trained on one batch again and again, and the losses that it saw."""
    draw, losses, model = torch.Generator().manual_seed(0), [], built("small-cnn", (3, 16, 16))
    samples = Samples(torch.rand(12, 3, 16, 16, generator=draw), torch.arange(12) % 4)

    def loss(images, labels):
        losses.append(cross_entropy(model(images), labels))
        return losses[-1]

    loss.__module__ = "fedpriv.test"
    training = ShadowTraining(epochs=steps, batch_size=12, learning_rate=2e-3, enough=enough)
    train_substitute(model, samples, loss, training, torch.Generator().manual_seed(1))
    return model, [value.item() for value in losses]


def test_adam_moves_weights_as_in_the_other_order(monkeypatch):
    turned, _ = substitute_after(3)
    monkeypatch.setattr(split, "takes_channels_last", lambda module, loss: False)
    plain, _ = substitute_after(3)
    for key, value in turned.state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[key], rtol=1e-3, atol=1e-5)


def test_a_substitute_has_learned_enough_where_the_running_mean_of_its_loss_has_fallen():
    _, losses = substitute_after(200, enough=0.1)
    assert 10 < len(losses) < 200
    means = [losses[0]]
    for value in losses[1:]:
        means.append(0.9 * means[-1] + 0.1 * value)
    assert means[-1] < 0.1 * losses[0] <= means[-2]
    assert len(substitute_after(30)[1]) == 30
