"""Distances of chains by explicit passes: equal to those that autograd finds, and to its derivatives."""

from dataclasses import replace

import pytest
import torch
from gradient_cases import CPU, sigmoid_net
from torch import nn

from fedpriv.attacks.gradients.chain import chain_of
from fedpriv.attacks.gradients.chain_distance import ChainGradients
from fedpriv.attacks.gradients.gradient_matching import Matcher
from fedpriv.attacks.gradients.update import LocalStep
from fedpriv.attacks.inputs.updates import Tangent, sent_entries
from fedpriv.attacks.observation import BatchFacts
from fedpriv.models import default_width
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint

SHAPE = (1, 8, 8)


def pooled_net():
    """Overlapping windows, a dilated convolution, tanh, average pooling, dropout, layers without bias."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding="same", bias=False),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(4, 6, 2, dilation=2),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(6, 5, bias=False),
        nn.Sigmoid(),
        nn.Linear(5, 10),
    )


def wide_net():
    """Convolutions of more channels than patches are made of: with strides, dilation, one on a single position."""
    return nn.Sequential(
        nn.Conv2d(1, 9, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(9, 10, 3, stride=2, padding=1, bias=False),
        nn.Tanh(),
        nn.Conv2d(10, 8, 2, dilation=(1, 2)),
        nn.Sigmoid(),
        nn.Conv2d(8, 8, (3, 2), stride=(2, 1), padding=(1, 0)),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


def built(name, shape=SHAPE, **fields):
    return build_model(Blueprint(name, shape, 10, default_width(name, shape), **fields), 0)


def narrowed():
    """A mapping to fewer numbers stands before the head."""
    return build_model(Blueprint("small-mlp", SHAPE, 10, 20), 0)


MODELS = {
    "sigmoids": sigmoid_net,
    "pools": pooled_net,
    "wide": wide_net,
    "small-cnn": lambda: built("small-cnn"),
    "lenet": lambda: built("lenet-sigmoid"),
    "mapped": narrowed,
}


def matching(model, steps, count, chain, monkeypatch):
    """Return the comparison, with the chain's passes or without."""
    made = Matcher(model, SHAPE, BatchFacts(count, 0.1, 1), "unrolled", CPU)
    assert made._chain.supported
    monkeypatch.setattr(made._chain, "supported", chain)
    return made.against(steps, [count] * len(steps))


def steps_of(model, rows, project=None, left_out=()):
    weights = {name: value.detach().double() for name, value in model.named_parameters()}
    draw = torch.Generator().manual_seed(3)
    found = []
    for _ in range(rows):
        gradient = {
            name: torch.randn(value.shape, generator=draw, dtype=torch.float64)
            for name, value in weights.items()
            if name not in left_out
        }
        if project == "sent":
            gradient = {name: value * (value > 0.5) for name, value in gradient.items()}
        own = tangent_of(gradient, draw) if project == "tangent" else sent_entries(gradient, project or "all")
        found.append(LocalStep(weights, own(gradient) if project == "tangent" else gradient, project=own))
    return found


def tangent_of(gradient, draw):
    """Directions of every matrix and kernel but the first, of another number in every row."""
    left, right = {}, {}
    for name, value in list(gradient.items())[1:]:
        if value.dim() > 1:
            rank = int(torch.randint(1, min(value.shape[-2:]), (1,), generator=draw))
            directions = torch.linalg.svd(
                torch.randn(value.shape, generator=draw, dtype=value.dtype), full_matrices=False
            )
            left[name], right[name] = directions[0][..., :rank], directions[2][..., :rank, :]
    return Tangent(left, right)


