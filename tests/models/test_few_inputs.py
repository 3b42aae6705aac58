"""Derivatives by what a network is shown, computed otherwise than torch does."""

import pytest
import torch
from torch import nn

from fedpriv.models import few_inputs
from fedpriv.models.build import build_model
from fedpriv.models.few_inputs import _Convolution, quick_derivatives, quickened
from fedpriv.models.split import Blueprint


@pytest.mark.parametrize(
    ("channels", "kernel", "padding"), [(3, 5, 0), (3, 3, 1), (1, 5, 2), (4, (3, 4), (1, 2)), (3, (1, 5), (0, 4))]
)
def test_derivatives_by_images_are_those_of_torch(channels, kernel, padding):
    layer = nn.Conv2d(channels, 12, kernel, padding=padding).requires_grad_(False)
    images = torch.randn(8, channels, 30, 26, generator=torch.Generator().manual_seed(0)).requires_grad_()
    expected = layer(images)
    slope = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    with quick_derivatives(layer):
        found = layer(images)
    assert "forward" not in vars(layer)
    assert torch.equal(found, expected)
    assert type(found.grad_fn) is not type(expected.grad_fn)
    own, other = (torch.autograd.grad(one, images, slope)[0] for one in (found, expected))
    assert own.is_contiguous()
    torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-4)


def test_they_can_be_differentiated_again():
    images = torch.randn(2, 2, 5, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 2, 3, 3, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: _Convolution.apply(x, weight, None, (1, 0)), images)
    assert torch.autograd.gradgradcheck(lambda x: _Convolution.apply(x, weight, None, (1, 0)), images)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(3, 8, 3, stride=2),
        nn.Conv2d(3, 8, 3, dilation=2),
        nn.Conv2d(4, 8, 3, groups=2),
        nn.Conv2d(32, 64, 3),
        nn.Conv2d(3, 2, 3),
        nn.Conv2d(3, 8, 3, padding=3),
        nn.Conv2d(3, 8, 3, padding="same"),
        nn.Conv2d(3, 8, 3, padding=1, padding_mode="circular"),
    ],
)
def test_other_layers_are_left_alone(layer):
    assert not few_inputs._narrow(layer)


def test_weights_that_ask_for_derivatives_get_them():
    layer, images = nn.Conv2d(3, 12, 3), torch.randn(8, 3, 32, 32, requires_grad=True)
    with quick_derivatives(layer):
        found = layer(images)
    assert all(one is not None for one in torch.autograd.grad(found.sum(), (images, layer.weight, layer.bias)))


def test_an_extractor_gives_what_it_gave():
    model = build_model(Blueprint("cnn4", (3, 32, 32), 10, 512), 0).eval().requires_grad_(False)
    images = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()
    expected, found = model.represent(images), quickened(model.represent, model)(images)
    torch.testing.assert_close(found, expected)
    own, other = (torch.autograd.grad(one.square().sum(), images)[0] for one in (found, expected))
    torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-4 * float(other.abs().max()))
