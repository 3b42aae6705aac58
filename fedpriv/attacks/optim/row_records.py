"""Memory of the rows of a fit: what each has shown, and when it met its stop rule, without the host being asked."""

from __future__ import annotations

import torch
from torch import Tensor

from fedpriv.attacks.optim.schedule import Schedule

_GAIN = 0.99
"""Share to which the lowest objective must fall to count as progress."""

_PER_ROW = ("mean", "best", "clean", "steps", "lowest", "_moving", "_mark", "_marked_at")


class RowRecords:
    """Entries of N rows, all on the device of the images; a row that has ended changes no more, but for ``clean``.

    Attributes:
        mean: ``(N, c, h, w)`` running mean of the images shown, not yet divided by its weight; zero where none is asked for.
        best: ``(N, c, h, w)`` image shown with the lowest objective.
        clean: ``(N, c, h, w)`` image shown right after the row's last step; of a row that still runs, nothing.
        steps: ``(N,)`` int64 steps of the row until it met its stop rule, or so far.
        lowest: ``(N,)`` lowest objective shown.
    """

    def __init__(self, images: Tensor, schedule: Schedule) -> None:
        rows = len(images)
        self.mean, self.best, self.clean = torch.zeros_like(images), images.clone(), images.clone()
        self.steps = torch.zeros(rows, dtype=torch.int64, device=images.device)
        self._moving = torch.ones(rows, dtype=torch.bool, device=images.device)
        self.lowest = images.new_full((rows,), torch.inf)
        self._mark = images.new_full((rows,), torch.inf)
        self._marked_at = torch.zeros_like(self.steps)
        self._average = schedule.average
        # Numbers that lie on the device already need not be sent there in every step.
        self._infinite, self._tolerance, self._gain = images.new_tensor((torch.inf, schedule.tolerance, _GAIN)).unbind()
        self._clock = torch.tensor((0, -1, -schedule.patience), device=images.device)
        self._now, self._before, self._too_long_ago = self._clock.unbind()

    def next(self) -> Tensor:
        """Begin a step; return ``(N,)`` bool, which rows still run. The others are to show their clean image."""
        self._clock += 1
        return self._moving

    def note(self, images: Tensor, value: Tensor, moving: Tensor) -> None:
        """Remember the images shown at this step, whose objective is ``value`` ``(N,)``; ``moving`` as it began."""
        if self._average:
            mean = torch.lerp(self.mean, images, 1 - self._average)
            self.mean = torch.where(moving.view(-1, 1, 1, 1), mean, self.mean)
        self.steps = self.steps + moving
        # A row's image without noise after its last step is what it shows at the next.
        self.clean = torch.where((self.steps == self._before).view(-1, 1, 1, 1), images, self.clean)
        better = (value < self.lowest) & moving
        self.lowest = torch.where(better, value, self.lowest)
        self.best = torch.where(better.view(-1, 1, 1, 1), images, self.best)
        gained = self.lowest < self._gain * self._mark
        self._mark = torch.where(gained, self.lowest, self._mark)
        self._marked_at = torch.where(gained, self._now, self._marked_at)
        go_on = (self._marked_at > self._too_long_ago) & (self.lowest >= self._tolerance) & (value < self._infinite)
        self._moving = moving & go_on

    def end(self, rows: Tensor) -> None:
        """End some rows ``(N,)`` (bool) with the present step."""
        self._moving = self._moving & ~rows.to(self._moving.device)

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only (int64 positions)."""
        for name in _PER_ROW:
            values = getattr(self, name)
            setattr(self, name, values[rows.to(values.device)])
