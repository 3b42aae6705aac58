"""Networks without their last layer: published CNNs, DLG's LeNet, small ones that train in seconds, one for points.

ReLU comes after max pooling: to the last bit, forward and backward, the papers' ReLU before it, on a quarter of the
numbers. The small networks have no batch normalisation, so they train on batches of one image and uploads hold no
hidden statistics.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from fedpriv.models import LENET_CHANNELS, PLANE_WIDTH, ImageShape, UnfitShape, lenet_width, require_sides
from fedpriv.models.split import AveragePool

LEAST_SIDE = 16  # two unpadded 5x5 convolutions, each followed by a halving, leave one pixel of 16


class Halving(nn.MaxPool2d):
    """Max pooling of maps ``(n, c, h, w)`` by two; without derivatives on a CPU as the largest of quarters.

    That is equal to the bit and takes a fifth of the time of torch's pooling of maps that lie channel by channel.
    """

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, maps: Tensor) -> Tensor:
        """Return the pooled maps ``(n, c, h // 2, w // 2)``."""
        if torch.is_grad_enabled() or maps.device.type != "cpu":
            pooled: Tensor = super().forward(maps)
            return pooled
        height, width = maps.shape[-2] // 2 * 2, maps.shape[-1] // 2 * 2
        above, below = maps[..., :height:2, :width], maps[..., 1:height:2, :width]
        of_two = (torch.maximum(rows[..., ::2], rows[..., 1::2]) for rows in (above, below))
        return torch.maximum(*of_two)


def _convolutions(
    image_shape: ImageShape, *widths: int, kernel: int = 5, padding: int = 0
) -> tuple[list[nn.Module], int]:
    """Return convolutions with 2x2 max pooling and ReLU, the flattening layer, and the flattened width."""
    _, height, width = image_shape
    layers: list[nn.Module] = []
    less = kernel - 1 - 2 * padding
    for before, after in pairwise((image_shape[0], *widths)):
        layers += [nn.Conv2d(before, after, kernel, padding=padding), Halving(), nn.ReLU()]
        height, width = (height - less) // 2, (width - less) // 2
    return [*layers, nn.Flatten()], widths[-1] * height * width


def cnn4(image_shape: ImageShape, last_hidden: int = 512) -> tuple[nn.Module, int]:
    """The 4-layer CNN of FedAvg, PFLlib and FedRE without its head; L = 512, or ``last_hidden``.

    Convolutions 32 and 64 (5x5, no padding), each with ReLU and 2x2 max pooling, then a linear layer to 512 with ReLU.
    873,408 parameters at 3x32x32; sides of 16 or more.
    """
    require_sides(image_shape, LEAST_SIDE)
    layers, flat = _convolutions(image_shape, 32, 64)
    return nn.Sequential(*layers, nn.Linear(flat, last_hidden), nn.ReLU()), last_hidden


def _cnn(
    image_shape: ImageShape, last_hidden: int | None = None, *, second: int, hidden: int, gray_hidden: int
) -> tuple[nn.Module, int]:
    """One of CNN-1..5 without its last layer; L = 500, or 50 for one channel, or ``last_hidden``; sides of 16 or more.

    Source: FedMRL's table 2 for CIFAR (also FedRAL's); FedRAL's table 1, for Fashion-MNIST, is the layout for one channel.
    """
    require_sides(image_shape, LEAST_SIDE)
    gray = image_shape[0] == 1
    layers, flat = _convolutions(image_shape, 20, 20) if gray else _convolutions(image_shape, 16, second)
    first_linear, out = (gray_hidden, last_hidden or 50) if gray else (hidden, last_hidden or 500)
    linear = [nn.Linear(flat, first_linear), nn.ReLU(), nn.Linear(first_linear, out), nn.ReLU()]
    return nn.Sequential(*layers, *linear), out


cnn_1 = partial(_cnn, second=32, hidden=2000, gray_hidden=300)
cnn_2 = partial(_cnn, second=16, hidden=2000, gray_hidden=200)
cnn_3 = partial(_cnn, second=32, hidden=1000, gray_hidden=150)
cnn_4 = partial(_cnn, second=32, hidden=800, gray_hidden=100)
cnn_5 = partial(_cnn, second=32, hidden=500, gray_hidden=50)


def _fedhenn_cnn(image_shape: ImageShape, convolutions: int, linear: int) -> tuple[nn.Module, int]:
    """One of FedHeNN's five CNNs without its last layer, which is the head; sides of 2^convolutions or more.

    Source: Makhija et al., ICML 2022, section 4.1: from one convolution and one linear layer to three of each, the fourth
    (two and three) where all clients have one. The paper leaves the other numbers open; here 5x5 convolutions of 16, 32 and
    64 channels that keep the sides, and 256 and 128 units before the last layer. L = 128, of the first all its maps.
    """
    require_sides(image_shape, 2**convolutions)
    layers, vector = _convolutions(image_shape, *(16, 32, 64)[:convolutions], padding=2)
    for units in {1: (), 2: (128,), 3: (256, 128)}[linear]:
        layers += [nn.Linear(vector, units), nn.ReLU()]
        vector = units
    return nn.Sequential(*layers), vector


fedhenn_cnn_1 = partial(_fedhenn_cnn, convolutions=1, linear=1)
fedhenn_cnn_2 = partial(_fedhenn_cnn, convolutions=1, linear=2)
fedhenn_cnn_3 = partial(_fedhenn_cnn, convolutions=2, linear=2)
fedhenn_cnn_4 = partial(_fedhenn_cnn, convolutions=2, linear=3)
fedhenn_cnn_5 = partial(_fedhenn_cnn, convolutions=3, linear=3)


def start_uniform(module: nn.Module) -> None:
    """Redraw every parameter of ``module`` from U(-0.5, 0.5), in place: wide enough that sigmoids pass gradients on."""
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)


