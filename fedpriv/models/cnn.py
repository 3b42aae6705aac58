"""Two convolutions, two poolings and fully connected layers: the 4-layer CNN, and CNN-1 to CNN-5.

Here and in other networks of ours ReLU comes after max pooling: to the last bit, forward and backward, the papers' ReLU
before it, on a quarter of the numbers.
"""

from __future__ import annotations

from functools import partial

from torch import nn

from fedpriv.models.shapes import ImageShape, require_sides

LEAST_SIDE = 16  # two unpadded 5x5 convolutions, each followed by a halving, leave one pixel of 16


def _convolutions(image_shape: ImageShape, first: int, second: int) -> tuple[list[nn.Module], int]:
    """Return the layers up to the flattened maps, and the flattened width."""
    require_sides(image_shape, LEAST_SIDE)
    channels, height, width = image_shape
    for _ in range(2):
        height, width = (height - 4) // 2, (width - 4) // 2
    layers: list[nn.Module] = [
        nn.Conv2d(channels, first, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(first, second, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
    ]
    return layers, second * height * width


def cnn4(image_shape: ImageShape, last_hidden: int = 512) -> tuple[nn.Module, int]:
    """The 4-layer CNN of FedAvg, PFLlib and FedRE without its head; L = 512, or ``last_hidden``.

    Convolutions 32 and 64 (5x5, no padding), each with ReLU and 2x2 max pooling, then a linear layer to 512 with ReLU.
    873,408 parameters at 3x32x32; sides of 16 or more.
    """
    layers, flat = _convolutions(image_shape, 32, 64)
    return nn.Sequential(*layers, nn.Linear(flat, last_hidden), nn.ReLU()), last_hidden


def _cnn(
    image_shape: ImageShape, last_hidden: int | None = None, *, second: int, hidden: int, gray_hidden: int
) -> tuple[nn.Module, int]:
    """One of CNN-1..5 (FedMRL and FedRAL) without its last layer; L = 500, or 50 for one channel; sides of 16 or more.

    The papers give two layouts, one for CIFAR (FedMRL's table 2, which is FedRAL's) and one for Fashion-MNIST (FedRAL's
    table 1); single-channel images take the second. FedMRL's small model is CNN-5 (CNN-1 where all clients have that)
    with d1 units in its penultimate linear layer: ``last_hidden``.
    """
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
