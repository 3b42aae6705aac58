"""Ordinary code as a peer: DIP by an hourglass of torch's modules, one target at a time."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.models.split import SplitModel


def block(inputs: int, outputs: int, kernel: int) -> nn.Sequential:
    """Return convolution, batch norm, LeakyReLU."""
    convolution = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2))


_HALVED = 16
"""Pixels of a side that the four levels make one of."""


class Level(nn.Module):
    """One level of the hourglass, with all below it."""

    def __init__(self, inputs: int, channels: tuple[int, ...]) -> None:
        super().__init__()
        here, deeper = channels[0], channels[min(1, len(channels) - 1)]
        self.skip = block(inputs, 4, 1)
        down = nn.Conv2d(inputs, here, 3, padding=1)
        self.down = nn.Sequential(down, nn.AvgPool2d(2), nn.BatchNorm2d(here), nn.LeakyReLU(0.2), block(here, here, 3))
        self.deeper = Level(here, channels[1:]) if len(channels) > 1 else nn.Identity()
        self.up = nn.Sequential(nn.BatchNorm2d(4 + deeper), block(4 + deeper, here, 3), block(here, here, 1))

    def forward(self, maps: Tensor) -> Tensor:
        """Return maps of the size that came in."""
        deep = functional.interpolate(self.deeper(self.down(maps)), scale_factor=2)
        result: Tensor = self.up(torch.cat([self.skip(maps), deep], 1))
        return result


def invert(model: SplitModel, wanted: Tensor, iterations: int, size: int = 32) -> Tensor:
    """Return an image ``(1, 3, size, size)`` whose representation comes near ``wanted`` ``(d,)``."""
    device = wanted.device
    network = nn.Sequential(Level(32, (16, 32, 64, 128)), nn.Conv2d(16, 3, 1), nn.Sigmoid()).to(device)
    optimiser = torch.optim.Adam(network.parameters(), lr=5e-3)
    side = -(-size // _HALVED) * _HALVED
    start = torch.rand(1, 32, side, side, device=device) * 0.1
    mean = torch.zeros(1, 3, size, size, device=device)
    for _ in range(iterations):
        image = network(start + 0.03 * torch.randn_like(start))[..., :size, :size]
        loss = (model.represent(image) - wanted).square().sum() / wanted.square().sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        mean.mul_(0.99).add_(image.detach(), alpha=0.01)
    return mean / (1 - 0.99**iterations)  # which began at zero
