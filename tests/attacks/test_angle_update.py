"""What the update of an angle matrix gives away, by how much of it is sent and how many images went into it."""

import pytest
import torch
from compare import expect_close
from torch.nn.functional import cross_entropy

from fedpriv.algebra.matrices import diagonal_blocks
from fedpriv.attacks.features.closed_form import AngleStep, fit_nonnegative, means_of_angle, recover_from_angle
from fedpriv.attacks.observation import BatchFacts, Knowledge, Observation, ThreatModel
from fedpriv.uploads.payloads import AngleMatrix
from fedpriv.util.errors import UserError

CLASSES, WIDTH, RATE = 10, 64, 0.1


class Client:
    """A head, an angle matrix and representations after a ReLU, drawn by seed."""

    def __init__(self, seed, labels):
        rng = torch.Generator().manual_seed(seed)
        self.weight = 0.1 * torch.randn(CLASSES, WIDTH, generator=rng, dtype=torch.float64)
        self.bias = 0.1 * torch.randn(CLASSES, generator=rng, dtype=torch.float64)
        self.angle = torch.randn(WIDTH, WIDTH, generator=rng, dtype=torch.float64) / WIDTH**0.5
        self.labels = torch.tensor(labels)
        self.features = torch.randn(len(labels), WIDTH, generator=rng, dtype=torch.float64).relu()

    def gradient(self):
        angle = self.angle.clone().requires_grad_()
        logits = (self.features + self.features @ angle) @ self.weight.T + self.bias
        return torch.autograd.grad(cross_entropy(logits, self.labels), angle)[0]

    def step(self, n_blocks):
        shares = torch.bincount(self.labels)[self.labels.unique()] / len(self.labels)
        return AngleStep(diagonal_blocks(self.gradient(), n_blocks), self.angle, (self.weight, self.bias), shares)

    def seen(self, n_blocks):
        after = diagonal_blocks(self.angle - RATE * self.gradient(), n_blocks).float()
        return Observation(1, 0, (AngleMatrix(after),), (AngleMatrix(self.angle[None].float()),))

    def knowledge(self):
        heads, facts = {0: (self.weight.float(), self.bias.float())}, BatchFacts(len(self.labels), RATE, 1)
        return Knowledge(ThreatModel(), (1, 8, 8), CLASSES, heads=heads, batch=facts, labels={(1, 0): self.labels})


def error(found, true):
    return float(((found.double() - true).norm(dim=1) / true.norm(dim=1)).max())


def test_one_image_by_hand():
    # W = 0 but for w_0 = (2, 0) and b = 0, A = 0, r = (0, 3): logits are zero, p = (1/2, 1/2), label 1,
    # q = (1/2) w_0 - (1/2) w_1 = (1, 0), so dA = r^T q = [[0, 0], [3, 0]].
    head = (torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.zeros(2))
    step = AngleStep(torch.tensor([[[0.0, 0.0], [3.0, 0.0]]]).double(), torch.zeros(2, 2), head, torch.ones(1))
    expect_close(means_of_angle(step, torch.tensor([1])).means, torch.tensor([[0.0, 3.0]]))


@pytest.mark.parametrize("n_blocks", [1, 4, 16])
@pytest.mark.parametrize("seed", range(4))
def test_one_image_is_exact_from_dense_and_from_blocks(n_blocks, seed):
    client = Client(seed, [seed])
    found = means_of_angle(client.step(n_blocks), client.labels)
    assert found.settled
    assert error(found.means, client.features) < 1e-4


def test_fewer_equations_than_classes_leave_means_open_and_the_condition_says_so():
    client = Client(1, [0, 3, 7, 8])
    found = means_of_angle(client.step(32), client.labels)
    assert found.condition == float("inf")
    assert error(found.means, client.features) > 0.3


@pytest.mark.parametrize("seed", range(3))
def test_the_diagonal_alone_gives_one_image_where_entries_are_not_negative(seed):
    client = Client(seed, [seed])
    found = fit_nonnegative(client.step(WIDTH), client.labels, torch.Generator().manual_seed(0))
    assert found.settled
    assert error(found.means, client.features) < 0.3
    auxiliary = Client(seed + 10, [seed])
    assert error(found.means, auxiliary.features) > 0.7


def test_the_diagonal_does_not_give_many_classes():
    client = Client(0, list(range(8)))
    found = fit_nonnegative(client.step(WIDTH), client.labels, torch.Generator().manual_seed(0))
    assert error(found.means, client.features) > 0.5


def test_exact_means_say_how_many_images_they_are_of_and_others_do_not():
    client = Client(5, [2, 6])
    for n_blocks in (1, 4, 16):
        assert recover_from_angle(client.seen(n_blocks), client.knowledge()).counts.tolist() == [1, 1]
    differing = Client(5, [2, 2, 2, 6])
    assert recover_from_angle(differing.seen(1), differing.knowledge()).counts is None
    # As many equations as unknowns: one image of a diagonal is explained by a wrong vector too, without a rest.
    single = Client(5, [1])
    wrong = recover_from_angle(single.seen(WIDTH), single.knowledge())
    assert wrong.residual < 1e-6
    assert error(wrong.means, single.features) > 0.3
    assert wrong.counts is None


def test_what_is_missing_is_named():
    client = Client(0, [1])
    with pytest.raises(UserError, match="broadcast of client 0"):
        recover_from_angle(Observation(1, 0, client.seen(1).upload, ()), client.knowledge())
