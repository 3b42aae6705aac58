"""Inverting gradients of images that were told apart: total variation by how many and how determined they are.

OMP_NUM_THREADS=1 python benchmarks/variation_of_gradients.py --data DIR/cifar10-jpeg --seed 701
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from cifar import load, psnr
from torch import Tensor

from fedpriv.attacks.gradients.inverting_gradients import InvertingGradients
from fedpriv.attacks.read.target_features import list_targets
from fedpriv.datasets import SourceOptions, load_dataset
from fedpriv.datasets.types import as_unit
from fedpriv.experiment.benchmarks.one_step import problem_of
from fedpriv.scoring.definitions import assign, squared_errors
from fedpriv.scoring.intervals import clustered


@dataclass(frozen=True)
class Case:
    """Targets of one size behind one network: images, network, images of a target, targets, evaluations of each."""

    images: str
    network: str
    size: int
    targets: int
    iterations: int


CASES = (
    Case("CIFAR-10", "cnn4", 8, 4, 100),
    Case("CIFAR-10", "cnn4", 16, 4, 100),
    Case("CIFAR-10", "cnn4", 32, 2, 100),
    Case("fashion", "cnn4", 1, 24, 2000),
    Case("fashion", "cnn4", 4, 8, 500),
    Case("fashion", "cnn4", 16, 3, 125),
    Case("fashion", "small-cnn", 1, 24, 2000),
    Case("fashion", "small-cnn", 4, 8, 500),
    Case("fashion", "small-cnn", 16, 3, 125),
)


def scores(case: Case, made: InvertingGradients, images: Tensor, labels: Tensor, seed: int) -> Tensor:
    """Return the mean PSNR of each target's images, each with the guess assigned to it: ``(targets,)``."""
    problem = problem_of(case.network, images, labels, 10, seed, batch_size=case.size, steps=1)
    targets = list_targets(problem.observations, "model")
    found = made(problem.observations, problem.knowledge, targets, seed=0).images
    pairs = zip(found, problem.images.split(case.size), strict=True)
    return torch.stack([psnr(own[assign(squared_errors(own, truth))], truth).mean() for own, truth in pairs])


def main() -> None:
    """Attack, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train/, one folder a class")
    parser.add_argument("--seed", type=int, required=True, help="draws images and weights")
    options = parser.parse_args()
    torch.set_num_threads(1)
    clothes = load_dataset("fashion", SourceOptions(None)).samples
    pools = {"CIFAR-10": load(options.data / "train", 200), "fashion": (as_unit(clothes.images), clothes.labels)}
    print("| images | network | targets | evaluations | 0.24 an image | now | ahead by [95 %] |")
    print("| --- | --- | --- | ---: | ---: | ---: | --- |")
    for case in CASES:
        images, labels = pools[case.images]
        draw = torch.Generator().manual_seed(options.seed + case.size)
        places = torch.randperm(len(images), generator=draw)[: case.targets * case.size]
        own, budget = (images[places], labels[places].long()), case.iterations
        plain = InvertingGradients(iterations=budget, total_variation=0.24 * case.size)
        before, now = (
            scores(case, made, *own, options.seed)
            for made in (plain, InvertingGradients(iterations=budget, prior="variation"))
        )
        low, high = clustered((now - before).tolist(), range(case.targets)).interval() or (-math.inf, math.inf)
        ahead = f"{(now - before).mean():+.1f} [{low:+.1f}, {high:+.1f}] dB"
        of = "single images" if case.size == 1 else f"batches of {case.size}"
        told = f"| {case.images} | `{case.network}` | {case.targets} {of} | {budget}"
        print(f"{told} | {before.mean():.1f} dB | {now.mean():.1f} dB | {ahead} |", flush=True)


if __name__ == "__main__":
    main()
