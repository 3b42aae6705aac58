"""How fast this machine is: seconds of one say little to another, whose memory may be five times as slow."""

from __future__ import annotations

import mmap
import statistics
import timeit
from collections.abc import Callable
from typing import NamedTuple

_SIDE, _BYTES, _PAGE, _TIMES = 512, 1 << 26, 4096, 5
_READS = 1 << 18  # at random places


class Rates(NamedTuple):
    """Rates of one core, each the median of five."""

    gflops: float  # of products of float32 matrices, 512 x 512
    gigabytes: float  # a second, read and written, of 64 MiB, which no cache holds
    read: float  # nanoseconds of a read at a random place of 64 MiB
    fault: float  # microseconds of the first write to a page

    def __str__(self) -> str:
        return (
            f"one core: {self.gflops:.0f} GFLOP/s, memory {self.gigabytes:.1f} GB/s, random read {self.read:.0f} ns, "
            f"page fault {self.fault:.2f} us"
        )


def measure_rates() -> Rates:
    """Measure this machine, in about half a second; other work on it is in the result."""
    import numpy as np
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rng = torch.Generator().manual_seed(0)
        square = torch.rand(_SIDE, _SIDE, generator=rng)
        product = _median(lambda: torch.mm(square, square))
        source = torch.zeros(_BYTES // 4)
        target = torch.zeros_like(source)
        copy = _median(lambda: target.copy_(source))
        places = torch.randint(len(source), (_READS,), generator=rng)
        gather = _median(lambda: source[places])
    finally:
        torch.set_num_threads(threads)

    def touch() -> None:
        with mmap.mmap(-1, _BYTES // 8) as fresh:
            np.ndarray((len(fresh) // _PAGE,), np.uint8, fresh, strides=(_PAGE,)).fill(1)

    fault = _median(touch)
    return Rates(
        2 * _SIDE**3 / product / 1e9, 2 * _BYTES / copy / 1e9, gather / _READS * 1e9, fault / (_BYTES / 8 / _PAGE) * 1e6
    )


def _median(work: Callable[[], object]) -> float:
    """Return the median of the wall seconds of some calls, after one that is not measured."""
    work()
    return statistics.median(timeit.repeat(work, number=1, repeat=_TIMES))
