"""Batches behind a loss that private parts teach: taken apart in front of a ReLU, then matched as if labels told it."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.gradients.inverting import InvertingGradients
from fedpriv.attacks.gradients.separation import linear_gradient, separate
from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.observation import BatchFacts, Knowledge, Observation, ThreatModel
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint
from fedpriv.wire.payloads import Model, PublicLoss

SHAPE, RATE, COUNT = (1, 8, 8), 0.1, 3


def rectified(count, outputs=200, zeros=0.5):
    """Derivatives ``(m, n)`` behind a ReLU, and inputs ``(n, k)``."""
    draw = torch.Generator().manual_seed(count)
    errors = torch.randn(outputs, count, generator=draw, dtype=torch.float64)
    errors = errors * (torch.rand(outputs, count, generator=draw) > zeros) * torch.linspace(1, 5, count)
    return errors, torch.rand(count, 60, generator=draw, dtype=torch.float64)


@pytest.mark.parametrize("count", [2, 8])
def test_batches_are_taken_apart_by_zeros_alone(count):
    errors, inputs = rectified(count)
    found = separate(errors @ inputs, errors.sum(1), count, torch.Generator().manual_seed(0))
    assert found.attested == count
    order = torch.cdist(found.errors.T, errors.T).argmin(1)
    assert sorted(order.tolist()) == list(range(count))
    torch.testing.assert_close(found.errors, errors[:, order], rtol=1e-6, atol=1e-7)


def test_derivatives_are_those_of_the_mean_loss():
    errors, inputs = rectified(5)
    gradient = {"f.weight": (errors @ inputs).float(), "f.bias": errors.sum(1).float()}
    found = linear_gradient(gradient, None, "f").parts(5, torch.Generator().manual_seed(0)).derivatives
    assert found.shape == (5, 200)
    torch.testing.assert_close(found.mean(0), gradient["f.bias"], rtol=1e-4, atol=1e-5)
    order = torch.cdist(found.double(), 5 * errors.T).argmin(1)
    torch.testing.assert_close(found.double(), 5 * errors.T[order], rtol=1e-3, atol=1e-4)
    dense, _ = rectified(5, zeros=0.0)
    gradient = {"f.weight": (dense @ inputs).float(), "f.bias": dense.sum(1).float()}
    assert linear_gradient(gradient, None, "f").parts(5, torch.Generator().manual_seed(0)) is None


@pytest.fixture(scope="module")
def step():
    """One step of a client whose private parts pull at the representations: its images, and what the server sees."""
    model: nn.Module = build_model(Blueprint("small-cnn", SHAPE, 10, 128), 1)
    draw = torch.Generator().manual_seed(5)
    images = functional.interpolate(torch.rand(COUNT, 1, 4, 4, generator=draw), scale_factor=2, mode="bilinear")
    pulls = torch.randn(COUNT, 128, generator=draw)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    (pulls * model.represent(images)).sum(1).mean().backward()
    after = {
        name: value.detach() - RATE * (torch.zeros_like(value) if value.grad is None else value.grad)
        for name, value in model.named_parameters()
    }
    model.zero_grad()
    seen = (Observation(1, 0, (Model(after),), (Model(before),)),)
    knowledge = Knowledge(
        ThreatModel(),
        SHAPE,
        10,
        model=model,
        batch=BatchFacts(COUNT, RATE, 1),
        labels={(1, 0): torch.arange(COUNT)},
        loss=PublicLoss(through="representation", head_apart=True),
    )
    return images, AttackProblem(seen, knowledge, list_targets(list(seen), "model"))


def test_the_batch_comes_back_where_cross_entropy_finds_nothing(step):
    images, problem = step

    def reached(asked):
        guesses = InvertingGradients(iterations=400).run(asked).images[0]
        errors = (guesses[:, None] - images[None]).square().flatten(2).mean(2)
        return float(-10 * errors.min(0).values.log10().mean())

    plain = dataclasses.replace(problem, knowledge=dataclasses.replace(problem.knowledge, loss=PublicLoss()))
    assert reached(problem) > 18
    assert reached(problem) > reached(plain) + 6
