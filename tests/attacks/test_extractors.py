"""Extractors of several clients: called together or one after the other, each image by its own client's."""

import pytest
import torch
from compare import expect_same
from torch import nn

from fedpriv.attacks.inputs.extractors import OwnExtractors, represent_rows
from fedpriv.attacks.inputs.stacked import StackedExtractors, architecture, stack, worth_stacking
from fedpriv.attacks.observation import Knowledge, KnowledgeCard
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SHAPE = (1, 28, 28)


def model(name, seed, **more):
    return build_model(Blueprint(name, SHAPE, 10, 16, **more), seed).eval().requires_grad_(False)


NAMES = ["small-cnn", "small-mlp", "small-cnn", "cnn4", "small-cnn", "small-mlp"]
OWNERS = torch.tensor([5, 0, 2, 3, 0, 4, 2, 2, 1, 5, 0])


@pytest.fixture(scope="module")
def knowledge():
    models = [model(name, seed) for seed, name in enumerate(NAMES)]
    return Knowledge(KnowledgeCard(), SHAPE, 10, extractors={k: one.represent for k, one in enumerate(models)})


def images(number=11):
    return torch.rand(number, *SHAPE, generator=torch.Generator().manual_seed(0)).requires_grad_()


def one_by_one(knowledge, shown):
    return torch.stack([knowledge.extractors[int(k)](image[None])[0] for k, image in zip(OWNERS, shown, strict=True)])


@pytest.mark.parametrize("together", [None, False, True])
def test_each_image_meets_its_own_clients_network(knowledge, together):
    shown, call = images(), OwnExtractors(knowledge, together)
    for _ in range(2):
        found = call(shown, OWNERS)
    expected = one_by_one(knowledge, shown)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    along = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    (gradient,), (wanted,) = (torch.autograd.grad(values, shown, along) for values in (found, expected))
    torch.testing.assert_close(gradient, wanted, rtol=0, atol=1e-5)


def test_networks_of_one_kind_are_one_call(knowledge):
    alike = stack([knowledge.extractors[k] for k in (0, 2, 4)], images(2))
    assert isinstance(alike, StackedExtractors)
    shown = images(6).view(3, 2, *SHAPE)
    expected = torch.stack([knowledge.extractors[k](own) for k, own in zip((0, 2, 4), shown, strict=True)])
    torch.testing.assert_close(alike(shown), expected, rtol=0, atol=1e-5)


def test_owners_that_change_are_worked_out_anew(knowledge):
    shown, call = images(), OwnExtractors(knowledge, True)
    call(shown, OWNERS)
    expect_same(call(shown[:1], OWNERS[1:2]), knowledge.extractors[0](shown[:1]))
    torch.testing.assert_close(
        represent_rows(knowledge, shown, OWNERS), one_by_one(knowledge, shown), rtol=0, atol=1e-5
    )


def test_what_is_not_alike_is_no_architecture():
    same = [architecture(model("small-cnn", seed).represent) for seed in (0, 1)]
    assert same[0] == same[1]
    bounded = model("small-cnn", 0, norm_bound=1.0)
    others = [model("small-mlp", 0).represent, bounded.represent, model("small-cnn", 0)]
    assert len({same[0], *map(architecture, others)}) == 4
    assert architecture(lambda x: x) is None
    assert architecture(model("small-cnn", 0).train().represent) is None


class Halting(nn.Module):
    """Asks for a value, which several networks at once cannot answer."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(784, 3)

    def forward(self, shown):
        found = self.inner(shown.flatten(1))
        return found if found.sum() > 0 else -found


def test_a_network_that_cannot_be_stacked_is_called_alone():
    networks = [Halting().eval().requires_grad_(False) for _ in range(3)]
    assert stack(networks, images(2)) is None
    knowledge = Knowledge(KnowledgeCard(), SHAPE, 3, extractors=dict(enumerate(networks)))
    owners, shown = torch.tensor([2, 0, 1]), images(3)
    expected = torch.cat([networks[k](shown[i : i + 1]) for i, k in enumerate(owners.tolist())])
    torch.testing.assert_close(OwnExtractors(knowledge, True)(shown, owners), expected)


def test_the_rule_depends_on_the_device_and_the_images():
    network, plain = model("small-cnn", 0).represent, model("small-mlp", 0).represent
    assert worth_stacking(plain, [1, 7], CUDA)
    assert not worth_stacking(network, [3], CUDA)
    assert worth_stacking(network, [2] * 6, CPU)
    assert not any(
        worth_stacking(*asked, CPU) for asked in ((network, [1] * 6), (network, [2, 3] * 3), (plain, [9] * 6))
    )
