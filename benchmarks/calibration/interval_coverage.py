"""Coverage of 95 % intervals, for 2 to 20 clients whose targets are alike.

python benchmarks/calibration/interval_coverage.py --repetitions 10000 --seed 0 --workers 2
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
from fedpriv.eval.reasons import FEW_CLIENTS
from numpy.typing import NDArray
from rates import Rate, counted, parser, table
from scipy.special import ndtr, ndtri

from fedpriv.eval.inference_case import Ranked
from fedpriv.eval.intervals import Values, clustered, combine, compare
from fedpriv.util.seeds import derive_seed

CLIENTS = (2, 3, 4, 5, 6, 8, 10, 15, 20)
TARGETS = 5
"""Of each client, on average."""

SHARES = (0.5, 0.2, 0.1, 0.02)
PAIRS = ((0.5, 0.5), (0.9, 0.5), (0.8, 0.2), (0.1, 0.05), (0.1, 0.0), (0.98, 0.03))
"""Shares of an attack and of its guess, for paired differences."""

SEEDS = 3

FAR = 4.0
"""Distance of the tenth of values that lie far off, in standard deviations of the others."""

FAR_OFF = "mean, a tenth of values far off"

SPARED = 10
"""Skewed sizes, and fewer clients than support a claim, are drawn so many times less often."""


Covered = Mapping[tuple[str, bool], Mapping[int, Rate]]
"""(quantity, skewed sizes) -> by number of clients, how often the truth lay in its interval."""


def sizes(clients: int, skewed: bool) -> NDArray[np.int64]:
    """Targets of each client: :data:`TARGETS`, or falling as one over the rank with at least one."""
    if not skewed:
        return np.full(clients, TARGETS)
    ranks = 1 / np.arange(1, clients + 1)
    return np.asarray(np.maximum(1, np.round(ranks / ranks.sum() * TARGETS * clients)), dtype=np.int64)


def coverage(repetitions: int, seed: int, clients: Sequence[int] = CLIENTS) -> Covered:
    """Coverage of means, shares, saturated shares, paired differences, areas, rates at 1 % and combined seeds.

    Values of a client have a correlation of 0.5: normal ones, and 0 or 1 with a chance that differs between clients as a
    beta distribution. Repetitions are for clients of equal size, of whom there are enough for a claim; elsewhere a tenth.
    """
    found: dict[tuple[str, bool], dict[int, Rate]] = {}
    for skewed in (False, True):
        for number in clients:
            rng = np.random.default_rng(derive_seed(seed, "coverage", number, int(skewed)))
            full = number >= FEW_CLIENTS and not skewed
            times = repetitions if full else max(1, repetitions // SPARED)
            trials = [_trial(rng, sizes(number, skewed)) for _ in range(times)]
            for what in trials[0]:
                found.setdefault((what, skewed), {})[number] = counted(trial[what] for trial in trials)
    return found


def _trial(rng: np.random.Generator, of_each: NDArray[np.int64]) -> dict[str, bool]:
    """Draw once, and say of each quantity whether its interval holds the truth."""
    client = np.repeat(np.arange(len(of_each)), of_each)
    units = client.tolist()

    def normal() -> Values:
        spread: Values = (rng.normal(size=len(of_each))[client] + rng.normal(size=len(client))) / 2**0.5
        return spread

    def told(share: float) -> Values:
        if share == 0:
            return np.zeros(len(client))
        own = rng.beta(share, 1 - share, size=len(of_each))  # variance s (1 - s) / 2: a correlation of one half
        return (rng.random(len(client)) < own[client]).astype(np.float64)

    shared = rng.normal(size=len(of_each))[client]  # clients stay, and what is drawn of them differs between seeds
    drawn = [(shared + rng.normal(size=len(client))) / 2**0.5 for _ in range(SEEDS)]
    seeds = [compare(one, units, measure="images", against="guess", least=0.0) for one in drawn]
    held = {"mean": _holds(clustered(normal(), units).interval(), 0), "mean of 3 seeds": _holds(combine(seeds).ci95, 0)}
    far = clustered(normal() + FAR * told(0.1), units).interval()
    held[FAR_OFF] = _holds(far, 0.1 * FAR)
    for share in SHARES:
        held[f"share of {share}"] = _holds(clustered(told(share), units, "share").interval(), share)
    for one, other in PAIRS:
        interval = clustered(told(one) - told(other), units, "difference").interval()
        held[f"difference of shares {one} and {other}"] = _holds(interval, one - other)
    shift = 1 + 0.5 * rng.normal(size=len(of_each))
    scores = [
        np.concatenate([move + rng.normal(size=4 * n), rng.normal(size=4 * n)])
        for move, n in zip(shift, of_each, strict=True)
    ]
    noise = [rng.normal() / 2 + rng.normal(size=8 * n) for n in of_each]
    yes = [np.arange(8 * n) < 4 * n for n in of_each]
    ranked, control = (Ranked.of(one, yes, range(len(of_each))) for one in (scores, noise))
    rates, wide = ranked.rates(), 1.25**0.5  # of members' scores
    area = float(ndtr(1 / (1 + wide**2) ** 0.5))
    beside = ranked.values("auc") - control.values("auc")
    held["AUC"] = _holds(rates.auc.ci95, area)
    held["AUC less that of noise"] = _holds(
        clustered(beside, ranked.unit.tolist(), "difference", ranked.weights).interval(), area - 0.5
    )
    held["found at 1 %"] = _holds(rates.tpr_at_1_percent.ci95, float(ndtr((1 - ndtri(0.99)) / wide)))
    return held


def _holds(interval: tuple[float, float] | None, truth: float) -> bool:
    return interval is not None and interval[0] <= truth <= interval[1]


def coverage_table(covered: Covered) -> str:
    """Coverage in per cent, a row a quantity, a column a number of clients."""
    return table(
        [
            {"95 % interval of": what, "sizes": "skewed" if skewed else "equal"}
            | {f"{k} clients": f"{100 * rate.share:.1f}" for k, rate in rates.items()}
            for (what, skewed), rates in covered.items()
        ]
    )


def main() -> None:
    """Draw for every number of clients, and print the table."""
    chosen = parser(__doc__, repetitions=10000, seed=0, workers=2).parse_args()
    with ProcessPoolExecutor(chosen.workers) as pool:
        each = list(pool.map(partial(coverage, chosen.repetitions, chosen.seed), [(number,) for number in CLIENTS]))
    print(coverage_table({key: {k: v for own in each for k, v in own[key].items()} for key in each[0]}), end="")


if __name__ == "__main__":
    main()
