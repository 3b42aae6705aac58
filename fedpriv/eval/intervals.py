"""Means, shares and differences of clustered values, with intervals that cover: targets of one client are alike.

The standard error is CR2 (Bell and McCaffrey 2002, Survey Methodology 28, 169-181): sums of residuals of each client, over
the square root of one less its share. Student's t has their Satterthwaite degrees of freedom under a working correlation
``WORKING`` within clients (Imbens and Kolesár 2016, Review of Economics and Statistics 98, 701-712), K - 1 for K clients of
equal size. Of shares the interval is Clopper and Pearson's on an effective number (Korn and Graubard 1998, Survey
Methodology 24, 193-201). A difference of shares is the share of targets where the attack is right alone less that where the
guess is, with limits made of those of both and of how they go together (Newcombe 1998, Statistics in Medicine 17, 2635-2650;
Zou and Donner 2008, Statistics in Medicine 27, 1693-1702). ``docs/calibration.md`` has the coverage of all of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedpriv.eval.records import ESTIMANDS, Comparison, Estimate, FiniteSummary, Measure, Summary

Values = NDArray[np.float64]
Kind = Literal["mean", "share", "difference"]
"""Of values: of any size, with a mean in [0, 1], or differences of two such."""

WORKING = 0.1
"""Correlation within clients by which degrees of freedom are counted."""

ASSUMED = 0.5
"""Correlation within clients where the values are too much alike to show any."""

BISECTIONS = 28
"""By which a p-value is found, to less than a millionth of itself."""

FEW_DEVIATE = 2
"""Where values of no more clients than this differ from the commonest value, a share is nearly saturated."""

TAIL = 0.025
"""Share of cases that a 95 % interval leaves out on either side."""

SURE = 0.001
"""A guess is surely stronger than the baseline named in advance where chance would make it look so this rarely."""

SAME = 1e-12
"""Values that differ by less are the same."""


@dataclass(frozen=True)
class Clustered:
    """Values of clusters, and where their weighted mean may lie."""

    values: Values  # (n,) finite, n >= 1
    position: NDArray[np.int64]  # (n,) the cluster of each, counted from 0
    weights: Values  # (n,) summing to one
    kind: Kind
    guess: float | None = None  # of differences, the guess's share where it is the same for all values

    @cached_property
    def mean(self) -> float:
        """Weighted mean."""
        return float(self.weights @ self.values)

    @cached_property
    def shares(self) -> Values:
        """Weight of each cluster ``(K,)``."""
        return np.bincount(self.position, weights=self.weights).astype(np.float64)

    @cached_property
    def error(self) -> float:
        """Standard error of the mean: CR2, but never below that of independent values, which few clusters reach by luck."""
        if np.ptp(self.values) < SAME:
            return 0.0
        residuals = self.weights * (self.values - self.mean)
        clustered = (np.bincount(self.position, weights=residuals) ** 2 / (1 - self.shares)).sum()
        independent = (residuals**2 / (1 - self.weights)).sum()
        return float(np.sqrt(max(clustered, independent)))

    @cached_property
    def degrees(self) -> float:
        """Satterthwaite degrees of freedom of the squared error: K - 1 for clusters of equal weight, else fewer."""
        within = np.bincount(self.position, weights=self.weights**2)
        variance = (1 - WORKING) * within + WORKING * self.shares**2
        centred = np.eye(len(self.shares)) - self.shares[:, None]  # from sums of errors to sums of residuals
        root = centred * np.sqrt(variance) / np.sqrt(1 - self.shares)[:, None]
        spread = root @ root.T
        return float(np.trace(spread) ** 2 / np.square(spread).sum())

    def effective(self, correlation: float) -> float:
        """Number of independent values that say as much, where values of a cluster have this correlation."""
        return float(
            1 / ((1 - correlation) * np.square(self.weights).sum() + correlation * np.square(self.shares).sum())
        )

    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the mean; None for one cluster."""
        return None if len(self.shares) < 2 else self.limits(TAIL)

    def limits(self, tail: float) -> tuple[float, float]:
        """Lower and upper limit of the mean, each missed with this chance, below one half; of two or more clusters."""
        from scipy.special import stdtrit  # type: ignore[import-untyped]  # takes half a second to import

        if self.kind == "share":
            return clopper_pearson(self.mean, self.number(tail), tail)
        if self.kind == "difference":
            if self.guess is None:
                return self._of_two_shares(tail)
            low, high = self._share(self.values + self.guess).limits(tail)
            return low - self.guess, high - self.guess
        half = float(stdtrit(self.degrees, 1 - tail)) * self.error
        return self.mean - half, self.mean + half

    def _share(self, values: Values) -> Clustered:
        return Clustered(values, self.position, self.weights, "share")

    @cached_property
    def _sides(self) -> tuple[Clustered, Clustered, float]:
        """Of differences, the values above 0 and those below as shares, and how much the one grows as the other falls."""
        more, less = self._share(np.maximum(self.values, 0)), self._share(np.maximum(-self.values, 0))
        if more.error == 0 or less.error == 0:
            return more, less, max(more.mean, less.mean)  # entirely, where all are on one side
        opposed = (self.error**2 - more.error**2 - less.error**2) / (2 * more.error * less.error)
        return more, less, min(max(opposed, -1.0), 1.0)

    def _of_two_shares(self, tail: float) -> tuple[float, float]:
        more, less, opposed = self._sides
        (low, high), (least, most) = more.limits(tail), less.limits(tail)

        def together(value: float, other: float) -> float:
            return float(np.sqrt(max(0.0, value**2 + other**2 + 2 * opposed * value * other)))

        return (
            self.mean - together(more.mean - low, most - less.mean),
            self.mean + together(high - more.mean, less.mean - least),
        )

    def p_value(self, least: float) -> float | None:
        """One-sided p-value of a mean no larger than ``least``, 1 where it is above one half; None for one cluster.

        Of shares and differences it is the chance at which the lower limit is ``least``.
        """
        if len(self.shares) < 2:
            return None
        from scipy.special import stdtr

        if self.kind == "mean":
            if self.error == 0:  # K clusters lie on one side by chance once in 2**K
                return 0.5 ** len(self.shares) if self.mean > least else 1.0
            return float(stdtr(self.degrees, (least - self.mean) / self.error))
        low, high = -30.0, float(np.log(0.5 - 1e-6))  # logarithms
        if self.limits(float(np.exp(high)))[0] <= least:
            return 1.0
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (low, middle) if self.limits(float(np.exp(middle)))[0] > least else (middle, high)
        return float(np.exp(high))

    def number(self, tail: float) -> float:
        """Effective number of values behind a share: at least about that of clusters, of 0 and 1 at most that of values."""
        from scipy.special import ndtri, stdtrit

        least, most = self.effective(1.0), self.effective(0.0)
        # Of 0 and 1 the mean says the variance, but for that between clusters; other values have to show theirs.
        binary = bool((np.minimum(np.abs(self.values), np.abs(self.values - 1)) < SAME).all())
        usual = float(stdtrit(max(most - 1, 1.0), 1 - tail)) if binary else -float(ndtri(tail))
        wide = usual / float(stdtrit(self.degrees, 1 - tail))
        number = self.mean * (1 - self.mean) * (wide / self.error) ** 2 if self.error > 0 else most
        # Where values of so few clusters deviate from the commonest, the error cannot be trusted.
        values, counts = np.unique(np.round(self.values, 12), return_counts=True)
        others = np.abs(self.values - values[counts.argmax()]) > SAME
        if len(np.unique(self.position[others])) <= FEW_DEVIATE:
            number = min(number, self.effective(ASSUMED))
        return max(number, least)