@pytest.mark.parametrize("kind", ["cosine", "squared"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_values_and_derivatives_are_those_of_autograd(name, count, kind, monkeypatch):
    torch.manual_seed(0)
    model = MODELS[name]().double()
    expect_equal(model, steps_of(model, 2), count, kind, monkeypatch)


@pytest.mark.parametrize("kind", ["cosine", "squared"])
def test_what_is_left_out_or_projected_has_no_part(kind, monkeypatch):
    torch.manual_seed(0)
    model = sigmoid_net().double()
    expect_equal(model, steps_of(model, 2, left_out=("0.weight", "5.bias")), 2, kind, monkeypatch)
    expect_equal(model, steps_of(model, 2, left_out=("5.weight",)), 1, kind, monkeypatch)
    expect_equal(model, steps_of(model, 2, project="sent"), 2, kind, monkeypatch)


@pytest.mark.parametrize("kind", ["cosine", "squared"])
@pytest.mark.parametrize("count", [1, 3, 40])
def test_truncated_uploads_are_compared_along_what_they_hold(count, kind, monkeypatch):
    torch.manual_seed(0)
    for name in MODELS:
        model = MODELS[name]().double()
        expect_equal(model, steps_of(model, 2, project="tangent"), count, kind, monkeypatch)


@pytest.mark.parametrize("kind", ["cosine", "squared"])
@pytest.mark.parametrize("count", [1, 3])
def test_heads_of_rows_own_are_computed_together(count, kind, monkeypatch):
    torch.manual_seed(0)
    for name in ("small-cnn", "sigmoids"):
        model = MODELS[name]().double()
        head = list(dict(model.named_parameters()))[-2:]
        steps = [
            replace(
                step,
                weights={name: value for name, value in step.weights.items() if name not in head},
                fixed={name: torch.randn_like(step.weights[name]) for name in head},
            )
            for step in steps_of(model, 2, left_out=head)
        ]
        expect_equal(model, steps, count, kind, monkeypatch)
        assert [len(matching(model, steps, count, chain, monkeypatch)._groups) for chain in (True, False)] == [1, 2]
        compare = matching(model, steps, count, True, monkeypatch)
        images, labels = torch.rand(2, count, *SHAPE).double(), torch.rand(2, count, 10).double()
        both = compare.cosine(images, labels, torch.arange(2))
        torch.testing.assert_close(compare.cosine(images[1:], labels[1:], torch.tensor([1])), both[1:])


def test_a_row_alone_comes_out_as_among_others(monkeypatch):
    torch.manual_seed(0)
    model = wide_net()
    steps = steps_of(model, 3)
    steps = [
        replace(
            step,
            weights={name: value.float() for name, value in step.weights.items()},
            gradient={name: value.float() for name, value in step.gradient.items()},
        )
        for step in steps
    ]
    compare = matching(model, steps, 1, True, monkeypatch)
    images, labels = torch.rand(3, 1, *SHAPE).requires_grad_(), torch.eye(10)[:3, None]
    together = compare.cosine(images, labels, torch.arange(3))
    (slopes,) = torch.autograd.grad(together.sum(), images)
    for row in range(3):
        one = images[row : row + 1].detach().requires_grad_()
        alone = compare.cosine(one, labels[row : row + 1], torch.tensor([row]))
        torch.testing.assert_close(alone, together[row : row + 1], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(torch.autograd.grad(alone.sum(), one)[0][0], slopes[row], rtol=1e-5, atol=1e-8)


def expect_equal(model, steps, count, kind, monkeypatch):
    images = torch.rand(2, count, *SHAPE, dtype=torch.float64)
    labels = torch.rand(2, count, 12, dtype=torch.float64)  # soft, and more columns than classes
    rows, weights = torch.arange(2), torch.tensor([1.0, -2.0], dtype=torch.float64)
    found = []
    for chain in (True, False):
        own = [images.clone().requires_grad_(), labels.clone().requires_grad_()]
        values = getattr(matching(model, steps, count, chain, monkeypatch), kind)(*own, rows)
        found.append([values.detach(), *torch.autograd.grad(values, own, weights)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-12)


def test_rows_are_looked_up_anew_where_they_changed(monkeypatch):
    torch.manual_seed(0)
    model = sigmoid_net().double()
    compare = matching(model, steps_of(model, 3), 1, True, monkeypatch)
    images, labels = torch.rand(3, 1, *SHAPE).double(), torch.eye(10).double()[:3, None]
    rows = torch.arange(3)
    every = compare.squared(images, labels, rows)
    rows[0] = 2  # the same tensor, written to
    assert compare.squared(images, labels, rows)[0] != every[0]
    torch.testing.assert_close(compare.squared(images[1:2], labels[1:2], torch.tensor([1])), every[1:2])


class Branched(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(64, 10), nn.Linear(64, 10)

    def forward(self, images):
        flat = images.flatten(1)
        return self.one(flat) + self.other(flat)


class Deciding(nn.Sequential):
    def forward(self, images):
        return super().forward(images) if images.mean() > 0 else super().forward(-images)


def test_other_networks_are_left_to_autograd():
    tied = nn.Linear(64, 64)
    others = [
        Branched(),
        Deciding(nn.Flatten(), nn.Linear(64, 10)),
        nn.Sequential(nn.Flatten(), tied, nn.Tanh(), tied, nn.Linear(64, 10)),
        nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(108, 10)),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(64, 10)),
        nn.Sequential(nn.Linear(8, 8), nn.Flatten(), nn.Linear(64, 10)),  # acts on several positions
        nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.GELU(), nn.Linear(10, 10)),
    ]
    assert chain_of(nn.Sequential(nn.Flatten(), nn.Linear(64, 10))) is not None
    for other in others:
        assert not ChainGradients(other, SHAPE, CPU).supported
