"""Axes of charts: where a value stands, and which values are marked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Linear:
    """Positions of values between two ends of an axis, which may run downwards."""

    low: float
    high: float
    start: float
    end: float
    least: ClassVar[float] = 0.01  # half of the smallest span that is drawn
    possible: ClassVar[tuple[float, float]] = (0.0, 1.0)  # outside lie no values, so no ticks

    @classmethod
    def around(cls, values: Sequence[float], start: float, end: float) -> Linear:
        """Return an axis with some room around values."""
        low, high = min(values), max(values)
        margin = max(0.12 * (high - low), cls.least - (high - low) / 2)
        return cls(low - margin, high + margin, start, end)

    def place(self, value: float) -> float:
        """Return where a value stands."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """Return values to mark, as they are written."""
        step = _step((self.high - self.low) / 4)
        first = math.ceil(self.low / step)
        values = [number * step for number in range(first, first + 9)]
        least, greatest = self.possible
        return [(value, self._written(value, step)) for value in values if least <= value <= greatest + step / 1000]

    @staticmethod
    def _written(value: float, step: float) -> str:
        return f"{100 * value:.{_decimals(100 * step)}f} %"


class Decibels(Linear):
    """Values in dB, of either sign."""

    least: ClassVar[float] = 0.5
    possible: ClassVar[tuple[float, float]] = (-math.inf, math.inf)

    @staticmethod
    def _written(value: float, step: float) -> str:
        return f"{value:.{_decimals(step)}f}".replace("-", "−")


class Shares(Linear):
    """Shares of either sign, in per cent."""

    possible: ClassVar[tuple[float, float]] = (-math.inf, math.inf)

    @staticmethod
    def _written(value: float, step: float) -> str:
        return Linear._written(value, step).replace("-", "−")


class Areas(Decibels):
    """Differences of areas under a curve."""

    least: ClassVar[float] = 0.02


class Logarithmic(Linear):
    """Numbers from 1 on, by their logarithms."""

    least: ClassVar[float] = 0.3

    @classmethod
    def around(cls, values: Sequence[float], start: float, end: float) -> Logarithmic:
        """Return an axis with some room around values."""
        logs = [math.log10(max(value, 1.0)) for value in values]
        margin = max(0.12 * (max(logs) - min(logs)), cls.least - (max(logs) - min(logs)) / 2)
        return cls(max(min(logs) - margin, -0.15), max(logs) + margin, start, end)

    def place(self, value: float) -> float:
        """Return where a value stands."""
        return super().place(math.log10(max(value, 1.0)))

    def ticks(self) -> list[tuple[float, str]]:
        """Return values to mark, as they are written."""
        mantissas = (1,) if self.high - self.low > 2.2 else (1, 2, 5)
        found = [m * 10**power for power in range(13) for m in mantissas]
        return [(value, _short(value)) for value in found if self.low <= math.log10(value) <= self.high]


def _step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return float(next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999))


def _decimals(step: float) -> int:
    """Return the number of decimals that multiples of a step need.

    >>> _decimals(2.5), _decimals(10.0), _decimals(0.25), _decimals(0.1)
    (1, 0, 2, 1)
    """
    return next(number for number in range(12) if math.isclose(round(step, number), step, rel_tol=1e-9))


def _short(value: float) -> str:
    for size, prefix in ((10**9, " G"), (10**6, " M"), (10**3, " k")):
        if value >= size:
            return f"{value / size:g}{prefix}"
    return f"{value:g}"