def clopper_pearson(mean: float, number: float, tail: float = TAIL) -> tuple[float, float]:
    """Return the interval of a share of ``number`` values, which need not be whole; ``tail`` is left out on either side."""
    from scipy.special import betaincinv

    mean = min(max(mean, 0.0), 1.0)
    hits, misses = mean * number, (1 - mean) * number
    low = float(betaincinv(hits, misses + 1, tail)) if hits > 0 else 0.0
    return low, float(betaincinv(hits + 1, misses, 1 - tail)) if misses > 0 else 1.0


def clustered(
    values: Sequence[float] | Values,
    clusters: Sequence[int],
    kind: Kind = "mean",
    weights: Values | None = None,
    guess: float | None = None,
) -> Clustered:
    """Take n finite values together with the n clusters (clients) that they stem from, and their weights (None: equal)."""
    data = np.asarray(values, dtype=np.float64)
    position = np.unique(np.asarray(clusters), return_inverse=True)[1]
    even = np.full(len(data), 1 / len(data)) if weights is None else weights / weights.sum()
    return Clustered(data, position, even, kind, guess)


# ---------------------------------------------------------------- comparisons


KINDS: dict[Measure, Kind] = {"images": "mean", "accuracy": "mean"}
"""Kinds of difference by measure; in the others, differences of shares."""


