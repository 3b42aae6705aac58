"""How a GPU takes many generators at once: a group a row, or a product of matrices a row.

    python benchmarks/rows_on_a_gpu.py [--device cuda] [--searches]

Prints milliseconds of each layer of the generator, forward and back, by the number of rows, of each the library's grouped
convolution first, then :func:`fedpriv.attacks.priors.dip.as_products`. Then those of an iteration of whole searches in
both ways, each asked for kernel by kernel, then recorded and replayed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from unittest import mock

import torch
from speed import representations
from torch import Tensor

from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.inversion.vector import DipInversion, PixelInversion
from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
from fedpriv.attacks.priors import dip
from fedpriv.attacks.search import fit
from fedpriv.uploads.payloads import Representations
from fedpriv.util.compute import pick_device

LAYERS = {
    "16 -> 16, 32 x 32": (16, 16, 32),
    "16 -> 16, 16 x 16": (16, 16, 16),
    "32 -> 32, 16 x 16": (32, 32, 16),
    "64 -> 64, 8 x 8": (64, 64, 8),
}
"""In words -> channels in, channels out, side; kernels of 3 x 3."""


def milliseconds(work: Callable[[], object], device: torch.device, times: int = 20) -> float:
    """Return the mean time of some calls after three that are not measured."""
    for _ in range(3):
        work()
    settle(device)
    began = time.perf_counter()
    for _ in range(times):
        work()
    settle(device)
    return 1000 * (time.perf_counter() - began) / times


def settle(device: torch.device) -> None:
    """Wait until a GPU has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def in_both_ways(measure: Callable[[], float]) -> list[float]:
    """Return what is measured with groups, and with products."""
    found = []
    for products in (False, True):
        dip.as_products = lambda rows, device, products=products: products  # type: ignore[assignment,misc]
        found.append(measure())
    return found


def layer(name: str, rows: int, device: torch.device) -> list[float]:
    """Return the time of a layer in both ways, forward and back."""
    channels, out, side = LAYERS[name]
    maps = torch.randn(1, rows * channels, side, side, device=device, requires_grad=True)
    weight = (0.1 * torch.randn(rows, out, channels, 3, 3, device=device)).requires_grad_()

    def both() -> tuple[Tensor, ...]:
        return torch.autograd.grad(dip.convolve(maps, weight).square().sum(), (maps, weight))

    return in_both_ways(lambda: milliseconds(both, device))


def search(
    kind: type[DipInversion | PixelInversion], targets: int, device: torch.device, recorded: bool
) -> list[float]:
    """Return the time of an iteration of a search on the 4-layer CNN in both ways."""
    model, labels, features = representations(targets, 0)
    seen = (Observation(0, 0, (Representations(features.cpu(), labels),), ()),)
    knowledge = Knowledge(ThreatModel(), (3, 32, 32), model.head.out_features, extractors={0: model.represent})
    wanted = list_targets(seen, "representation")

    def seconds(iterations: int) -> float:
        settle(device)
        began = time.perf_counter()
        attack = kind(iterations=iterations, restarts=1, tolerance=0.0, patience=iterations + 1)
        recorder = fit.recorder_on if recorded else lambda device: None
        with mock.patch.object(fit, "recorder_on", recorder):
            attack(seen, knowledge, wanted, seed=0, device=device)
        settle(device)
        return time.perf_counter() - began

    def iteration() -> float:
        seconds(10)
        short, long = seconds(30), seconds(80)
        return 1000 * (long - short) / 50

    return in_both_ways(iteration)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--searches", action="store_true", help="leave the layers out")
    given = parser.parse_args()
    device = pick_device(given.device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}; ms by groups, by products")
    for rows in () if given.searches else (1, 8, 32, 64, 256):
        for words in LAYERS:
            print(
                f"{rows:4} rows, {words}: " + ", ".join(f"{one:.2f}" for one in layer(words, rows, device)), flush=True
            )
    for kind in (DipInversion, PixelInversion):
        for targets in (1, 8, 32, 64):
            told = [", ".join(f"{one:.2f}" for one in search(kind, targets, device, way)) for way in (False, True)]
            print(f"{kind.name}, {targets} targets, an iteration: {told[0]}; replayed: {told[1]}", flush=True)


if __name__ == "__main__":
    main()
