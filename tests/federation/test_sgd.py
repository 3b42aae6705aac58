"""Our gradient descent is torch's, bit for bit."""

import pytest
import torch
from torch import nn

from fedpriv.federation import local_training
from fedpriv.federation.local_training import Sgd
from fedpriv.federation.method import LocalTraining


def network(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(108, 7), nn.ReLU(), nn.Linear(7, 4))


def batches(count=6):
    made = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.rand(5, 1, 8, 8, generator=made), torch.randint(4, (5,), generator=made)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_every_step_is_that_of_torch_to_the_last_bit(momentum, weight_decay):
    ours, theirs = network(), network()
    optimiser = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=momentum, weight_decay=weight_decay)
    training = LocalTraining(learning_rate=0.1, momentum=momentum, weight_decay=weight_decay)
    mine = Sgd(tuple(ours.parameters()), training)
    for images, labels in batches():
        for module, step in ((ours, mine.step), (theirs, optimiser.step)):
            for parameter in module.parameters():
                parameter.grad = None
            nn.functional.cross_entropy(module(images), labels).backward()
            step()
        assert all(torch.equal(one, other) for one, other in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_what_has_no_gradient_stays():
    module = network()
    before = [parameter.clone() for parameter in module.parameters()]
    optimiser = Sgd(tuple(module.parameters()), LocalTraining(learning_rate=0.1, momentum=0.9, weight_decay=0.1))
    optimiser.step()
    next(module.parameters()).sum().backward()
    optimiser.step()
    same = [torch.equal(one, other) for one, other in zip(module.parameters(), before, strict=True)]
    assert same == [False, *[True] * (len(same) - 1)]


def test_batches_move_to_another_device_at_once_and_stay_what_they_were(monkeypatch):
    batches, moves = [torch.tensor([4, 1, 3]), torch.tensor([0]), torch.tensor([2, 5])], []
    to = torch.Tensor.to

    def moved(self, device):
        moves.append(device)
        return to(self, "cpu")

    monkeypatch.setattr(torch.Tensor, "to", moved)
    found = local_training._moved(batches, torch.device("cuda"))
    assert moves == [torch.device("cuda")]
    assert [one.tolist() for one in found] == [one.tolist() for one in batches]
    assert local_training._moved(batches, torch.device("cpu")) is batches
