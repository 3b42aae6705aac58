"""Max pooling beside torch's own: the same numbers, forth and back, twice, and of several networks at once."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

from fedpriv.models import pooling
from fedpriv.models.pooling import MaxPool, max_pooled, window_of

WINDOWS = [{}, {"ceil_mode": True}, {"stride": 1}, {"padding": 1}, {"dilation": 2}, {"stride": (1, 2)}]


@pytest.fixture(autouse=True)
def _any_size(monkeypatch):
    monkeypatch.setattr(pooling, "_LEAST", 1)


def maps(seed, *shape):
    """Few values, so that many are equal."""
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)).float()


def both(**window):
    return MaxPool(2, **window), nn.MaxPool2d(2, **window)


@pytest.mark.parametrize("window", WINDOWS)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), sides=st.tuples(st.integers(3, 9), st.integers(3, 9)))
def test_values_and_gradients_are_those_of_torch_to_the_last_bit(window, seed, sides):
    ours, theirs = both(**window)
    images = maps(seed, 3, 5, *sides)
    with torch.no_grad():
        blind = ours(images)
    found, gradients = [], []
    for layer in (ours, theirs):
        leaf = images.clone().requires_grad_()
        pooled = layer(leaf)
        weights = torch.randn(pooled.shape, generator=torch.Generator().manual_seed(seed))
        (back,) = torch.autograd.grad(pooled, leaf, weights)
        found.append(pooled.detach())
        gradients.append(back)
    assert torch.equal(*found)
    assert torch.equal(*gradients)
    assert torch.equal(blind, found[1])
    assert blind.is_contiguous()
    assert found[0].is_contiguous()


def test_largest_without_gradients_is_nan_where_torch_has_it():
    images = maps(0, 2, 3, 4, 4)
    images[0, 0, 1, 1] = float("nan")
    with torch.no_grad():
        ours, theirs = (layer(images) for layer in both())
    assert torch.equal(ours.isnan(), theirs.isnan())
    assert torch.equal(ours.nan_to_num(), theirs.nan_to_num())


def test_gradients_can_be_differentiated_again():
    images = maps(1, 2, 3, 6, 6)

    def twice(layer):
        leaf = images.double().requires_grad_()
        (once,) = torch.autograd.grad((layer(leaf) ** 3).sum(), leaf, create_graph=True)
        (again,) = torch.autograd.grad((once**2).sum(), leaf)
        return again

    ours, theirs = both()
    assert torch.equal(twice(ours), twice(theirs))
    assert bool(twice(ours).any())


def test_functional_gradients_and_several_networks_at_once():
    def networks(pool):
        torch.manual_seed(0)
        return [nn.Sequential(nn.Conv2d(1, 4, 3), pool(2), nn.Flatten(), nn.Linear(36, 2)) for _ in range(3)]

    images = maps(2, 3, 5, 1, 8, 8)

    def several(pool):
        made = networks(pool)
        state = stack_module_state(made)

        def one(parameters, buffers, own):
            return functional_call(made[0], (parameters, buffers), (own,)).square().sum()

        called = vmap(one)(*state, images)
        gradients = vmap(grad(one))(*state, images)
        return [called, *gradients.values()]

    for ours, theirs in zip(several(MaxPool), several(nn.MaxPool2d), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)
    alone = torch.stack([net(own).square().sum() for net, own in zip(networks(MaxPool), images, strict=True)])
    assert torch.allclose(several(MaxPool)[0], alone, rtol=1e-5)


def test_maps_with_channels_together_and_in_double_stay_so():
    layer, _ = both()
    together = maps(3, 2, 4, 6, 6).contiguous(memory_format=torch.channels_last)
    assert layer(together).is_contiguous(memory_format=torch.channels_last)
    assert layer(maps(3, 2, 4, 6, 6).double()).dtype == torch.float64


def test_places_are_those_of_torch():
    images = maps(4, 2, 3, 7, 7)
    for window in WINDOWS:
        layer = nn.MaxPool2d(2, **window, return_indices=True)
        for ours, theirs in zip(max_pooled(images, window_of(layer)), layer(images), strict=True):
            assert torch.equal(ours, theirs)
    indices = MaxPool(2, return_indices=True)(images)[1]
    assert torch.equal(indices, nn.MaxPool2d(2, return_indices=True)(images)[1])
