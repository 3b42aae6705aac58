"""Extractors of several clients: each image by its own client's."""

import pytest
import torch
from compare import expect_same

from fedpriv.attacks.inputs.targets import OwnExtractors
from fedpriv.attacks.observation import Knowledge, ThreatModel
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint

SHAPE = (1, 28, 28)


def model(name, seed, **more):
    return build_model(Blueprint(name, SHAPE, 10, 16, **more), seed).eval().requires_grad_(False)


NAMES = ["small-cnn", "small-mlp", "small-cnn", "cnn4", "small-cnn", "small-mlp"]
OWNERS = torch.tensor([5, 0, 2, 3, 0, 4, 2, 2, 1, 5, 0])


@pytest.fixture(scope="module")
def knowledge():
    models = [model(name, seed) for seed, name in enumerate(NAMES)]
    return Knowledge(ThreatModel(), SHAPE, 10, extractors={k: one.represent for k, one in enumerate(models)})


def images(number=11):
    return torch.rand(number, *SHAPE, generator=torch.Generator().manual_seed(0)).requires_grad_()


def one_by_one(knowledge, shown):
    return torch.stack([knowledge.extractors[int(k)](image[None])[0] for k, image in zip(OWNERS, shown, strict=True)])


def test_each_image_meets_its_own_clients_network(knowledge):
    shown, call = images(), OwnExtractors(knowledge)
    for _ in range(2):
        found = call(shown, OWNERS)
    expected = one_by_one(knowledge, shown)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    along = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    (gradient,), (wanted,) = (torch.autograd.grad(values, shown, along) for values in (found, expected))
    torch.testing.assert_close(gradient, wanted, rtol=0, atol=1e-5)
    expect_same(call(shown[:1], OWNERS[1:2]), knowledge.extractors[0](shown[:1]))  # other owners
