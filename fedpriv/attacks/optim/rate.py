"""The size of the next step: a number, or on a GPU a tensor that steps read, so that a recorded step takes other sizes."""

from __future__ import annotations

import torch
from torch import Tensor


class Rate:
    """A step size that changes.

    Attributes:
        value: to hand to an optimiser; on a GPU always the same tensor.
    """

    def __init__(self, device: torch.device) -> None:
        self._size: float | None = None
        self.value: float | Tensor = torch.zeros((), device=device) if device.type == "cuda" else 0.0

    def set(self, size: float) -> None:
        """Take steps of this size from now on."""
        if size == self._size:
            return
        self._size = size
        if isinstance(self.value, Tensor):
            self.value.fill_(size)
        else:
            self.value = size
