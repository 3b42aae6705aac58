"""Split learning without the client's network: CIFAR-10 behind the first blocks of a ResNet-20 (Zhu et al. 2025, SDAR).

    python benchmarks/unknown_extractor.py --data DIR/cifar10-jpeg --blocks 7

A client trains the first so many of a ResNet-20's nine residual blocks on its images, a server the rest. The server keeps
what it was sent last, has its own part of the network and images of its own, and knows the client's architecture but not
its weights, as in the paper. Simulators are trained by :mod:`fedpriv.attacks.inversion.surrogate`; a decoder of convolutions
turns maps into images. Prints the mean squared error beside that of the mean image of each class, and of the decoder behind
the client's own network.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from cifar import Clock, load
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.attacks.inversion.surrogate import Answers, SimulatorTraining, class_means, train_simulator
from fedpriv.datasets.types import Samples
from fedpriv.util.seeds import derive_seed, generator, global_seed

CHANNELS = (16, 16, 16, 32, 32, 32, 64, 64, 64)


class Block(nn.Module):
    """A residual block with batch norm (He et al. 2016), with a 1 x 1 convolution where the shape changes."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        stride = 1 if before == after else 2
        self.inner = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.beside = (
            nn.Identity()
            if before == after
            else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        )

    def forward(self, maps: Tensor) -> Tensor:
        """Return maps ``(n, after, h', w')``."""
        return torch.relu(self.inner(maps) + self.beside(maps))


def network(blocks: int, seed: int) -> tuple[nn.Module, nn.Module]:
    """Return the client's part of a ResNet-20, with so many blocks, and the server's."""
    with global_seed(seed):
        every = [Block(before, after) for before, after in zip((16, *CHANNELS), CHANNELS, strict=False)]
        first = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
        last = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
        return nn.Sequential(*first, *every[:blocks]), nn.Sequential(*every[blocks:], *last)


def decoder(maps: Tensor, seed: int) -> nn.Module:
    """Return a network from maps ``(n, c, h, w)`` to images of 32 x 32 in [0, 1]."""

    def layer(before: int, after: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, 1, 1), nn.BatchNorm2d(after), nn.ReLU()]

    width, side = 64, maps.shape[2]
    with global_seed(seed):
        layers = layer(maps.shape[1], width)
        while side < 32:
            layers += [*layer(width, 2 * width), nn.PixelShuffle(2)]
            width, side = width // 2, 2 * side
        return nn.Sequential(*layers, *layer(width, width), nn.Conv2d(width, 3, 3, 1, 1), nn.Sigmoid())


def passes(count: int, batch: int, epochs: int, seed: int) -> list[Tensor]:
    """Return the batches of some passes over so many images."""
    rng = generator(seed, "passes")
    return [part for _ in range(epochs) for part in torch.randperm(count, generator=rng).split(batch)]


def in_parts(module: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """Return what a module makes of many rows."""
    with torch.no_grad():
        return torch.cat([module(part) for part in values.split(250)])


def trained_client(own: Samples, blocks: int, epochs: int, seed: int) -> tuple[nn.Module, nn.Module]:
    """Return both parts after training them together, in evaluation mode."""
    client, server = network(blocks, derive_seed(seed, "network"))
    optimiser = torch.optim.Adam([*client.parameters(), *server.parameters()], 1e-3)
    for batch in passes(len(own.labels), 64, epochs, derive_seed(seed, "client")):
        loss = functional.cross_entropy(server(client(own.images[batch])), own.labels[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return client.eval().requires_grad_(False), server.eval().requires_grad_(False)


def trained_decoder(maps: Tensor, images: Tensor, spread: Tensor, epochs: int, seed: int) -> Callable[[Tensor], Tensor]:
    """Return a decoder of maps, trained on pairs."""
    model = decoder(maps, derive_seed(seed, "decoder"))
    optimiser = torch.optim.Adam(model.parameters(), 2e-3)
    for batch in passes(len(images), 64, epochs, derive_seed(seed, "pairs")):
        loss = functional.mse_loss(model(maps[batch] / spread), images[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.eval().requires_grad_(False)
    return lambda seen: in_parts(model, seen / spread)


def main() -> None:
    """Train a client, attack what it sent, and print how near the images are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--blocks", type=int, default=7, help="of the nine, the client's")
    parser.add_argument("--per-class", type=int, default=500, help="images of each class, for each side")
    parser.add_argument("--epochs", type=int, default=4, help="of the client's training")
    parser.add_argument("--steps", type=int, default=600, help="of a simulator")
    parser.add_argument("--simulators", type=int, default=1)
    parser.add_argument("--passes", type=int, default=6, help="of a decoder over the attacker's images")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    clock = Clock()
    private, own = (Samples(*load(asked.data / "train", asked.per_class, skip)) for skip in (0, asked.per_class))
    client, server = trained_client(private, asked.blocks, asked.epochs, asked.seed)
    sent = in_parts(client, private.images)
    spread = sent.std((0, 2, 3), keepdim=True).clamp_min(1e-6)
    print(f"maps of {tuple(sent.shape[1:])}, {len(sent)} private images; {clock.seconds():.0f} CPU s", flush=True)

    def told(what: str, images: Tensor) -> None:
        error = float(functional.mse_loss(images, private.images))
        print(f"{what:34s} MSE {error:.4f}   {clock.seconds():6.0f} CPU s", flush=True)

    told("mean image of the class", class_means(own, 10)[private.labels])
    found = []
    for number in range(asked.simulators):
        simulator, _ = network(asked.blocks, derive_seed(asked.seed, "simulator", number))
        training = SimulatorTraining(steps=asked.steps, batch_size=64)
        train_simulator(
            simulator, Answers(sent, private.labels, server), own, training, derive_seed(asked.seed, number)
        )
        decoded = trained_decoder(in_parts(simulator, own.images), own.images, spread, asked.passes, asked.seed)
        found.append(decoded(sent))
        told(f"simulators: {number + 1}", torch.stack(found).mean(0))
    told(
        "the client's own network",
        trained_decoder(in_parts(client, own.images), own.images, spread, asked.passes, 0)(sent),
    )


if __name__ == "__main__":
    main()
