"""Draws of N rows step after step, each from its own generator: drawn for a block of steps, and moved at once.

Draws are made on the CPU, so that they are the same numbers on every device, and they are the same for every length of a
block. While a GPU takes the steps of one block, the next is drawn.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

BLOCK = 8
"""Steps drawn at once. A row of the deep image prior holds its noise for so many steps: 1 MiB at 32 x 32 positions."""

_GROUP = 16
"""torch draws normal numbers in groups of so many; a block that began within one would draw others."""

Draw = Callable[[torch.Generator, int], Tensor]
"""(a row's generator, steps S) -> what the row draws in so many steps ``(S, ...)``, on the CPU."""


def stays_in_place(device: torch.device) -> bool:
    """True where draws of every step are handed out in the same memory: where steps are recorded, which read it."""
    return device.type == "cuda"


@functools.cache
def _drawing() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "draws")


class RowDraws:
    """Draws of N rows, a step at a time.

    Args:
        generators: N CPU generators, one a row.
        draw: what a row draws; drawing S steps must be as drawing one step S times.
        device: where draws are handed out.
        block: steps drawn at once.
    """

    def __init__(
        self, generators: Sequence[torch.Generator], draw: Draw, device: torch.device, block: int = BLOCK
    ) -> None:
        self._generators = list(generators)
        self._draw, self._device, self._size = draw, device, block
        self._block: Tensor | None = None
        self._ahead: Future[Tensor] | None = None
        self._at = 0
        self._present: Tensor | None = None

    @property
    def present(self) -> Tensor:
        """The draws ``(N, ...)`` of the present step; on a GPU always in the same memory, while there are as many rows."""
        assert self._present is not None
        return self._present

    def advance(self) -> Tensor:
        """Go on to the next step; return its draws."""
        if self._block is None or self._at == self._size:
            following = self._drawn() if self._ahead is None else self._ahead.result()
            self._block, self._at = following.to(self._device, non_blocking=True), 0
            self._ahead = _drawing().submit(self._drawn) if stays_in_place(self._device) else None
        drawn, self._at = self._block[:, self._at], self._at + 1
        if not stays_in_place(self._device):
            self._present = drawn
        elif self._present is None or self._present.shape != drawn.shape:
            self._present = drawn.clone()
        else:
            self._present.copy_(drawn)
        return self._present

    def _drawn(self) -> Tensor:
        """Return the draws ``(N, S, ...)`` of the next block, on the CPU."""
        return self._pinned(torch.stack([self._draw(generator, self._size) for generator in self._generators]))

    def _pinned(self, drawn: Tensor) -> Tensor:
        # From pinned memory the copy to a GPU does not wait for it.
        return drawn.pin_memory() if self._device.type == "cuda" else drawn

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only, ``rows`` being int64 positions on the CPU."""
        if self._ahead is not None:
            left = self._pinned(self._ahead.result()[rows])
            self._ahead = Future()
            self._ahead.set_result(left)
        self._generators = [self._generators[row] for row in rows.tolist()]
        if self._block is not None:
            self._block = self._block[rows.to(self._device)]


def normal(*shape: int) -> Draw:
    """Return a draw of standard normal numbers, ``shape`` a step."""
    number = torch.Size(shape).numel()
    filled = -(-number // _GROUP) * _GROUP

    def draw(generator: torch.Generator, steps: int) -> Tensor:
        return torch.randn(steps, filled, generator=generator)[:, :number].view(steps, *shape)

    return draw


def shifts(height: int, width: int, reach: int) -> Draw:
    """Return a draw of shifts around the edges, by up to ``reach`` positions down and right, alike in all channels.

    What is drawn is where each position's value comes from, ``(height * width,)`` int64 a step.
    """

    def draw(generator: torch.Generator, steps: int) -> Tensor:
        down, right = torch.randint(-reach, reach + 1, (steps, 2, 1), generator=generator).unbind(1)
        from_row, from_column = (torch.arange(height) - down) % height, (torch.arange(width) - right) % width
        return (from_row[:, :, None] * width + from_column[:, None, :]).flatten(1)

    return draw
