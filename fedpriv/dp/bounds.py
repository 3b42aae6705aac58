"""Lower bounds on epsilon from guesses at which canaries are in, and the rules of guessing that they rest on.

Two bounds are for canaries whose releases are independent of each other:

- :func:`threshold_epsilon`: Clopper-Pearson limits of both error rates, and the definition of differential privacy
  (Jagielski, Ullman and Oprea 2020; Nasr et al. 2021, arXiv 2101.04535): TPR <= e^epsilon FPR + delta.
- :func:`gaussian_threshold_epsilon`: the same limits against the trade-off curve of a Gaussian mechanism (Dong, Roth and
  Su 2019, equation 6; Nasr et al. 2023, arXiv 2302.07956): mu >= Phi^-1(TPR) - Phi^-1(FPR).

Two are for canaries of one run, which may depend on each other through all but the coins by which they are in:

- :func:`one_run_epsilon`: Steinke, Nasr and Jagielski 2023 (arXiv 2305.08846), theorem 5.2.
- :func:`one_run_gaussian_epsilon`: Mahloujifar, Melis and Chaudhuri 2024 (arXiv 2410.22235), algorithm 2, with the
  trade-off curve of a Gaussian mechanism.

Each is above the true epsilon with probability ``alpha`` at most, for a rule that was chosen without looking at the outcome:
:func:`from_part` and :func:`over_ladder` choose so. The Gaussian ones hold for mechanisms whose trade-off curve is Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, expit, ndtr, ndtri  # type: ignore[import-untyped]

from fedpriv.algebra.gaussian_mechanism import gaussian_epsilon
from fedpriv.scoring.intervals import clopper_pearson

Scores = NDArray[np.float64]
"""``(n,)`` scores; canaries that are in are expected to have the higher ones."""

Coins = NDArray[np.bool_]

CHOOSING: Final = 1 / 3
"""Share of canaries that choose the threshold."""

LEAST_GUESSES: Final = 8
"""Of the ladder's lowest rung; fewer right guesses are no evidence at any usual alpha."""


@dataclass(frozen=True)
class Guesses:
    """Outcome of one rule that calls canaries "in".

    Attributes:
        hits: canaries that are in and were called so.
        included: canaries that are in.
        false: canaries that were left out and were called in.
        left_out: canaries that were left out.
    """

    hits: int
    included: int
    false: int
    left_out: int

    @property
    def reversed(self) -> Guesses:
        """The rule that calls "out" what this one does not call in, with the parts of in and out exchanged."""
        return Guesses(self.left_out - self.false, self.left_out, self.included - self.hits, self.included)


Bound = Callable[[Guesses, float, float], float]
"""(outcome, alpha, delta) -> epsilon >= 0 that the mechanism has at least, but for a share alpha of all audits."""


class GrowingBound(Protocol):
    """A bound that is handed what is known to be reached already, and then only looks for more."""

    def __call__(self, guesses: Guesses, alpha: float, delta: float, known: float = 0.0) -> float:
        """Return the bound, ``known`` at least."""


# ---------------------------------------------------------------- bounds


def threshold_epsilon(guesses: Guesses, alpha: float, delta: float) -> float:
    """Return ln((TPR - delta) / FPR) at the limits of both rates, each at alpha / 2; 0 where nothing is shown."""
    least, most = _limits(guesses, alpha)
    return max(0.0, math.log(least - delta) - math.log(most)) if least > delta else 0.0


def gaussian_threshold_epsilon(guesses: Guesses, alpha: float, delta: float) -> float:
    """Return epsilon of the weakest Gaussian mechanism whose error rates can be those observed, limits at alpha / 2 each."""
    least, most = _limits(guesses, alpha)
    return _of_gaussian(float(ndtri(least) - ndtri(most)), delta)


def one_run_epsilon(guesses: Guesses, alpha: float, delta: float, known: float = 0.0) -> float:
    """Return the least epsilon under which so many correct guesses have probability alpha or more."""
    return _largest(lambda epsilon: alpha - one_run_p_value(guesses, epsilon, delta), known)


def one_run_p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """Return a bound on the probability of so many correct guesses, or more, under (epsilon, delta).

    Steinke et al. 2023, theorem 5.2: with W binomial of r guesses and probability e^epsilon / (1 + e^epsilon), and v of
    them correct, P(W >= v) + 2 m delta max_i P(v - i <= W < v) / i. A canary that is not called in is abstained from.
    """
    number, correct = guesses.hits + guesses.false, guesses.hits
    right = float(expit(epsilon))
    tail = 1.0 if correct <= 0 else float(betainc(correct, number - correct + 1, right))
    if not delta or not correct:
        return tail
    steps = np.arange(1, correct + 1)
    lower = np.append(betainc(correct - steps[:-1], number - correct + steps[:-1] + 1, right), 1.0)
    canaries = guesses.included + guesses.left_out
    return min(1.0, tail + 2 * canaries * delta * float(((lower - tail) / steps).max()))


