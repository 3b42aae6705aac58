"""Four small, clearly different networks for images from 8x8 to 64x64 that train in seconds on one core.

None has batch normalisation, so they also train on batches of one image and their uploads hold no hidden statistics.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fedpriv.models.averaging import AveragePool
from fedpriv.models.shapes import ImageShape, require_sides


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
    return start_for_relu(extractor), out


def start_for_relu(extractor: nn.Module) -> nn.Module:
    """Draw weights from N(0, 2 / fan_in) and set biases to zero: without it few rounds of plain SGD learn nothing.

    Source: He, Zhang, Ren, Sun: Delving Deep into Rectifiers, ICCV 2015, equation 10.
    """
    for layer in extractor.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return extractor


class ResidualBlock(nn.Module):
    """``relu(shortcut(x) + conv(relu(conv(x))))`` with 3x3 convolutions; the first one halves the sides.

    Args:
        channels_in: channels of the input ``(n, channels_in, h, w)``.
        channels_out: channels of the output ``(n, channels_out, ceil(h/2), ceil(w/2))``.
    """

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels_in, channels_out, 3, stride=2, padding=1)
        self.second = nn.Conv2d(channels_out, channels_out, 3, padding=1)
        self.shortcut = nn.Conv2d(channels_in, channels_out, 1, stride=2)

    def forward(self, maps: Tensor) -> Tensor:
        """Return maps of half the sides."""
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
    return start_for_relu(extractor), 256


def small_mlp(image_shape: ImageShape, last_hidden: int = 128) -> tuple[nn.Module, int]:
    """Two linear layers (256, 128) with ReLU on the flattened image; L = 128."""
    layers = [nn.Flatten(), nn.Linear(math.prod(image_shape), 256), nn.ReLU(), nn.Linear(256, last_hidden), nn.ReLU()]
    return start_for_relu(nn.Sequential(*layers)), last_hidden
