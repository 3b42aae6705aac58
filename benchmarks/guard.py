"""What a guard costs beside a round of local training, and how often it calls a leak that is not there.

    python benchmarks/guard.py                  # seconds and CPU seconds
    python benchmarks/guard.py --nulls 200      # rates: uploads of other images of the same classes, and of noise

Embedded images of Fashion-MNIST; a client has 200 and trains one epoch in batches of 10.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedpriv

DATA = fedpriv.load("fashion")


def conv() -> nn.Sequential:
    """LeNet as gradient inversion has it."""
    layers = [nn.Conv2d(1, 12, 5, 2, 2), nn.Sigmoid(), nn.Conv2d(12, 12, 5, 2, 2), nn.Sigmoid()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(588, 10))


def dense() -> nn.Sequential:
    """A network whose first layer is fully connected."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def gradient(model: nn.Module, images: Tensor, labels: Tensor) -> list[Tensor]:
    """Return the gradient of a batch."""
    return list(torch.autograd.grad(cross_entropy(model(images), labels), model.parameters()))


def guarded(model: nn.Module, own: Tensor, sent: list[Tensor], rest: Tensor) -> fedpriv.GuardResult:
    """Guard what is sent for the client's own images; the rest are held-out and auxiliary images."""
    held_out = DATA.images[rest[:200]], DATA.labels[rest[:200]]
    auxiliary = {"auxiliary": DATA.images[rest[200:]], "auxiliary_labels": DATA.labels[rest[200:]]}
    truth = {"images": DATA.images[own], "labels": DATA.labels[own], "held_out": held_out}
    return fedpriv.guard(fedpriv.Gradient(sent), model=model, **truth, **auxiliary)


def costs() -> None:
    """Print seconds of a guard beside those of a local epoch."""
    for make, count in ((conv, 1), (conv, 1), (conv, 4), (dense, 16), (conv, 200)):  # the first warms up
        torch.manual_seed(0)
        model, order = make(), torch.randperm(len(DATA))
        client, rest = order[:200], order[200:]
        begun, cpu = time.perf_counter(), time.process_time()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
        for batch in client.split(10):
            optimiser.zero_grad()
            cross_entropy(model(DATA.images[batch]), DATA.labels[batch]).backward()
            optimiser.step()
        trained = time.perf_counter() - begun, time.process_time() - cpu
        own = client[:count]
        sent = gradient(model, DATA.images[own], DATA.labels[own])
        cpu = time.process_time()
        result = guarded(model, own, sent, rest)
        print(
            f"{make.__name__}, {count} images: {result.status}; guard {result.seconds:.1f} s, "
            f"{time.process_time() - cpu:.1f} s of CPU; a local epoch {trained[0]:.2f} s, {trained[1]:.2f} s of CPU"
        )


def nulls(number: int) -> None:
    """Print how often a guard calls a leak of images that are not behind the upload."""
    for make, count in ((conv, 1), (conv, 4), (dense, 1), (dense, 16)):
        for null in ("other images", "noise"):
            told, came_back = Counter[str](), 0
            for seed in range(number):
                torch.manual_seed(seed)
                model, order = make(), torch.randperm(len(DATA))
                own = order[:count]
                rest = order[count:]
                other = torch.stack([rest[DATA.labels[rest] == label][k] for k, label in enumerate(DATA.labels[own])])
                rest = rest[~torch.isin(rest, other)]
                sent = gradient(model, DATA.images[other], DATA.labels[other])
                if null == "noise":
                    sent = [values.norm() / values.numel() ** 0.5 * torch.randn_like(values) for values in sent]
                result = guarded(model, own, sent, rest)
                came_back += result.came_back > 0
                for answer in result.answers:
                    told[answer.endpoint] += answer.verdict == "leak"
            print(f"{make.__name__}, {count} images, {null}: came back {came_back}/{number}, {dict(told)}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nulls", type=int, default=0)
    given = parser.parse_args()
    nulls(given.nulls) if given.nulls else costs()
