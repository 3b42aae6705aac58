"""How often a bound on epsilon is above the truth, how near it comes, and what verdicts claims of known truth get.

    python benchmarks/calibration/epsilon_bounds.py --audits 1000 --canaries 500 --seed 0

Every audit is of simulated releases of a mechanism whose epsilon is known exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import numpy as np
from rates import Rate, counted, parser, table
from scipy.optimize import brentq

from fedpriv.defenses.accounting import gaussian_epsilon
from fedpriv.dp.bounds import Coins, Scores, gaussian_bound, one_run_bound
from fedpriv.dp.verdict import Design, audit_scores, word
from fedpriv.eval.records import AuditWord, ClaimedPrivacy

Estimate = Callable[[Scores, Coins, float, float], float]
"""(scores, coins, alpha, delta) -> lower bound on epsilon."""


class Mechanism(NamedTuple):
    """A mechanism that answers each canary independently: scores of coins, its least epsilon at a delta."""

    name: str
    scores: Callable[[np.random.Generator, Coins], Scores]
    epsilon: Callable[[float], float]
    gaussian: bool = False


def gaussian(mu: float) -> Mechanism:
    """Noise of standard deviation 1 on answers that are ``mu`` apart."""
    return Mechanism(
        f"Gaussian, mu = {mu:g}",
        lambda rng, coins: mu * coins + rng.standard_normal(len(coins)),
        lambda delta: gaussian_epsilon(1 / mu, delta) if mu else 0.0,
        gaussian=True,
    )


def randomised_response(epsilon: float) -> Mechanism:
    """The coin itself, turned over with probability 1 / (1 + e^epsilon): no mechanism of that epsilon tells more."""

    def scores(rng: np.random.Generator, coins: Coins) -> Scores:
        turned = rng.random(len(coins)) < 1 / (1 + np.exp(epsilon))
        return np.where(turned, ~coins, coins).astype(np.float64)

    return Mechanism(f"randomised response, epsilon = {epsilon:g}", scores, lambda delta: epsilon)


def laplace(epsilon: float) -> Mechanism:
    """Laplace noise of scale 1 / epsilon on answers that are 1 apart."""
    return Mechanism(
        f"Laplace, epsilon = {epsilon:g}",
        lambda rng, coins: coins + rng.laplace(scale=1 / epsilon, size=len(coins)),
        lambda delta: epsilon,
    )


ESTIMATES: dict[str, Estimate] = {
    "one run": one_run_bound,
    "Gaussian": gaussian_bound,
}
"""The Gaussian bound holds for Gaussian mechanisms alone."""


VERDICTS: tuple[AuditWord, ...] = ("contradicted", "not contradicted", "untested")


def verdicts(
    claimed: float, less_noise: float, *, canaries: int, number: int, delta: float, seed: int
) -> list[AuditWord]:
    """Return the verdicts of audits on a Gaussian mechanism that claims an epsilon and has so many times less noise."""
    rng = np.random.default_rng(seed)
    mu = brentq(lambda mu: gaussian_epsilon(1 / mu, delta) - claimed, 1e-3, 100)
    design = Design(0.95, delta, gaussian=True)
    told = ClaimedPrivacy(
        epsilon=claimed, delta=delta, unit="client", releases=1, neighbours="replaced", implied=claimed
    )
    found = []
    for _ in range(number):
        coins = rng.random(canaries) < 0.5
        audited = audit_scores(gaussian(mu * less_noise).scores(rng, coins), coins, design)
        found.append(word(told, audited.most, audited.control))
    return found


class Found(NamedTuple):
    """Outcome of many audits: audits whose bound is above the truth, epsilon at delta, and the median bound."""

    above: Rate
    truth: float
    median: float


def audits(
    mechanism: Mechanism, estimate: str, *, canaries: int, number: int, alpha: float, delta: float, seed: int
) -> Found:
    """Audit a mechanism so many times, with fresh coins and noise each."""
    rng, truth = np.random.default_rng(seed), mechanism.epsilon(delta)
    bounds = []
    for _ in range(number):
        coins = rng.random(canaries) < 0.5
        bounds.append(ESTIMATES[estimate](mechanism.scores(rng, coins), coins, alpha, delta))
    return Found(counted(bound > truth for bound in bounds), truth, float(np.median(bounds)))


MECHANISMS = (*map(gaussian, (0.0, 1.0, 3.0)), *map(randomised_response, (1.0, 3.0)), laplace(1.0))
DELTA, ALPHA = 1e-5, 0.05


def main() -> None:
    """Print both tables."""
    chosen = parser(__doc__, audits=1000, canaries=500, seed=0).parse_args()
    rows = []
    for mechanism in MECHANISMS:
        for estimate in ESTIMATES:
            if mechanism.gaussian or "Gaussian" not in estimate:
                numbers = {"canaries": chosen.canaries, "number": chosen.audits, "seed": chosen.seed}
                found = audits(mechanism, estimate, alpha=ALPHA, delta=DELTA, **numbers)
                row = {"mechanism": mechanism.name, "bound": estimate, "above the truth (%)": found.above}
                rows.append(row | {"epsilon": f"{found.truth:.2f}", "median bound": f"{found.median:.2f}"})
    print(table(rows))
    rows = []
    for claimed, less, canaries in product((1.0, 4.0, 8.0), (1.0, 3.0, 10.0), (100, 1000)):
        number = chosen.audits // 2
        words = verdicts(claimed, less, canaries=canaries, number=number, delta=DELTA, seed=chosen.seed)
        row = {"claimed": f"{claimed:g}", "noise": "as claimed" if less == 1 else f"1/{less:g} of it"}
        counts = Counter(words)
        each = {f"{one} (%)": Rate(counts[one], len(words)) for one in VERDICTS}
        rows.append(row | {"canaries": f"{canaries:,}"} | each)
    print(table(rows), end="")


if __name__ == "__main__":
    main()
