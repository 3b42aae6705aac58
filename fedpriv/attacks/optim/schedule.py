"""The course of a fit, and when a row of it stops."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Course and stop rules of an optimisation; only the objective decides.

    Attributes:
        iterations: most steps of a row.
        learning_rate: Adam's step size.
        anneal: let the step size fall to zero along half a cosine.
        average: decay of the running mean of the images shown, in [0, 1); 0 is no averaging.
        tolerance: a row is finished when its objective falls below.
        patience: a row is finished when its lowest objective has not fallen by 1 % for so many steps.
        fits: distance to what was observed, penalties aside, at which an image counts as found. The search goes on below it.
        halvings: shares of the iterations, ascending, at each of which the worse half of the rows of every target ends.
        look_every: steps between two looks at which rows have finished; results depend on it in the last digits only.
    """

    iterations: int
    learning_rate: float
    anneal: bool = False
    average: float = 0.0
    tolerance: float = 1e-3
    patience: int = 300
    fits: float = 0.0
    halvings: tuple[float, ...] = ()
    look_every: int = 10

    def rate(self, done: float) -> float:
        """Return the step size after a share of the iterations, in [0, 1]."""
        return self.learning_rate * (0.5 * (1 + math.cos(math.pi * done)) if self.anneal else 1.0)

    def left(self, step: int, restarts: int) -> int | None:
        """Return the number of rows of a target that go on after a step; None where none is ended then.

        >>> schedule = Schedule(100, 0.01, halvings=(0.1, 0.25))
        >>> [schedule.left(step, 4) for step in (9, 10, 25)], schedule.left(10, 1)
        ([None, 2, 1], None)
        """
        ends = [max(1, round(share * self.iterations)) for share in self.halvings]
        number = -(-restarts // 2 ** sum(end <= step for end in ends))
        return number if step in ends and restarts > 1 else None
