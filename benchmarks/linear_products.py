"""Fully connected layers by oneDNN beside torch's own call, which is MKL's: forward and both derivatives, one thread.

    python benchmarks/linear_products.py

For each size of batch and layer the ratio of torch's time to oneDNN's, least, middle and largest of paired turns: above one
oneDNN is quicker. ``fedpriv`` calls it on processors by AMD alone, and for products that are worth the call.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from fedpriv.models import products

SIZES = ((10, 1600, 512), (10, 784, 200), (10, 512, 10), (256, 1600, 512), (256, 784, 200), (256, 512, 10))
TURNS, SECONDS = 7, 0.05


def seconds(work: Callable[[], object]) -> float:
    """Return the time of one call, by as many as take a twentieth of a second."""
    calls, began = 0, time.process_time()
    while time.process_time() - began < SECONDS:
        work()
        calls += 1
    return (time.process_time() - began) / calls


def ratios(torchs: Callable[[], object], ours: Callable[[], object]) -> str:
    """Return the least, middle and largest ratio of paired turns."""
    seconds(torchs), seconds(ours)
    found = sorted(seconds(torchs) / seconds(ours) for _ in range(TURNS))
    return "-".join(f"{found[place]:.2f}" for place in (0, TURNS // 2, TURNS - 1))


def cells(batch: int, inputs: int, outputs: int) -> list[str]:
    """Return the ratios of a layer's three products."""
    by_onednn: Callable[[Tensor, Tensor, Tensor | None], Tensor] = products._by_onednn
    values, weight = torch.randn(batch, inputs), torch.randn(outputs, inputs)
    bias, delta = torch.randn(outputs), torch.randn(batch, outputs)
    return [
        ratios(lambda: functional.linear(values, weight, bias), lambda: by_onednn(values, weight, bias)),
        ratios(lambda: delta @ weight, lambda: by_onednn(delta, weight.T, None)),
        ratios(lambda: delta.T @ values, lambda: by_onednn(delta.T, values.T, None)),
    ]


def main() -> None:
    """Print a line for each size."""
    torch.set_num_threads(1)
    print(f"called here: {products.quicker_here()}")
    print("| batch | layer | output | by inputs | by weights |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for batch, inputs, outputs in SIZES:
        print(f"| {batch} | {inputs} to {outputs} | {' | '.join(cells(batch, inputs, outputs))} |")


if __name__ == "__main__":
    main()