def lenet_sigmoid(image_shape: ImageShape) -> tuple[nn.Module, int]:
    """DLG's LeNet: three 5x5 convolutions of 12 channels (padding 2; strides 2, 2, 1) with sigmoids, flattened.

    Source: Zhu, Liu, Han: Deep Leakage from Gradients, NeurIPS 2019. L = 12 ceil(h/4) ceil(w/4), 768 at 32x32. Second
    derivatives of a ReLU network are zero almost everywhere, and L-BFGS on matched gradients then stalls.
    """
    layers: list[nn.Module] = []
    channels = image_shape[0]
    for stride in (2, 2, 1):
        layers += [nn.Conv2d(channels, LENET_CHANNELS, 5, stride=stride, padding=2), nn.Sigmoid()]
        channels = LENET_CHANNELS
    extractor = nn.Sequential(*layers, nn.Flatten())
    start_uniform(extractor)
    return extractor, lenet_width(image_shape)


def small_cnn(image_shape: ImageShape, last_hidden: int = 128) -> tuple[nn.Module, int]:
    """Two 3x3 convolutions (16, 32) with ReLU and 2x2 max pooling, a linear layer with ReLU; L = 128; sides of 4 or more."""
    return _two_convolutions(image_shape, 16, 32, 3, last_hidden)


def small_cnn_wide(image_shape: ImageShape, last_hidden: int = 256) -> tuple[nn.Module, int]:
    """As :func:`small_cnn` with 5x5 convolutions of 32 and 64 channels; L = 256; sides of 4 or more."""
    return _two_convolutions(image_shape, 32, 64, 5, last_hidden)


def _two_convolutions(image_shape: ImageShape, first: int, second: int, kernel: int, out: int) -> tuple[nn.Module, int]:
    require_sides(image_shape, 4)
    layers, flat = _convolutions(image_shape, first, second, kernel=kernel, padding=kernel // 2)
    return _start_for_relu(nn.Sequential(*layers, nn.Linear(flat, out), nn.ReLU())), out


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
