"""Operations are those that torch's own counter counts, without the compiler that it imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from fedpriv.federation.cost import OperationCounter
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint


def test_a_matrix_product_counts_two_operations_a_term() -> None:
    with OperationCounter() as counter:
        torch.rand(3, 5) @ torch.rand(5, 7)
    assert counter.total == 2 * 3 * 5 * 7


@pytest.mark.parametrize("name", ["small-cnn", "lenet-sigmoid", "resnet4"])
def test_a_step_counts_as_by_torchs_counter(name: str) -> None:
    shape = (3, 32, 32)
    model = build_model(Blueprint(name, shape, 4, width=16), seed=0).train()
    images, labels = torch.rand(2, *shape), torch.tensor([0, 1])

    def step() -> None:
        torch.autograd.grad(cross_entropy(model(images), labels), list(model.parameters()), allow_unused=True)

    with OperationCounter() as ours:
        step()
    with FlopCounterMode(display=False) as torchs:
        step()
    assert ours.total == torchs.get_total_flops() > 0


@pytest.mark.parametrize(
    "product",
    [
        lambda: torch.bmm(torch.rand(4, 3, 5), torch.rand(4, 5, 7)),
        lambda: torch.baddbmm(torch.rand(4, 3, 7), torch.rand(4, 3, 5), torch.rand(4, 5, 7)),
        lambda: torch.addmm(torch.rand(7), torch.rand(3, 5), torch.rand(5, 7)),
        lambda: torch.einsum("bij,bkj->bik", torch.rand(4, 3, 5), torch.rand(4, 7, 5)),
        lambda: torch.nn.functional.linear(torch.rand(4, 3, 5), torch.rand(7, 5)),
    ],
)
def test_products_count_as_by_torchs_counter(product) -> None:
    with OperationCounter() as ours:
        product()
    with FlopCounterMode(display=False) as torchs:
        product()
    assert ours.total == torchs.get_total_flops() > 0


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_grouped_convolution_counts_the_channels_that_its_groups_see(groups, transposed) -> None:
    kind = torch.nn.ConvTranspose2d if transposed else torch.nn.Conv2d
    layer = kind(8, 12, 3, stride=2, padding=1, groups=groups, bias=False)
    images = torch.rand(5, 8, 9, 7, requires_grad=True)
    with OperationCounter() as forth:
        found = layer(images)
    positions = (9 * 7) if transposed else found.shape[2] * found.shape[3]
    assert forth.total == 2 * 5 * positions * 8 * 12 * 9 // groups
    with OperationCounter() as back:
        found.sum().backward()
    assert back.total == 2 * forth.total


def test_attention_counts_its_two_products_and_five_on_the_way_back() -> None:
    batch, heads, length, width = 2, 4, 6, 8
    one = torch.rand(batch, heads, length, width, requires_grad=True)
    product = 2 * batch * heads * length * length * width
    with OperationCounter() as forth:
        found = scaled_dot_product_attention(one, one, one)
    assert forth.total == 2 * product
    with OperationCounter() as back:
        found.sum().backward()
    assert back.total == 5 * product  # the scores once more, and a derivative of each factor of the two products


def test_training_and_attacks_import_no_compiler(tmp_path: Path) -> None:
    code = (
        "import sys, fedpriv\n"
        "settings = dict(dataset='digits', per_class=10, clients=2, rounds=1, partition='iid')\n"
        "fedpriv.train(method='fedproto', out=sys.argv[1] + '/run', **settings)\n"
        "few = dict(iterations=2, targets=2, control=False)\n"
        "fedpriv.attack(sys.argv[1] + '/run', target='prototype', attacks=['pixels'], **few)\n"
        "from fedpriv.attacks import ATTACKS\n"
        "from fedpriv.defenses import DEFENSES\n"
        "ATTACKS.load_all(), DEFENSES.load_all()\n"
        "slow = {'torch._dynamo', 'torch.utils.flop_counter', 'sklearn.datasets'}\n"
        "assert not slow & set(sys.modules), slow & set(sys.modules)  # seconds of every process"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
