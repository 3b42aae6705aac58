"""Our gradient descent is torch's, bit for bit."""

import pytest
import torch
from torch import nn

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
