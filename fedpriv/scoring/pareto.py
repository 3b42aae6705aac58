"""Which uploads no other dominates: a partial order, because leaks of different things have no common scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Effect:
    """The reach of the most severe attack on an upload by one measure, above the baseline.

    Attributes:
        attack: what tables call it.
        value: mean over targets and seeds, in the unit of the measure, below zero where the baseline is better; None for
            what the upload says outright.
        low, high: ends of the 95 % interval; None where there is none.
        stands: whether a leak is claimed.
        tested: whether the absence of a leak says something.
        unit: which targets; values over different ones have no order.
    """

    attack: str
    value: float | None
    low: float | None
    high: float | None
    stands: bool
    tested: bool
    unit: str

    @property
    def known(self) -> bool:
        """True where there is a leak, or something can be said of there being none."""
        return self.stands or self.tested

    @property
    def found(self) -> Literal["outright", "leak", "none", "untested"]:
        """The state of knowledge in a word."""
        if self.value is None:
            return "outright"
        return "leak" if self.stands else "none" if self.tested else "untested"

    @property
    def grade(self) -> int:
        """0 for no leak, 1 for one, 2 for what is said outright."""
        return 2 if self.value is None else int(self.stands)

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the interval, or twice the value; infinite for what is said outright."""
        if self.value is None:
            return float("inf"), float("inf")
        return (self.value, self.value) if self.low is None or self.high is None else (self.low, self.high)


@dataclass(frozen=True)
class Objectives:
    """The figures that uploads are compared by.

    Attributes:
        effects: by measure; those that were not attacked are missing.
        costs: by name, each to be minimised; those that are not known are missing.
        may_dominate: whether it may be said to dominate another one.
    """

    effects: Mapping[str, Effect]
    costs: Mapping[str, float]
    may_dominate: bool = True


def dominates(objectives: Objectives, two: Objectives) -> bool:
    """Return true where ``objectives`` is at least as good in everything that is known of either, and better in something.

    What is inconclusive, or was not attacked at all, is not known to be as good as anything.
    """
    if not objectives.may_dominate or objectives.costs.keys() != two.costs.keys():
        return False
    measures = objectives.effects.keys() | two.effects.keys()
    orders = [_order(objectives.effects.get(name), two.effects.get(name)) for name in measures]
    orders += [_sign(objectives.costs[name], two.costs[name]) for name in objectives.costs]
    return all(order is not None and order <= 0 for order in orders) and any((order or 0) < 0 for order in orders)


def undominated(points: Sequence[Objectives]) -> list[bool]:
    """Return for each point whether none of the others dominates it."""
    return [not any(dominates(other, point) for other in points) for point in points]


def _order(effect: Effect | None, two: Effect | None) -> int | None:
    if effect is None or not effect.known:
        return None
    if two is None or not two.known:
        return None if effect.grade else 0
    if effect.grade != two.grade:
        return _sign(effect.grade, two.grade)
    if effect.value is None or two.value is None:
        return 0
    if effect.unit != two.unit:
        return None if effect.grade else 0
    return _sign(effect.value, two.value)


def _sign(value: float, two: float) -> int:
    return (value > two) - (value < two)