def one_run_gaussian_epsilon(guesses: Guesses, alpha: float, delta: float, known: float = 0.0) -> float:
    """Return epsilon of the least noisy Gaussian mechanism that the outcome rules out."""
    reached = gaussian_mu(known, delta)
    mu = _largest(lambda mu: one_run_gaussian_excess(guesses, mu, alpha), reached)
    return known if mu == reached else _of_gaussian(mu, delta)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu whose Gaussian mechanism has at most this epsilon."""
    return 0.0 if epsilon <= 0 else _largest(lambda mu: epsilon - _of_gaussian(mu, delta), 0.0)


def one_run_gaussian_excess(guesses: Guesses, mu: float, alpha: float) -> float:
    """Return by how much the least probability of guessing, at level alpha, exceeds what there is: > 0 rules mu out.

    Mahloujifar et al. 2024, algorithm 2: with c correct among c' guesses on m canaries, r_c = alpha c / m and
    h_c = alpha (c' - c) / m; downwards h_i = max(h_(i+1), f(r_(i+1))) and r_i = r_(i+1) + i / (c' - i) (h_i - h_(i+1)),
    where f is the inverse of the blow-up function, Phi(Phi^-1(r) - mu). Possible are r_0 + h_0 <= c' / m.
    """
    number, correct, canaries = guesses.hits + guesses.false, guesses.hits, guesses.included + guesses.left_out
    right, wrong = alpha * correct / canaries, alpha * (number - correct) / canaries
    for i in range(correct - 1, -1, -1):
        higher = max(wrong, float(ndtr(ndtri(right) - mu)))
        if higher == wrong:
            break
        right, wrong = min(1.0, right + i / (number - i) * (higher - wrong)), higher
    return right + wrong - number / canaries


def _limits(guesses: Guesses, alpha: float) -> tuple[float, float]:
    """Return the least TPR and the largest FPR, each at alpha / 2."""
    low, _ = clopper_pearson(guesses.hits / guesses.included, guesses.included, alpha / 2)
    _, high = clopper_pearson(guesses.false / guesses.left_out, guesses.left_out, alpha / 2)
    return low, high


def _of_gaussian(mu: float, delta: float) -> float:
    if not mu > 0:
        return 0.0
    return gaussian_epsilon(1 / mu, delta) if math.isfinite(mu) else math.inf


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


# ---------------------------------------------------------------- rules of guessing


def frontier(included: Scores, left_out: Scores) -> tuple[list[Guesses], list[float]]:
    """Return the thresholds at corners of the ROC curve's upper hull with their outcomes, ascending by threshold.

    Thresholds between two corners are beaten by one of them or by a coin between both. The ends, all in and none in, are
    among them. Each part has a canary at least.
    """
    thresholds = np.append(np.unique(np.concatenate([included, left_out])), np.inf)
    missed = np.searchsorted(np.sort(included), thresholds, side="left").tolist()
    cleared = np.searchsorted(np.sort(left_out), thresholds, side="left").tolist()
    corners: list[int] = []
    for index in range(len(thresholds)):
        while len(corners) > 1:
            (x0, y0), (x1, y1), (x2, y2) = ((missed[i], cleared[i]) for i in (*corners[-2:], index))
            if (y1 - y0) * (x2 - x1) > (y2 - y1) * (x1 - x0):  # the last corner lies strictly above the line
                break
            corners.pop()
        corners.append(index)
    ins, outs = len(included), len(left_out)
    return [Guesses(ins - missed[i], ins, outs - cleared[i], outs) for i in corners], thresholds[corners].tolist()


def from_part(bound: Bound, scores: Scores, coins: Coins, alpha: float, delta: float) -> float:
    """Return the bound of one rule, which the first third of the canaries chooses, on the others.

    Rules call in what scores higher, and rest on what they call in, or on what they call out. Where a part lacks canaries of
    either kind nothing is shown. Exact for independent releases.

    Args:
        bound: of one outcome.
        scores: ``(m,)`` of canaries, in the order in which coins were tossed.
        coins: ``(m,)``, whether each is in.
        alpha: in (0, 1).
        delta: in [0, 1).
    """
    end = math.ceil(CHOOSING * len(scores))
    parts = [
        (scores[current][coins[current]], scores[current][~coins[current]])
        for current in (slice(0, end), slice(end, None))
    ]
    if not all(len(side) for part in parts for side in part):
        return 0.0
    corners, thresholds = frontier(*parts[0])
    _, threshold, backwards = max(
        (bound(guesses.reversed if backwards else guesses, alpha, delta), threshold, backwards)
        for guesses, threshold in zip(corners, thresholds, strict=True)
        for backwards in (False, True)
    )
    # The middle between the threshold and the next lower score: of the others some lie just below the one that it is.
    ordered = np.sort(scores[:end])
    position = int(np.searchsorted(ordered, threshold))
    if 0 < position < len(ordered):
        threshold = float((ordered[position - 1] + threshold) / 2)
    included, left_out = parts[1]
    hits, false = int((included >= threshold).sum()), int((left_out >= threshold).sum())
    guesses = Guesses(hits, len(included), false, len(left_out))
    return bound(guesses.reversed if backwards else guesses, alpha, delta)


def over_ladder(bound: GrowingBound, scores: Scores, coins: Coins, alpha: float, delta: float) -> float:
    """Return the largest bound over so many guesses as were fixed before: all canaries, half of them, and so on.

    Half of the guesses are the highest scores, half the lowest; each number is at alpha over their count. Exact for one run,
    whose theorem allows any rule that looks at scores alone. Of equal scores those of earlier canaries count as lower,
    which no coin has a part in. Arguments as of :func:`from_part`.
    """
    ordered = coins[np.argsort(scores, kind="stable")]
    rungs = [len(scores) >> n for n in range(64) if len(scores) >> n >= LEAST_GUESSES]
    best = 0.0
    for number in rungs:
        low = number // 2
        right = int(ordered[len(ordered) - (number - low) :].sum()) + int((~ordered[:low]).sum())
        if 2 * right > number:
            guesses = Guesses(right, int(coins.sum()), number - right, int((~coins).sum()))
            best = bound(guesses, alpha / len(rungs), delta, best)
    return best
