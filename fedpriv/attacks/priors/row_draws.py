"""Draws of N rows step after step, each row from its own generator, on the CPU: every device sees the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_GROUP = 16
"""Fewer normal numbers than these torch draws by another algorithm, so that no fewer are drawn."""

Draw = Callable[[torch.Generator], Tensor]
"""From a row's generator to what the row draws in a step, on the CPU."""


class RowDraws:
    """Draws of N rows, a step at a time.

    Args:
        generators: N CPU generators, one a row.
        draw: from a row's generator to its draws of a step.
        device: where draws are handed out.

    Attributes:
        present: the draws ``(N, ...)`` of the present step, in the same memory while there are as many rows: recorded steps
            read it there.
    """

    def __init__(self, generators: Sequence[torch.Generator], draw: Draw, device: torch.device) -> None:
        self._generators, self._draw, self._device = list(generators), draw, device
        self.present = torch.empty(0, device=device)

    def advance(self) -> Tensor:
        """Go on to the next step; return its draws."""
        drawn = torch.stack([self._draw(generator) for generator in self._generators])
        if self._device.type == "cuda":  # from pinned memory the copy does not wait for the device
            drawn = drawn.pin_memory()
        if self.present.shape == drawn.shape:
            self.present.copy_(drawn, non_blocking=True)
        else:
            self.present = drawn.to(self._device, non_blocking=True)
        return self.present

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only, ``rows`` being int64 positions on the CPU."""
        self._generators = [self._generators[row] for row in rows.tolist()]


def normal(*shape: int) -> Draw:
    """Return a draw of standard normal numbers of a shape."""
    number = torch.Size(shape).numel()
    filled = -(-number // _GROUP) * _GROUP
    return lambda generator: torch.randn(filled, generator=generator)[:number].view(shape)


def shifts(height: int, width: int, reach: int) -> Draw:
    """Return a draw of a shift around the edges, by up to ``reach`` positions down and right, alike in all channels.

    It says where each position's value comes from, ``(height * width,)`` int64.
    """

    def draw(generator: torch.Generator) -> Tensor:
        down, right = torch.randint(-reach, reach + 1, (2, 1), generator=generator)
        from_row, from_column = (torch.arange(height) - down) % height, (torch.arange(width) - right) % width
        origin: Tensor = from_row[:, None] * width + from_column
        return origin.flatten()

    return draw
