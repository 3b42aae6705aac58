"""Tests of one page made together: Holm's rule, in which a test that cannot reject takes no part of the level."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from fedpriv.scoring.intervals import ASSUMED
from fedpriv.scoring.records import Comparison, Measure

_RATES: tuple[Measure, ...] = ("beyond_3db", "identified", "vectors_identified", "classes")
"""Differences of shares that are 1 at most."""


def holm(p_values: Sequence[float], level: float = 1.0, least: Sequence[float] | None = None) -> list[float]:
    """Return p-values adjusted by Holm's rule, in their order: those that are at most ``level`` are rejected together.

    The rule holds whatever depends on what (Holm 1979, A simple sequentially rejective multiple test procedure). A test
    whose smallest p-value is above its part of the level can never reject, so it needs no part (Tarone 1990, A modified
    Bonferroni method for discrete data, Biometrics 46, 515-522; step by step, Hommel and Krummenauer 1998, Biometrical
    Journal 40, 773-789).

    Args:
        p_values: of n tests.
        level: at which some are rejected; without ``least`` it does not matter.
        least: the smallest p-value that each test could have given, known without its outcome.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    >>> holm([0.01, 0.08, 0.03], 0.05, [0.0, 0.06, 0.0])
    [0.02, 0.08, 0.03]
    """
    known = [0.0] * len(p_values) if least is None else least
    left = sorted(range(len(p_values)), key=p_values.__getitem__)
    apart = sorted(known)
    result, largest = [0.0] * len(p_values), 0.0
    while left:
        parts = 1 + bisect_left(range(1, len(left)), True, key=lambda k: bisect_right(apart, level / k) <= k)
        largest = max(largest, min(1.0, parts * p_values[left[0]]))
        result[left[0]] = largest
        apart.remove(known[left.pop(0)])
    return result


def attainable(comparison: Comparison) -> float:
    """Return the smallest p-value that as many targets of as many clients can give; 0 where there is no such bound.

    A difference of shares is largest where the attack is right for every target and the guess, if it was measured, for none.
    """
    if comparison.measure not in _RATES or comparison.p_value is None:
        return 0.0
    number = max(comparison.n_clients, comparison.n / (1 + ASSUMED * (comparison.n / comparison.n_clients - 1)))
    base = (
        (1 + comparison.least) / 2
        if comparison.by_design is None
        else min(1.0, comparison.by_design + comparison.least)
    )
    return float(min(comparison.p_value, base**number))
