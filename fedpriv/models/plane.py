"""A small network for points of the plane."""

from __future__ import annotations

import math

from torch import Tensor, nn

from fedpriv.models import PLANE_WIDTH
from fedpriv.models.shapes import ImageShape, UnfitShape
from fedpriv.models.small import start_for_relu


class Centre(nn.Module):
    """``8 (x - 1/2)``: brings numbers in [0, 1] to a mean near 0 and a standard deviation near 1."""

    def forward(self, images: Tensor) -> Tensor:
        """Return numbers of the same shape in [-4, 4]."""
        return 8 * (images - 0.5)


def plane_mlp(image_shape: ImageShape) -> tuple[nn.Module, int]:
    """Two linear layers (32, 16) with ReLU on the two centred numbers of a point; L = 16."""
    if math.prod(image_shape) != 2:
        raise UnfitShape("it needs points of two numbers")
    layers = [nn.Flatten(), Centre(), nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, PLANE_WIDTH), nn.ReLU()]
    return start_for_relu(nn.Sequential(*layers)), PLANE_WIDTH
