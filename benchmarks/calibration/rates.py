"""Rates with their intervals, the table that shows them, and the numbers that a script takes."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fedpriv.eval.intervals import clopper_pearson


class Rate(NamedTuple):
    """Rate of an event in independent trials: so many hits of so many."""

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


def parser(doc: str | None, **numbers: int) -> argparse.ArgumentParser:
    """Return a parser of whole numbers with these defaults."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for name, default in numbers.items():
        made.add_argument(f"--{name}", type=int, default=default)
    return made
