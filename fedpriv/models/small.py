"""Four small, clearly different networks for images from 8x8 to 64x64 that train in seconds on one core, and one for points.

None has batch normalisation, so they also train on batches of one image and their uploads hold no hidden statistics.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fedpriv.models import PLANE_WIDTH, ImageShape, UnfitShape, require_sides
from fedpriv.models.mapping import AveragePool


def small_cnn(image_shape: ImageShape, last_hidden: int = 128) -> tuple[nn.Module, int]:
    """Two 3x3 convolutions (16, 32) with ReLU and 2x2 max pooling, a linear layer with ReLU; L = 128; sides of 4 or more."""
    return _two_convolutions(image_shape, 16, 32, 3, last_hidden)


def small_cnn_wide(image_shape: ImageShape, last_hidden: int = 256) -> tuple[nn.Module, int]:
    """As :func:`small_cnn` with 5x5 convolutions of 32 and 64 channels; L = 256; sides of 4 or more."""
    return _two_convolutions(image_shape, 32, 64, 5, last_hidden)


def _two_convolutions(image_shape: ImageShape, first: int, second: int, kernel: int, out: int) -> tuple[nn.Module, int]:
    require_sides(image_shape, 4)
    channels, height, width = image_shape
    extractor = nn.Sequential(
        nn.Conv2d(channels, first, kernel, padding="same"),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(first, second, kernel, padding="same"),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(second * (height // 2 // 2) * (width // 2 // 2), out),
        nn.ReLU(),
    )
    return _start_for_relu(extractor), out


def _start_for_relu(extractor: nn.Module) -> nn.Module:
    """Draw weights from N(0, 2 / fan_in), biases zero (He et al., ICCV 2015, equation 10): few rounds of SGD then learn."""
    for layer in extractor.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return extractor


class ResidualBlock(nn.Module):
    """``relu(shortcut(x) + conv(relu(conv(x))))`` with 3x3 convolutions; the first one halves the sides, rounded up."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels_in, channels_out, 3, stride=2, padding=1)
        self.second = nn.Conv2d(channels_out, channels_out, 3, padding=1)
        self.shortcut = nn.Conv2d(channels_in, channels_out, 1, stride=2)

    def forward(self, maps: Tensor) -> Tensor:
        """Return the new maps."""
        inner: Tensor = self.second(torch.relu(self.first(maps)))
        return torch.relu(self.shortcut(maps) + inner)


def small_cnn_deep(image_shape: ImageShape) -> tuple[nn.Module, int]:
    """A 3x3 convolution (24), residual blocks (32, 64), average pooling to 2x2; L = 256."""
    extractor = nn.Sequential(
        nn.Conv2d(image_shape[0], 24, 3, padding=1),
        nn.ReLU(),
        ResidualBlock(24, 32),
        ResidualBlock(32, 64),
        AveragePool(2),
        nn.Flatten(),
    )
    return _start_for_relu(extractor), 256


def small_mlp(image_shape: ImageShape, last_hidden: int = 128) -> tuple[nn.Module, int]:
    """Two linear layers (256, 128) with ReLU on the flattened image; L = 128."""
    layers = [nn.Flatten(), nn.Linear(math.prod(image_shape), 256), nn.ReLU(), nn.Linear(256, last_hidden), nn.ReLU()]
    return _start_for_relu(nn.Sequential(*layers)), last_hidden


class Centre(nn.Module):
    """``8 (x - 1/2)``: brings numbers in [0, 1] to a mean near 0 and a standard deviation near 1."""

    def forward(self, images: Tensor) -> Tensor:
        """Return numbers in [-4, 4]."""
        return 8 * (images - 0.5)


def plane_mlp(image_shape: ImageShape) -> tuple[nn.Module, int]:
    """Two linear layers (32, 16) with ReLU on the two centred numbers of a point; L = 16."""
    if math.prod(image_shape) != 2:
        raise UnfitShape("it needs points of two numbers")
    layers = [nn.Flatten(), Centre(), nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, PLANE_WIDTH), nn.ReLU()]
    return _start_for_relu(nn.Sequential(*layers)), PLANE_WIDTH
