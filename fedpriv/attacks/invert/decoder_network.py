"""A learned inverse: a network from representations to images, trained on images that the attacker owns."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.util.seeds import derive_seed, generator, global_seed

_START = 4
"""Largest side of the map that the linear layer gives."""

_CHECK_EVERY = 25
"""Steps between two looks at the held-out pairs."""


@dataclass(frozen=True)
class DecoderTraining:
    """How a decoder is trained: Adam on the mean squared error of pixels.

    Attributes:
        iterations: most steps.
        learning_rate: Adam's step size.
        batch_size: pairs a step.
        channels: channels of the first map; each doubling of the side halves them, down to 16.
        held_out: every so manieth pair is held out; the weights that do best on those are kept.
        patience: steps without a better held-out error after which training ends.
    """

    iterations: int
    learning_rate: float
    batch_size: int
    channels: int
    held_out: int = 10
    patience: int = 200


def build_decoder(width: int, image_shape: tuple[int, int, int], channels: int) -> nn.Sequential:
    """Return a linear layer, then blocks that double the side, then a sigmoid.

    Args:
        width: d of the representations.
        image_shape: (c, h, w) of the images; the last doubling is cropped where sides are no multiple of it.
        channels: channels of the first map.
    """
    image_channels, height, width_ = image_shape
    doublings = 0
    while max(height, width_) > _START * 2**doublings:
        doublings += 1
    sides = (-(-height // 2**doublings), -(-width_ // 2**doublings))
    layers: list[nn.Module] = [
        nn.Linear(width, channels * sides[0] * sides[1]),
        nn.Unflatten(1, (channels, *sides)),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
    ]
    before = channels
    for _ in range(doublings):
        after = max(16, before // 2)
        layers += [
            nn.Upsample(scale_factor=2, mode="nearest"),
            nn.Conv2d(before, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
        ]
        before = after
    layers += [nn.Conv2d(before, image_channels, 3, padding=1), _Crop(height, width_), nn.Sigmoid()]
    return nn.Sequential(*layers)


class _Crop(nn.Module):
    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self._size = (height, width)

    def forward(self, maps: Tensor) -> Tensor:
        return maps[:, :, : self._size[0], : self._size[1]]


@dataclass(frozen=True)
class Decoder:
    """A trained decoder.

    Attributes:
        network: takes standardised representations.
        mean: ``(d,)`` of the training representations.
        spread: ``(d,)`` their standard deviation.
        held_out_error: mean squared error on the held-out pairs, on [0, 1].
        settled: whether training ended by its own rule before the steps were used up.
        steps: steps taken.
    """

    network: nn.Module
    mean: Tensor
    spread: Tensor
    held_out_error: float
    settled: bool
    steps: int

    def __call__(self, features: Tensor) -> Tensor:
        """Return the images ``(n, c, h, w)`` in [0, 1] of representations ``(n, d)``."""
        with torch.no_grad():
            images: Tensor = self.network((features - self.mean) / self.spread)
        return images


def train_decoder(
    features: Tensor,
    images: Tensor,
    training: DecoderTraining,
    seed: int,
    tick: Callable[[int], None] | None = None,
) -> Decoder:
    """Train a decoder on pairs.

    Args:
        features: ``(n, d)`` representations, n >= 4.
        images: ``(n, c, h, w)`` in [0, 1].
        training: how.
        seed: of initial weights, of which pairs are held out, and of their order.
        tick: called with the steps done.
    """
    rng = generator(seed, "pairs")
    order = torch.randperm(len(features), generator=rng).to(features.device)
    held = max(1, len(features) // training.held_out)
    outside, inside = order[:held], order[held:]
    mean, spread = features[inside].mean(0), features[inside].std(0)
    # A representation may be dead in some coordinates on all of the attacker's images, but alive on the target.
    spread = spread.clamp_min(0.1 * spread.mean().clamp_min(1e-6))
    scaled = (features - mean) / spread
    with global_seed(derive_seed(seed, "decoder weights")):
        shape = (int(images.shape[1]), int(images.shape[2]), int(images.shape[3]))
        network = build_decoder(features.shape[1], shape, training.channels).to(features.device)
    optimiser = torch.optim.Adam(network.parameters(), lr=training.learning_rate)
    best, lowest, best_at, step = copy.deepcopy(network.state_dict()), float("inf"), 0, 0
    while step < training.iterations and step - best_at < training.patience:
        shuffled = inside[torch.randperm(len(inside), generator=rng).to(inside.device)]
        for batch in shuffled.split(training.batch_size):
            if len(batch) < 2 or step == training.iterations:  # batch norm needs two
                continue
            network.train()
            loss = functional.mse_loss(network(scaled[batch]), images[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            step += 1
            if step % _CHECK_EVERY == 0 or step == training.iterations:
                network.eval()
                with torch.no_grad():
                    error = float(functional.mse_loss(network(scaled[outside]), images[outside]))
                if error < lowest:
                    best, lowest, best_at = copy.deepcopy(network.state_dict()), error, step
                if tick is not None:
                    tick(step)
    network.load_state_dict(best)
    return Decoder(network.eval().requires_grad_(False), mean, spread, lowest, step < training.iterations, step)