def compare(
    values: Sequence[float] | Values,
    clusters: Sequence[int],
    *,
    measure: Measure,
    against: str,
    least: float,
    stratum: str = "all",
    weights: Values | None = None,
    guess: float | None = None,
) -> Comparison:
    """Sum up n paired differences (at least one, finite) between an attack and the baseline, positive where it is better.

    Clusters, weights and ``guess`` as of :func:`clustered`, the others as of :class:`fedpriv.eval.records.Comparison`.
    """
    result = clustered(values, clusters, KINDS.get(measure, "difference"), weights, guess)
    return Comparison(
        mean=result.mean,
        ci95=result.interval(),
        n=len(result.values),
        measure=measure,
        stratum=stratum,
        against=against,
        n_clients=len(result.shares),
        least=least,
        p_value=result.p_value(least),
        degrees=result.degrees if len(result.shares) > 1 else None,
    )


def against_guesses(
    gains: Mapping[str, Values],
    named: str | None,
    clusters: Sequence[int],
    *,
    measure: Measure,
    least: float,
    stratum: str = "all",
    weights: Values | None = None,
    shares: Mapping[str, float] | None = None,
) -> Comparison:
    """Compare with the baseline: the guess named in advance, unless another one is surely stronger.

    Of equal guesses the one that luck makes look strongest would make every attack look weaker than it is, and exclude
    leaks that are there. Yet a leak is above each of them: the p-value is the largest over all guesses. Without a name the
    baseline is the strongest, and the p-value its own.

    ``gains`` are by guess ``(n,)`` differences, positive where the attack is better, and ``shares`` those of guesses whose
    share is the same for all values; the others as of :func:`compare`.
    """
    others = dict(gains)
    if named is not None:
        apart = {
            name: clustered(gains[named] - gain, clusters, weights=weights).p_value(0.0) for name, gain in gains.items()
        }
        others = {name: gains[name] for name, p_value in apart.items() if p_value is not None and p_value <= SURE}
        others = others or {named: gains[named]}
    best = min(others, key=lambda name: clustered(others[name], clusters, weights=weights).mean)
    result = compare(
        gains[best],
        clusters,
        measure=measure,
        against=best,
        least=least,
        stratum=stratum,
        weights=weights,
        guess=(shares or {}).get(best),
    )
    for name, gain in gains.items() if named is not None and result.p_value is not None else ():
        other = clustered(gain, clusters, KINDS.get(measure, "difference"), weights)
        p_value = other.p_value(result.least) or 0.0
        if result.mean is not None and other.mean < result.mean and p_value > (result.p_value or 0.0):
            result = result.model_copy(update={"p_value": p_value, "beside": name})
    return result


def combine(comparisons: Sequence[Comparison]) -> Comparison:
    """Several seeds of one comparison, as one: the mean, with an interval for clients and for seeds.

    The square of its half width is the sum of two: the mean of the squares of the seeds' own half widths, not divided by
    their number m, as the clients of another seed hold the same data set and their errors may go together; and the square of
    Student's half width of the m means, with m - 1 degrees of freedom. Each end has its own, since those of shares lie
    unevenly. Degrees of freedom of both are Satterthwaite's. The p-value is no less than the least of a seed, since for few
    clients those are exact; where some are of a harder guess than the interval, it is at least twice their mean, which holds
    however seeds depend on each other (Vovk and Wang 2020, Biometrika 107, 791-808). None where one seed has none.
    """
    first, number = comparisons[0], len(comparisons)
    if number == 1:
        return first
    from scipy.special import stdtr, stdtrit

    means = np.array([one.mean for one in comparisons], dtype=np.float64)
    mean, least = float(means.mean()), max(one.least for one in comparisons)
    shared = {
        "mean": mean,
        "n": sum(item.n for item in comparisons),
        "against": Counter(one.against for one in comparisons).most_common(1)[0][0],
        "n_clients": min(entry.n_clients for entry in comparisons),
        "least": least,
    }
    known = [(one.ci95, one.degrees) for one in comparisons if one.ci95 is not None and one.degrees is not None]
    if len(known) < number:
        return first.model_copy(update=shared | {"ci95": None, "p_value": None, "degrees": None})
    ends, complete = np.array([ends for ends, _ in known], dtype=np.float64).T, min(free for _, free in known)
    clients = np.square(ends - means).mean(1)  # of the lower end and of the upper
    seeds = float(stdtrit(number - 1, 1 - TAIL) ** 2 * means.var(ddof=1) / number)
    halves = np.sqrt(clients + seeds)
    if halves.max() < SAME:
        p_value = max(one.p_value or 0 for one in comparisons)
        return first.model_copy(update=shared | {"ci95": (mean, mean), "p_value": p_value, "degrees": complete})
    share = seeds / float(clients.mean() + seeds)
    degrees = 1 / ((1 - share) ** 2 / complete + share**2 / (number - 1))
    error = float(halves[0] / stdtrit(degrees, 1 - TAIL))
    p_value = float(stdtr(degrees, (least - mean) / error)) if error > 0 else 0.0 if mean > least else 1.0
    each = [one.p_value or 0.0 for one in comparisons]
    p_value = max(p_value, min(1.0, 2 * fmean(each)) if any(one.beside for one in comparisons) else min(each))
    low, high = mean - float(halves[0]), mean + float(halves[1])
    limits = (low, high) if first.measure == "images" else (max(low, -1.0), min(high, 1.0))  # shares differ by no more
    return first.model_copy(update=shared | {"ci95": limits, "p_value": p_value, "degrees": degrees})


