"""Batched DIP inversion against one target at a time: the same attack, and the same result, with rows side by side.

    OMP_NUM_THREADS=1 python benchmarks/batched_dip.py --data DIR/cifar10-jpeg

Prints CPU seconds of one thread for each target, and their ratio. The third line is an ordinary module a target, with
the optimiser that everybody uses, in a loop. Then the arithmetic: operations of convolutions and products in an iteration of
a target, the machine's own peak at products in the same run, and what part of the time that peak would take.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch
from cifar import load, psnr, trained_cnn
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from fedpriv.attacks.invert.inversion import DipInversion
from fedpriv.attacks.observation import Knowledge, KnowledgeCard, Observation
from fedpriv.attacks.read.target_features import list_targets
from fedpriv.models.split import SplitModel
from fedpriv.wire.payloads import Representations


def block(inputs: int, outputs: int, kernel: int) -> nn.Sequential:
    """Convolution, batch norm, LeakyReLU."""
    convolution = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2))


class Level(nn.Module):
    """One level of the hourglass, as anybody would write it."""

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


class Clock:
    """Seconds since the clock was made: of this process on a CPU, of the wall on a GPU, whose work is waited for."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._began = self._now()

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            return time.perf_counter()
        return time.process_time()

    def seconds(self) -> float:
        """Return the seconds."""
        return self._now() - self._began


def peak(device: torch.device, side: int = 1024, repeats: int = 15) -> float:
    """Return the operations a second of products of matrices, the best of several."""
    one = torch.randn(side, side, device=device)
    best = torch.inf
    for _ in range(repeats):
        clock = Clock(device)
        one @ one
        best = min(best, clock.seconds())
    return 2 * side**3 / best


def ordinary(model: SplitModel, wanted: Tensor, iterations: int) -> None:
    """Invert one representation ``(d,)`` with an ordinary module."""
    network = nn.Sequential(Level(32, (16, 32, 64, 128)), nn.Conv2d(16, 3, 1), nn.Sigmoid()).to(wanted.device)
    optimiser = torch.optim.Adam(network.parameters(), lr=5e-3)
    start = torch.rand(1, 32, 32, 32, device=wanted.device) * 0.1
    mean = torch.zeros(1, 3, 32, 32, device=wanted.device)
    for _ in range(iterations):
        image = network(start + 0.03 * torch.randn_like(start))
        loss = (model.represent(image) - wanted).square().sum() / wanted.square().sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        mean.mul_(0.99).add_(image.detach(), alpha=0.01)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train/, one folder a class")
    parser.add_argument("--targets", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu", help="on a GPU seconds are those of the wall")
    options = parser.parse_args()
    torch.set_num_threads(1)

    images, labels = load(options.data / "train", 100)
    device = torch.device(options.device)
    model = trained_cnn(images, labels, 3, 0)
    spread = torch.arange(options.targets) * (len(images) // options.targets)
    with torch.no_grad():
        upload = Representations(model.represent(images[spread]), labels[spread])
    observations = (Observation(0, 0, (upload,), ()),)
    model.to(device)
    knowledge = Knowledge(KnowledgeCard(), (3, 32, 32), 10, extractors={0: model.represent})
    attack = DipInversion(iterations=options.iterations, tolerance=0.0, patience=options.iterations + 1)
    targets = list_targets(observations, "representation")

    def batched(chunk_rows: int, attack: DipInversion = attack) -> tuple[float, float]:
        clock = Clock(device)
        found = attack(observations, knowledge, targets, seed=0, device=device, chunk_rows=chunk_rows)
        return clock.seconds() / len(targets), psnr(found.images[:, 0].cpu(), images[spread]).mean().item()

    def loop() -> float:
        clock = Clock(device)
        for feature in upload.features.to(device):
            ordinary(model, feature, options.iterations)
        return clock.seconds() / len(targets)

    one, together, plain = [], [], []
    for repeat in range(options.repeats + 1):
        alone, alone_db = batched(1)
        side_by_side, together_db = batched(options.targets)
        module = loop()
        if repeat:  # the first round warms caches
            one.append(alone)
            together.append(side_by_side)
            plain.append(module)
    counted = []
    for iterations in (2, 4):
        with FlopCounterMode(display=False) as counter:
            batched(1, replace(attack, iterations=iterations))  # grouped convolutions are not counted rightly
        counted.append(counter.get_total_flops())
    operations = (counted[1] - counted[0]) / 2 / options.targets
    scale = 1e3 / options.iterations
    middle = [statistics.median(values) for values in (one, together, plain)]
    print(
        f"{options.targets} targets, {options.iterations} iterations, {options.repeats} repeats, ms (of one thread on a CPU)"
    )
    print(f"one at a time      {middle[0] * scale:6.2f} per target and iteration ({alone_db:.2f} dB)")
    print(f"rows side by side  {middle[1] * scale:6.2f} ({together_db:.2f} dB)")
    print(f"ordinary modules   {middle[2] * scale:6.2f}")
    reached = peak(device)
    print(f"ratio to one at a time {middle[0] / middle[1]:.2f}, to ordinary modules {middle[2] / middle[1]:.2f}")
    ratios = sorted(module / row for module, row in zip(plain, together, strict=True))
    print(f"ordinary modules, pair by pair: {ratios[0]:.2f}-{statistics.median(ratios):.2f}-{ratios[-1]:.2f}")
    least = 1e3 * operations / reached
    print(
        f"{operations / 1e6:.0f} million operations per target and iteration: {least:.2f} ms at the {reached / 1e9:.0f} "
        f"billion a second that products reach here, {100 * least / (middle[1] * scale):.0f} % of the time"
    )


if __name__ == "__main__":
    main()
