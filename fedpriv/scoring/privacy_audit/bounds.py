"""Lower bounds on epsilon from one outcome of guessing which canaries are in.

Two bounds are for canaries whose releases are independent of each other:

- :func:`threshold_epsilon`: Clopper-Pearson limits of both error rates, and the definition of differential privacy
  (Jagielski, Ullman and Oprea 2020; Nasr et al. 2021, arXiv 2101.04535): TPR <= e^epsilon FPR + delta.
- :func:`gaussian_threshold_epsilon`: the same limits against the trade-off curve of a Gaussian mechanism (Dong, Roth and
  Su 2019, equation 6; Nasr et al. 2023, arXiv 2302.07956): mu >= Phi^-1(TPR) - Phi^-1(FPR).

Two are for canaries of one run, which may depend on each other through all but the coins by which they are in:

- :func:`one_run_epsilon`: Steinke, Nasr and Jagielski 2023 (arXiv 2305.08846), theorem 5.2.
- :func:`one_run_gaussian_epsilon`: Mahloujifar, Melis and Chaudhuri 2024 (arXiv 2410.22235), algorithm 2, with the
  trade-off curve of a Gaussian mechanism.

Each is wrong, that is above the true epsilon, with probability ``alpha`` at most: for a rule that was chosen without looking
at the outcome. The Gaussian ones hold for mechanisms whose trade-off curve is a Gaussian one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np
from scipy.special import betainc, expit, ndtr, ndtri  # type: ignore[import-untyped]

from fedpriv.algebra.gaussian_mechanism import gaussian_epsilon
from fedpriv.scoring.intervals import clopper_pearson
from fedpriv.scoring.privacy_audit.counts import Told

Bound = Callable[[Told, float, float], float]
"""(outcome, alpha, delta) -> epsilon >= 0 that the mechanism has at least, but for a share alpha of all audits."""

_PRECISION: Final = 1e-7

_MOST: Final = 1e6
"""A larger epsilon is none at all."""


def threshold_epsilon(told: Told, alpha: float, delta: float) -> float:
    """Return ln((TPR - delta) / FPR) at the limits of both rates, each at alpha / 2; 0 where nothing is shown."""
    least, most = _limits(told, alpha)
    return max(0.0, math.log(least - delta) - math.log(most)) if least > delta else 0.0


def gaussian_threshold_epsilon(told: Told, alpha: float, delta: float) -> float:
    """Return epsilon of the weakest Gaussian mechanism whose error rates can be those observed, limits at alpha / 2 each."""
    least, most = _limits(told, alpha)
    return _of_gaussian(float(ndtri(least) - ndtri(most)), delta)


def one_run_epsilon(told: Told, alpha: float, delta: float, known: float = 0.0) -> float:
    """Return the least epsilon under which so many correct guesses have probability alpha or more.

    Args:
        told: whoever is called in is a guess; the others are abstained from.
        alpha: in (0, 1).
        delta: in [0, 1).
        known: epsilon that is known to be reached: returned where this outcome shows no more.
    """
    return _largest(lambda epsilon: alpha - one_run_p_value(told, epsilon, delta), known)


def one_run_p_value(told: Told, epsilon: float, delta: float) -> float:
    """Return a bound on the probability of so many correct guesses, or more, under (epsilon, delta).

    Steinke et al. 2023, theorem 5.2: with W binomial of r guesses and probability e^epsilon / (1 + e^epsilon), and v of
    them correct, P(W >= v) + 2 m delta max_i P(v - i <= W < v) / i.
    """
    guesses, correct = told.hits + told.false, told.hits
    right = float(expit(epsilon))
    tail = _at_least(correct, guesses, right)
    if not delta or not correct:
        return tail
    steps = np.arange(1, correct + 1)
    lower = np.append(betainc(correct - steps[:-1], guesses - correct + steps[:-1] + 1, right), 1.0)
    return min(1.0, tail + 2 * told.canaries * delta * float(((lower - tail) / steps).max()))


def one_run_gaussian_epsilon(told: Told, alpha: float, delta: float, known: float = 0.0) -> float:
    """Return epsilon of the least noisy Gaussian mechanism that the outcome rules out; arguments as of the other."""
    known_mu = gaussian_mu(known, delta)
    found = _largest(lambda mu: one_run_gaussian_excess(told, mu, alpha), known_mu)
    return known if found == known_mu else _of_gaussian(found, delta)


def one_run_gaussian_excess(told: Told, mu: float, alpha: float) -> float:
    """Return by how much the least probability of guessing, at level alpha, exceeds what there is: > 0 rules mu out.

    Mahloujifar et al. 2024, algorithm 2: with c correct among c' guesses on m canaries, r_c = alpha c / m and
    h_c = alpha (c' - c) / m; downwards h_i = max(h_(i+1), f(r_(i+1))) and r_i = r_(i+1) + i / (c' - i) (h_i - h_(i+1)),
    where f is the inverse of the blow-up function, Phi(Phi^-1(r) - mu). Possible are r_0 + h_0 <= c' / m.
    """
    guesses, correct, canaries = told.hits + told.false, told.hits, told.canaries
    right, wrong = alpha * correct / canaries, alpha * (guesses - correct) / canaries
    for i in range(correct - 1, -1, -1):
        higher = max(wrong, float(ndtr(ndtri(right) - mu)))
        if higher == wrong:
            break
        right, wrong = min(1.0, right + i / (guesses - i) * (higher - wrong)), higher
    return right + wrong - guesses / canaries


def _limits(told: Told, alpha: float) -> tuple[float, float]:
    """Return the least TPR and the largest FPR, each at alpha / 2."""
    low, _ = clopper_pearson(told.hits / told.included, told.included, alpha / 2)
    _, high = clopper_pearson(told.false / told.left_out, told.left_out, alpha / 2)
    return low, high


def _at_least(number: int, trials: int, probability: float) -> float:
    """Return P(W >= number) for W binomial."""
    return 1.0 if number <= 0 else float(betainc(number, trials - number + 1, probability))


def _of_gaussian(mu: float, delta: float) -> float:
    if not mu > 0:
        return 0.0
    return gaussian_epsilon(1 / mu, delta) if math.isfinite(mu) else math.inf


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu whose Gaussian mechanism has at most this epsilon."""
    return 0.0 if epsilon <= 0 else _largest(lambda mu: epsilon - _of_gaussian(mu, delta), 0.0)


def _largest(excess: Callable[[float], float], known: float) -> float:
    """Return where an excess that falls below zero for good does so; ``known`` where it is not above zero there."""
    if excess(known) <= 0:
        return known
    low, high = known, max(1.0, 2 * known)
    while excess(high) > 0:
        low, high = high, 2 * high
        if high > _MOST:
            return math.inf
    from scipy.optimize import brentq  # type: ignore[import-untyped]  # takes a quarter of a second to import

    return float(brentq(excess, low, high, xtol=_PRECISION))
