"""An evaluation of gradient matching with convolutions computed directly, beside products of patches: CPU seconds, in pairs.

OMP_NUM_THREADS=1 python benchmarks/matching_convolutions.py cnn4:3x32x32 lenet-sigmoid:3x32x32
"""

from __future__ import annotations

import sys
import time
from statistics import median

import torch

from fedpriv.attacks.gradients import chain
from fedpriv.attacks.gradients.gradient_matching import Matcher, Matching
from fedpriv.attacks.gradients.local_step import LocalStep
from fedpriv.attacks.observation import BatchFacts
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint, SplitModel

ROWS, PAIRS, TIMES = 10, 7, 5
CPU = torch.device("cpu")


def matching(model: SplitModel, shape: tuple[int, int, int], count: int, *, directly: bool) -> Matching:
    """Return the comparison with ten random gradients."""
    chain._SEVERAL = 8 if directly else 10**9
    draw = torch.Generator().manual_seed(0)
    weights = {name: value.detach() for name, value in model.named_parameters()}
    steps = [
        LocalStep(weights, {name: torch.randn(value.shape, generator=draw) for name, value in weights.items()})
        for _ in range(ROWS)
    ]
    matcher = Matcher(model, shape, BatchFacts(count, 0.1, 1), "unrolled", CPU)
    return matcher.against(steps, [count] * ROWS)


def seconds(one: Matching, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the CPU seconds of an evaluation with its derivative."""
    rows = torch.arange(ROWS)
    begun = time.process_time()
    for _ in range(TIMES):
        torch.autograd.grad(one.cosine(images, labels, rows).sum(), images)
    return (time.process_time() - begun) / TIMES


def main(cases: list[str]) -> None:
    """Print a line for each ``model:CxHxW`` and number of images."""
    torch.set_num_threads(1)
    for case in cases:
        name, _, size = case.partition(":")
        channels, height, width = map(int, size.split("x"))
        shape = channels, height, width
        model = build_model(Blueprint(name, shape, 10, 512), 0)
        for count in (1, 4, 16):
            both = [matching(model, shape, count, directly=directly) for directly in (False, True)]
            images = torch.rand(ROWS, count, *shape, generator=torch.Generator().manual_seed(1)).requires_grad_()
            labels = torch.eye(10)[torch.arange(ROWS * count) % 10].view(ROWS, count, 10)
            for one in both:
                seconds(one, images, labels)
            pairs = [[seconds(one, images, labels) for one in both] for _ in range(PAIRS)]
            ratios = sorted(before / after for before, after in pairs)
            before, after = (1000 * median(pair[side] for pair in pairs) for side in (0, 1))
            times = f"{ratios[0]:.2f}-{median(ratios):.2f}-{ratios[-1]:.2f} times as fast"
            print(f"{case}, {ROWS} targets of {count}: {before:.1f} -> {after:.1f} ms, {times}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
