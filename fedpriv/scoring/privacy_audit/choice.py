"""Rules of guessing that bounds rest on, chosen so that looking at the outcome costs what it has to.

- :func:`over_frontier`: the best of all corners of the ROC curve's hull, each at alpha over their number, as jax_privacy's
  auditing has it. The number is taken from the outcome, so that its error rate is observed, not proven
  (benchmarks/calibration/epsilon_bounds.py).
- :func:`from_part`: a part of the canaries chooses the threshold, the others give the bound. Exact for independent releases.
- :func:`over_ladder`: so many guesses as were fixed before, half of them of highest and half of lowest scores, each number
  at alpha over their count. Exact for one run, whose theorem allows any rule that looks at scores alone.
"""

from __future__ import annotations

import math
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from fedpriv.scoring.privacy_audit.bounds import Bound
from fedpriv.scoring.privacy_audit.counts import Scores, Told, beyond, frontier, refuse_unscored

CHOOSING: Final = 1 / 3
"""Share of canaries that choose the threshold."""

LEAST_GUESSES: Final = 8
"""Of the ladder's lowest rung; fewer right guesses are no evidence at any usual alpha."""


class GrowingBound(Protocol):
    """A bound that can be told what is known already, and then only looks for more."""

    def __call__(self, told: Told, alpha: float, delta: float, known: float = 0.0) -> float:
        """Return the bound, ``known`` at least."""


def over_frontier(bound: Bound, included: Scores, left_out: Scores, alpha: float, delta: float) -> float:
    """Return the largest bound over the hull's corners, of rules that call in what scores higher.

    Args:
        bound: of one outcome.
        included: ``(n,)`` scores of canaries that are in.
        left_out: ``(n',)`` of the others.
        alpha: in (0, 1), of all corners together.
        delta: in [0, 1).
    """
    corners, _ = frontier(included, left_out)
    return max(bound(told, alpha / len(corners), delta) for told in corners if told.hits + told.false)


def over_frontier_growing(bound: GrowingBound, included: Scores, left_out: Scores, alpha: float, delta: float) -> float:
    """Return the same for a bound that takes long where it is large: likely corners first."""
    corners, _ = frontier(included, left_out)
    best = 0.0
    for told in sorted(corners, key=lambda one: -_surely_right(one)):
        if told.hits > told.false:
            best = bound(told, alpha / len(corners), delta, best)
    return best


def from_part(bound: Bound, scores: Scores, coins: NDArray[np.bool_], alpha: float, delta: float) -> float:
    """Return the bound of one rule, which the first third of the canaries chooses, on the others.

    Rules call in what scores higher, and rest on what they call in, or on what they call out. Where a part lacks canaries of
    either kind nothing is shown.

    Args:
        bound: of one outcome.
        scores: ``(m,)`` of canaries, in the order in which coins were tossed.
        coins: ``(m,)``, whether each is in.
        alpha: in (0, 1).
        delta: in [0, 1).
    """
    end = math.ceil(CHOOSING * len(scores))
    parts = [(scores[own][coins[own]], scores[own][~coins[own]]) for own in (slice(0, end), slice(end, None))]
    if not all(len(side) for part in parts for side in part):
        return 0.0
    corners, thresholds = frontier(*parts[0])
    rules = [
        (bound(told.reversed if backwards else told, alpha, delta), threshold, backwards)
        for told, threshold in zip(corners, thresholds, strict=True)
        for backwards in (False, True)
    ]
    _, threshold, backwards = max(rules)
    found = beyond(*parts[1], _between(np.sort(scores[:end]), threshold))
    return bound(found.reversed if backwards else found, alpha, delta)


def _between(ordered: Scores, threshold: float) -> float:
    """Return the middle between a threshold and the next lower score: of others some lie just below the one that it is."""
    place = int(np.searchsorted(ordered, threshold))
    return threshold if place in (0, len(ordered)) else float((ordered[place - 1] + threshold) / 2)


def ladder(canaries: int) -> tuple[int, ...]:
    """Return the numbers of guesses that are tried: all canaries, half of them, and so on.

    >>> ladder(100)
    (100, 50, 25, 12)
    """
    found = []
    while canaries >= LEAST_GUESSES:
        found.append(canaries)
        canaries //= 2
    return tuple(found)


def over_ladder(bound: GrowingBound, scores: Scores, coins: NDArray[np.bool_], alpha: float, delta: float) -> float:
    """Return the largest bound over the ladder; arguments as of :func:`from_part`.

    Of equal scores those of earlier canaries count as lower, which no coin has a part in.
    """
    refuse_unscored(scores[coins], scores[~coins])
    ordered = coins[np.argsort(scores, kind="stable")]
    rungs = ladder(len(scores))
    best = 0.0
    for guesses in rungs:
        low = guesses // 2
        high = guesses - low
        right = int(ordered[len(ordered) - high :].sum()) + int((~ordered[:low]).sum())
        told = Told(right, int(coins.sum()), guesses - right, int((~coins).sum()))
        if 2 * right > guesses:
            best = bound(told, alpha / len(rungs), delta, best)
    return best


def _surely_right(told: Told) -> float:
    """Return a lower limit of the share of right guesses, by which corners are ordered."""
    guesses = told.hits + told.false
    return told.hits / guesses - 2 / math.sqrt(guesses) if guesses else -math.inf
