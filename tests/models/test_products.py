"""Fully connected layers by oneDNN: what torch's own call gives, and only where it is asked for."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from fedpriv.models import products
from fedpriv.models.products import linear, quick_products, quicker_here

BATCH, INPUTS, OUTPUTS = 16, 512, 256
THERE = torch.backends.mkldnn.is_available() and products._as_expected()


@pytest.fixture
def called(monkeypatch):
    """Take oneDNN for the quicker, and count its calls; where torch lacks it, torch's own stands in."""
    calls = []
    genuine = products._by_onednn if THERE else functional.linear
    monkeypatch.setattr(products, "quicker_here", lambda: True)
    monkeypatch.setattr(products, "_by_onednn", lambda *given: calls.append(given[0].shape) or genuine(*given))
    return calls


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("bias", [True, False])
def test_values_and_derivatives_are_those_of_torch(bias, called):
    found = []
    for compute in (linear, functional.linear):
        values, weight = drawn(BATCH, INPUTS).requires_grad_(), drawn(OUTPUTS, INPUTS).requires_grad_()
        summand = drawn(OUTPUTS).requires_grad_() if bias else None
        output = compute(values, weight, summand)
        given = [values, weight, *([summand] if bias else [])]
        found.append([output.detach(), *torch.autograd.grad(output, given, drawn(BATCH, OUTPUTS))])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)
    assert len(called) == 3


def test_only_derivatives_that_are_needed_are_computed(called):
    weight = drawn(OUTPUTS, INPUTS).requires_grad_()
    linear(drawn(BATCH, INPUTS), weight).sum().backward()
    assert len(called) == 2
    with torch.no_grad():
        linear(drawn(BATCH, INPUTS), weight)
    assert len(called) == 3


def test_small_and_exact_products_are_left_to_torch(called):
    linear(drawn(2, 8), drawn(4, 8))
    linear(drawn(BATCH, INPUTS).double(), drawn(OUTPUTS, INPUTS).double())
    linear(drawn(2, BATCH, INPUTS), drawn(OUTPUTS, INPUTS))
    assert not called


def test_operations_that_are_counted_or_transformed_are_torchs(called):
    values, weight = drawn(BATCH, INPUTS), drawn(OUTPUTS, INPUTS)
    with FlopCounterMode(display=False) as counter:
        linear(values, weight)
    assert counter.get_total_flops() == 2 * BATCH * INPUTS * OUTPUTS
    torch.func.vmap(lambda one: linear(one, weight))(values.expand(2, -1, -1))
    assert not called


def test_networks_compute_so_for_a_while(called):
    network = nn.Sequential(nn.Linear(INPUTS, OUTPUTS), nn.ReLU(), nn.Linear(OUTPUTS, 10))
    values = drawn(BATCH, INPUTS)
    expected = network(values)
    with quick_products(network):
        found = network(values)
        with pytest.raises(RuntimeError), quick_products(network):
            network(values[:, 1:])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert called
    assert all("forward" not in vars(layer) for layer in network)
    torch.testing.assert_close(network(values), expected, rtol=0, atol=0)


def test_a_second_derivative_is_refused(called):
    values = drawn(BATCH, INPUTS).requires_grad_()
    output = linear(values, drawn(OUTPUTS, INPUTS)).square().sum()
    (slope,) = torch.autograd.grad(output, values, create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(slope.sum(), values)


def test_it_is_asked_for_on_processors_of_the_other_maker_alone(tmp_path):
    told = tmp_path / "cpuinfo"
    told.write_text("processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel\t\t: 2\n")
    assert products._made_by(told) == products._OTHER_MAKER
    told.write_text("processor\t: 0\nvendor_id\t: GenuineIntel\n")
    assert products._made_by(told) != products._OTHER_MAKER
    assert products._made_by(tmp_path / "none") == ""
    assert quicker_here() in (True, False)
