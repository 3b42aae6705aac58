"""SSIM by banded products beside torchmetrics in single precision, in one run: ``python benchmarks/similarity.py``.

Prints min, median and max of the ratio of CPU seconds, torchmetrics' over ours, and the largest difference.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor
from torchmetrics.functional.image import structural_similarity_index_measure

from fedpriv.scoring.ssim import structural_similarity

SHAPES = ((48, 1, 28, 28), (500, 3, 32, 32), (500, 3, 64, 64), (1, 3, 64, 64))


def theirs(images: Tensor, truth: Tensor) -> Tensor:
    """Return the same of torchmetrics, single windows at the border left out."""
    _, maps = structural_similarity_index_measure(
        images.float(), truth.float(), sigma=1.5, data_range=1.0, reduction="none", return_full_image=True
    )
    found: Tensor = maps[..., 5:-5, 5:-5].mean(dim=(1, 2, 3), dtype=torch.float64)
    return found


def seconds(measure: Callable[[Tensor, Tensor], Tensor], images: Tensor, truth: Tensor, times: int) -> float:
    """Return CPU seconds of so many calls."""
    began = time.process_time()
    for _ in range(times):
        measure(images, truth)
    return time.process_time() - began


def main() -> None:
    """Print a line a shape."""
    torch.set_num_threads(1)
    made = torch.Generator().manual_seed(0)
    for shape in SHAPES:
        images, truth = (torch.rand(*shape, generator=made, dtype=torch.float64) for _ in range(2))
        apart = (structural_similarity(images, truth) - theirs(images, truth)).abs().max()
        times = max(1, 500 // shape[0])
        ratios = sorted(
            seconds(theirs, images, truth, times) / seconds(structural_similarity, images, truth, times)
            for _ in range(7)
        )
        print(f"{shape}: {ratios[0]:.1f} - {ratios[3]:.1f} - {ratios[-1]:.1f} times, difference at most {apart:.1e}")


if __name__ == "__main__":
    main()
