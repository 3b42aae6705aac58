"""Lower bounds on epsilon from guesses at which canaries are in. Each is above the truth with probability ``alpha`` at most.

- :func:`one_run_bound`: Steinke, Nasr and Jagielski 2023 (arXiv 2305.08846), theorem 5.2. Canaries may depend on each other
  through all but their coins.
- :func:`gaussian_bound`: Clopper-Pearson limits of both error rates against the trade-off curve of a Gaussian mechanism
  (Dong, Roth and Su 2019, equation 6; Nasr et al. 2023, arXiv 2302.07956): mu >= Phi^-1(TPR) - Phi^-1(FPR). For
  Gaussian mechanisms whose releases are independent of each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedpriv.defenses.accounting import gaussian_epsilon
from fedpriv.eval.intervals import clopper_pearson

Scores = NDArray[np.float64]  # ``(n,)`` scores; canaries that are in are expected to have the higher ones
Coins = NDArray[np.bool_]

LEAST_GUESSES: Final = 8  # of the ladder's lowest rung; fewer right guesses are no evidence at any usual alpha
CHOOSING: Final = 1 / 3  # share of canaries that choose the threshold of :func:`gaussian_bound`


def one_run_bound(scores: Scores, coins: Coins, alpha: float, delta: float) -> float:
    """Return the largest epsilon shown by numbers of guesses that are fixed before: all canaries, half of them, ...

    Half of the guesses are the highest scores, half the lowest; each number is at alpha over their count. Of equal
    scores those of earlier canaries count as lower, which no coin has a part in. Scores ``(m,)`` are in the order in
    which coins ``(m,)`` were tossed; alpha is in (0, 1), delta in [0, 1).
    """
    ordered = coins[np.argsort(scores, kind="stable")]
    rungs = [len(scores) >> n for n in range(64) if len(scores) >> n >= LEAST_GUESSES]
    best = 0.0
    for number in rungs:
        low = number // 2
        right = int(ordered[len(ordered) - (number - low) :].sum()) + int((~ordered[:low]).sum())
        if 2 * right > number:
            best = one_run_epsilon(right, number, len(scores), alpha / len(rungs), delta, best)
    return best


def one_run_epsilon(right: int, guesses: int, canaries: int, alpha: float, delta: float, known: float = 0.0) -> float:
    """Return the least epsilon, ``known`` at least, under which so many right guesses have probability alpha or more."""
    return _largest(lambda epsilon: alpha - one_run_p_value(right, guesses, canaries, epsilon, delta), known)


def one_run_p_value(right: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Return a bound on the probability of so many right guesses, or more, under (epsilon, delta).

    Steinke et al. 2023, theorem 5.2: with W binomial of r guesses and probability e^epsilon / (1 + e^epsilon), and v of
    them right, P(W >= v) + 2 m delta max_i P(v - i <= W < v) / i.
    """
    from scipy.special import betainc, expit  # type: ignore[import-untyped]  # takes half a second to import

    share = float(expit(epsilon))
    tail = 1.0 if right <= 0 else float(betainc(right, guesses - right + 1, share))
    if not delta or not right:
        return tail
    steps = np.arange(1, right + 1)
    lower = np.append(betainc(right - steps[:-1], guesses - right + steps[:-1] + 1, share), 1.0)
    return min(1.0, tail + 2 * canaries * delta * float(((lower - tail) / steps).max()))


def gaussian_bound(scores: Scores, coins: Coins, alpha: float, delta: float) -> float:
    """Return epsilon of the weakest Gaussian mechanism whose error rates can be those observed, limits at alpha / 2 each.

    The first third of the canaries chooses the threshold, the others are judged by it. Arguments as of
    :func:`one_run_bound`.
    """
    end = math.ceil(CHOOSING * len(scores))
    if not all(0 < part.sum() < len(part) for part in (coins[:end], coins[end:])):
        return 0.0
    ordered = np.unique(scores[:end])
    mus = [gaussian_mu(scores[:end], coins[:end], threshold, alpha) for threshold in ordered]
    place = int(np.argmax(mus))
    # The middle to the next lower score: of the others some lie just below the one that it is.
    threshold = float(ordered[max(place - 1, 0) : place + 1].mean())
    mu = gaussian_mu(scores[end:], coins[end:], threshold, alpha)
    return gaussian_epsilon(1 / mu, delta) if mu > 0 else 0.0


def gaussian_mu(scores: Scores, coins: Coins, threshold: float, alpha: float) -> float:
    """Return the distance between means, in standard deviations, that error rates at a threshold show."""
    from scipy.special import ndtri

    rates = [(float((part >= threshold).mean()), len(part)) for part in (scores[coins], scores[~coins])]
    (least, _), (_, most) = (clopper_pearson(rate, number, alpha / 2) for rate, number in rates)
    return float(ndtri(least) - ndtri(most))


def _largest(excess: Callable[[float], float], known: float) -> float:
    """Return where an excess that falls below zero for good does so; ``known`` where it is not above zero there."""
    if excess(known) <= 0:
        return known
    low, high = known, max(1.0, 2 * known)
    while excess(high) > 0:
        low, high = high, 2 * high
        if high > 1e6:  # a larger epsilon is none at all
            return math.inf
    from scipy.optimize import brentq  # type: ignore[import-untyped]  # takes a quarter of a second to import

    return float(brentq(excess, low, high, xtol=1e-7))
