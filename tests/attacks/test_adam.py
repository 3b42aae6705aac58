"""Adam of the attacks beside torch's own: the same to the last bit, without what torch's loads."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from fedpriv.attacks.search.fit import Adam


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3), nn.Linear(3, 2))


def trained(optimiser_of, steps=25, rate=None):
    model = network()
    model[3].weight.requires_grad_(False)  # and so without a gradient
    optimiser = optimiser_of(model)
    draws = torch.Generator().manual_seed(1)
    for step in range(steps):
        images = torch.randn(6, 7, generator=draws)
        forget = getattr(optimiser, "forget_gradients", None) or optimiser.zero_grad
        forget()
        model(images).square().mean().backward()
        if rate is None:
            optimiser.step()
        elif isinstance(optimiser, Adam):
            optimiser.pace(rate(step))
            optimiser.step()
        else:
            optimiser.param_groups[0]["lr"] = rate(step)
            optimiser.step()
    return model.state_dict()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize("rate", [None, lambda step: 0.1 / (step + 1)])
def test_steps_are_those_of_torch_to_the_last_bit(fused, decay, rate):
    ours = trained(
        lambda model: Adam(model.parameters(), 0.02, weight_decay=decay, betas=(0.8, 0.99), fused=fused), rate=rate
    )
    of_torch = torch.optim.AdamW if decay else torch.optim.Adam
    theirs = trained(
        lambda model: of_torch(model.parameters(), lr=0.02, weight_decay=decay, betas=(0.8, 0.99), fused=fused),
        rate=rate,
    )
    start = network().state_dict()
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), name
    assert not torch.equal(ours["0.weight"], start["0.weight"])
    assert torch.equal(ours["3.weight"], start["3.weight"])


def test_state_is_of_each_optimiser_alone():
    one = trained(lambda model: Adam(model.parameters(), 0.02))
    again = trained(lambda model: Adam(model.parameters(), 0.02))
    assert all(torch.equal(one[name], again[name]) for name in one)


def test_no_compiler_is_loaded():
    code = (
        "import sys, torch\n"
        "from fedpriv.attacks.search.fit import Adam\n"
        "value = torch.ones(3, requires_grad=True)\n"
        "value.sum().backward()\n"
        "Adam([value], 0.1, weight_decay=0.01).step()\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