def upper_end(item: Comparison, level: float) -> float | None:
    """Return the one-sided upper end of a mean at a level, from its 95 % interval; None where it has none.

    K units without any spread all lie below their mean by chance once in 2**K, so that few of them bound nothing.
    """
    if item.ci95 is None or item.mean is None or item.degrees is None:
        return None
    from scipy.special import stdtrit

    half = item.ci95[1] - item.mean
    if half == 0 and 0.5**item.n_clients > level:
        return None
    return item.mean + float(stdtrit(item.degrees, 1 - level) / stdtrit(item.degrees, 1 - TAIL)) * half


# ---------------------------------------------------------------- summaries


@dataclass(frozen=True)
class Means:
    """Means over this record's targets, with intervals over its clients."""

    units: tuple[int, ...]  # of each target the number of its client, or declared group: the clusters of intervals

    def summary(self, values: Sequence[float] | Values) -> Summary:
        """Return one value a target, summed up; where some are not finite, there is no mean."""
        data = np.asarray(values, dtype=np.float64)
        if np.isfinite(data).all() and len(data):
            return Summary(**dict(self.finite(data)))
        per_target = tuple(float(value) if np.isfinite(value) else None for value in data)
        return Summary(mean=None, median=None, sd=None, ci95=None, per_target=per_target, n=len(data))

    def finite(self, values: Sequence[float] | Values, kind: Kind = "mean") -> FiniteSummary:
        """Return the same of values that are all finite, at least one."""
        result = clustered(values, self.units, kind)
        data = result.values
        return FiniteSummary(
            mean=float(data.mean()),
            median=float(np.median(data)),
            sd=float(data.std(ddof=1)) if len(data) > 1 else None,
            ci95=result.interval(),
            per_target=tuple(data.tolist()),
            n=len(data),
        )

    def of(self, values: Values) -> Estimate:
        """Return mean, interval and n."""
        result = clustered(values, self.units)
        return Estimate(mean=result.mean, ci95=result.interval(), n=len(values))

    def keep(self, rows: Sequence[int]) -> Means:
        """Return the same over some of the targets."""
        return Means(tuple(self.units[row] for row in rows))

    def compare(
        self,
        gains: Mapping[str, Values],
        measure: Measure,
        least: float,
        strata: Sequence[str] = (),
        named: str | None = None,
    ) -> tuple[Comparison, ...]:
        """Compare with the baseline (:func:`against_guesses`) over all targets, and those of one image and of several.

        ``strata`` are of each target one of :data:`fedpriv.eval.records.ESTIMANDS`, apart where there are both. Nothing is
        compared without a guess.
        """
        if not gains or not self.units:
            return ()
        rows = {"all": list(range(len(self.units)))}
        if len(set(strata)) > 1:
            rows |= {name: [row for row, current in enumerate(strata) if current == name] for name in ESTIMANDS}
        return tuple(
            against_guesses(
                {guess: values[chosen] for guess, values in gains.items()},
                named,
                [self.units[row] for row in chosen],
                measure=measure,
                least=least,
                stratum=name,
            )
            for name, chosen in rows.items()
        )
