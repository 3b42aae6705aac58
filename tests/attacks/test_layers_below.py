"""Images told apart at the last of several fully connected layers, and by that at the first."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedpriv.attacks.gradients.separated_batch import LabelledStep

CLASSES, SHAPE = 10, (1, 12, 12)


def step(activation, count, seed=0):
    """One step of a network of two hidden layers, and the derivatives ``(n, m)`` at the first, an image each."""
    torch.manual_seed(seed)
    layers = [nn.Flatten(), nn.Linear(144, 160), activation, nn.Linear(160, 128), nn.ReLU(), nn.Linear(128, CLASSES)]
    model = nn.Sequential(*layers)
    images, labels = torch.rand(count, *SHAPE), torch.randint(CLASSES, (count,))
    losses = functional.cross_entropy(model(images), labels, reduction="none") / count
    truth = torch.stack([torch.autograd.grad(loss, model[1].bias, retain_graph=True)[0] for loss in losses])
    losses.sum().backward()
    weights = {name: value.detach() for name, value in model.named_parameters()}
    gradient = {name: value.grad for name, value in model.named_parameters()}
    return LabelledStep(model, weights, gradient, None, ("1", "3"), labels, SHAPE, 1.0), truth.double()


def right(found, truth):
    alike = functional.cosine_similarity(found.errors.T.unsqueeze(1), truth, dim=2) > 0.9999
    return int(alike.any(0).sum())


@pytest.mark.parametrize("count", [4, 20])
def test_images_are_told_apart_from_the_last_layer_down(count):
    own, truth = step(nn.ReLU(), count)
    found = own.separated("1", torch.Generator().manual_seed(0))
    assert right(found, truth) == found.attested == count
    order = torch.cdist(found.errors.T, truth).argmin(1)
    torch.testing.assert_close(found.errors.T, truth[order], rtol=1e-2, atol=1e-6)


def test_what_stands_between_must_be_a_relu():
    own, truth = step(nn.Tanh(), 4)
    draw = torch.Generator().manual_seed(0)
    assert own.columns_below("3", "1", own.at("3", draw, None)) is None
    assert right(own.separated("1", draw), truth) < 4
    between, _ = step(nn.ReLU(), 4)
    columns = between.columns_below("3", "1", between.at("3", draw, None))
    assert columns.shape == (160, 4)
