"""The LeNet with sigmoids on which Deep Leakage from Gradients (Zhu et al., NeurIPS 2019) was shown."""

from __future__ import annotations

from torch import nn

from fedpriv.models import LENET_CHANNELS, lenet_width
from fedpriv.models.shapes import ImageShape

WEIGHT_BOUND = 0.5
"""Every weight and bias starts uniform in [-0.5, 0.5], the head's too: wide enough that sigmoids pass gradients on."""


def start_uniform(module: nn.Module) -> None:
    """Redraw every parameter of ``module`` from U(-0.5, 0.5), in place, from torch's global generator."""
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -WEIGHT_BOUND, WEIGHT_BOUND)


def lenet_sigmoid(image_shape: ImageShape) -> tuple[nn.Module, int]:
    """Three 5x5 convolutions of 12 channels (padding 2; strides 2, 2, 1), each with a sigmoid, flattened.

    L = 12 ceil(h/4) ceil(w/4): 768 at 32x32, 48 at 8x8. Smooth on purpose: second derivatives of a ReLU network are
    zero almost everywhere, and L-BFGS on matched gradients then stalls.
    """
    layers: list[nn.Module] = []
    channels = image_shape[0]
    for stride in (2, 2, 1):
        layers += [nn.Conv2d(channels, LENET_CHANNELS, 5, stride=stride, padding=2), nn.Sigmoid()]
        channels = LENET_CHANNELS
    extractor = nn.Sequential(*layers, nn.Flatten())
    start_uniform(extractor)
    return extractor, lenet_width(image_shape)
