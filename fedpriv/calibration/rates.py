"""Rates with their intervals, and the table that shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedpriv.scoring.intervals import clopper_pearson


@dataclass(frozen=True)
class Rate:
    """Rate of an event in independent trials.

    Attributes:
        hits: how often.
        trials: of how many.
    """

    hits: int
    trials: int

    @property
    def share(self) -> float:
        """In [0, 1]."""
        return self.hits / self.trials

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval (Clopper and Pearson)."""
        return clopper_pearson(self.share, self.trials)

    def __str__(self) -> str:
        """In per cent with the interval: ``1.2 (0.6 to 2.1)``."""
        low, high = (100 * end for end in self.interval)
        return f"{100 * self.share:.1f} ({low:.1f} to {high:.1f})"


def counted(happened: Iterable[bool]) -> Rate:
    """Count trials.

    >>> str(counted([True, False, False, False]))
    '25.0 (0.6 to 80.6)'
    """
    trials = list(happened)
    return Rate(sum(trials), len(trials))


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """A Markdown table whose columns are the keys of the first row; nothing without rows."""
    if not rows:
        return ""
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *([str(row.get(name, "")) for name in head] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
