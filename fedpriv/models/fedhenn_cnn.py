"""FedHeNN's CNNs, from one convolution and one linear layer to three of each.

Source: Makhija, Han, Ho, Ghosh: Architecture Agnostic Federated Learning for Neural Networks, ICML 2022, section 4.1. Of
CIFAR it says that clients of one architecture hold two convolutions, each with max pooling, and three linear layers;
and that others draw one of five CNNs between one of one convolution and one linear layer, and one of three of each. It
leaves unsaid which three lie between, and every number of channels, kernels and units. Here:

    fedhenn-cnn-1    1 convolution,  1 linear layer
    fedhenn-cnn-2    1 convolution,  2 linear layers
    fedhenn-cnn-3    2 convolutions, 2 linear layers
    fedhenn-cnn-4    2 convolutions, 3 linear layers: the homogeneous network
    fedhenn-cnn-5    3 convolutions, 3 linear layers

with 5x5 convolutions of 16, 32 and 64 channels that keep the sides, ReLU and 2x2 max pooling after each, and 256 and 128
units with ReLU before the last layer. That is the head; the one linear layer of the first network is nothing but it,
on the maps that the run's mapping brings to the shared width.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

from torch import nn

from fedpriv.models.shapes import ImageShape, require_sides

CHANNELS = (16, 32, 64)
HIDDEN: dict[int, tuple[int, ...]] = {1: (), 2: (128,), 3: (256, 128)}
"""Units before the last layer, by the number of linear layers."""


def _fedhenn_cnn(image_shape: ImageShape, convolutions: int, linear: int) -> tuple[nn.Module, int]:
    """One of the five without its last layer; L = 128, of the first all its maps; sides of 2^convolutions or more."""
    require_sides(image_shape, 2**convolutions)
    channels, height, width = image_shape
    layers: list[nn.Module] = []
    for before, after in pairwise((channels, *CHANNELS[:convolutions])):
        layers += [nn.Conv2d(before, after, 5, padding=2), nn.MaxPool2d(2), nn.ReLU()]
        height, width = height // 2, width // 2
    layers.append(nn.Flatten())
    vector = CHANNELS[convolutions - 1] * height * width
    for units in HIDDEN[linear]:
        layers += [nn.Linear(vector, units), nn.ReLU()]
        vector = units
    return nn.Sequential(*layers), vector


fedhenn_cnn_1 = partial(_fedhenn_cnn, convolutions=1, linear=1)
fedhenn_cnn_2 = partial(_fedhenn_cnn, convolutions=1, linear=2)
fedhenn_cnn_3 = partial(_fedhenn_cnn, convolutions=2, linear=2)
fedhenn_cnn_4 = partial(_fedhenn_cnn, convolutions=2, linear=3)
fedhenn_cnn_5 = partial(_fedhenn_cnn, convolutions=3, linear=3)
