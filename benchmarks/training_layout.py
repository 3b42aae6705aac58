"""A local step with the channels of a position side by side, beside the same step channel by channel: CPU seconds.

OMP_NUM_THREADS=1 python benchmarks/training_layout.py cnn4:3x32x32 small-cnn:1x28x28
"""

from __future__ import annotations

import copy
import sys
import time
from statistics import median

import torch

from fedpriv.datasets.types import Samples
from fedpriv.federation import local_training
from fedpriv.federation.method import LocalTraining
from fedpriv.federation.trace import Trace
from fedpriv.models.build import build_model
from fedpriv.models.layout import takes_channels_last
from fedpriv.models.split import Blueprint

IMAGES, BATCH, PAIRS = 600, 10, 9


def seconds(model: torch.nn.Module, samples: Samples, *, turned: bool) -> float:
    """Return the CPU seconds of an epoch on a copy of a model."""
    local_training.takes_channels_last = takes_channels_last if turned else (lambda module, loss: False)
    own, training = copy.deepcopy(model), LocalTraining(batch_size=BATCH, shuffle=False)
    begun = time.process_time()
    rng = torch.Generator().manual_seed(0)
    local_training.train(own, samples, training, rng, local_training.classification_loss(own), Trace())
    return time.process_time() - begun


def main(cases: list[str]) -> None:
    """Print a line for each ``model:CxHxW``."""
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    for case in cases:
        name, _, size = case.partition(":")
        channels, height, width = map(int, size.split("x"))
        pixels = torch.randint(256, (IMAGES, channels, height, width), generator=draw, dtype=torch.uint8)
        samples = Samples(pixels, torch.randint(10, (IMAGES,), generator=draw))
        model = build_model(Blueprint(name, (channels, height, width), 10, 512), 0)
        for turned in (False, True):
            seconds(model, samples, turned=turned)
        pairs = [tuple(seconds(model, samples, turned=turned) for turned in (False, True)) for _ in range(PAIRS)]
        ratios = sorted(after / before for before, after in pairs)
        steps = IMAGES / BATCH / 1000
        before, after = (median(pair[side] for pair in pairs) / steps for side in (0, 1))
        print(
            f"{case}: {before:.2f} -> {after:.2f} ms a step, ratio {ratios[0]:.2f}-{median(ratios):.2f}-{ratios[-1]:.2f}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
