"""Means with intervals: a percentile bootstrap that resamples clients, because targets of one client are alike.

Source: Efron and Tibshirani 1993, percentile interval; Davison and Hinkley 1997, section 3.8, for whole clusters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedpriv.scoring.records import Comparison, FiniteSummary, Measure, Summary

Values = NDArray[np.float64]
DRAWS = 2000


def bootstrap_mean(
    values: Sequence[float] | Values,
    clusters: Sequence[int],
    rng: np.random.Generator,
    *,
    level: float = 0.95,
    draws: int = DRAWS,
) -> tuple[float, float] | None:
    """Return an interval of the mean of ``values``, resampling clusters with all their values.

    Args:
        values: n finite numbers.
        clusters: n cluster numbers (clients).
        rng: source of the resamples.
        level: coverage aimed at.
        draws: number of resamples.

    Returns:
        (low, high); None for fewer than two values, which support no interval. Where all values stem from one cluster
        the values themselves are resampled: the interval then speaks of that client only.
    """
    data = np.asarray(values, dtype=np.float64)
    groups = np.asarray(clusters)
    if len(data) != len(groups):
        raise ValueError(f"{len(data)} values but {len(groups)} cluster numbers")
    if len(data) < 2:
        return None
    names, position = np.unique(groups, return_inverse=True)
    if len(names) == 1:
        position = np.arange(len(data))
    sums = np.bincount(position, weights=data)
    counts = np.bincount(position)
    chosen = rng.integers(len(sums), size=(draws, len(sums)))
    means = sums[chosen].sum(axis=1) / counts[chosen].sum(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def cluster_error(values: Values, clusters: Sequence[int]) -> tuple[float, int] | None:
    """Standard error of the mean of clustered values, and the number of clusters.

    CR1: the sums of residuals of each cluster, squared and added up, times K / (K - 1), over n squared. Source: Cameron and
    Miller 2015, A practitioner's guide to cluster-robust inference, section II.

    Args:
        values: n finite numbers.
        clusters: n cluster numbers (clients).

    Returns:
        None for fewer than two clusters.
    """
    names, position = np.unique(np.asarray(clusters), return_inverse=True)
    if len(names) < 2:
        return None
    sums = np.bincount(position, weights=values - values.mean())
    return float(np.sqrt(len(names) / (len(names) - 1) * np.square(sums).sum()) / len(values)), len(names)


def compare(
    values: Sequence[float] | Values,
    clusters: Sequence[int],
    *,
    measure: Measure,
    against: str,
    least: float,
    stratum: str = "all",
) -> Comparison:
    """Paired differences between an attack and the strongest guess, summed up.

    Args:
        values: n finite differences, positive where the attack is better; at least one.
        clusters: n cluster numbers (clients).
        measure: the quantity compared.
        against: the guess by name.
        least: the least effect that counts.
        stratum: the targets compared.
    """
    from scipy.stats import t as student  # type: ignore[import-untyped]  # takes a second to import

    data = np.asarray(values, dtype=np.float64)
    mean, interval, p_value = float(data.mean()), None, None
    error = cluster_error(data, clusters)
    if error is not None:
        size, n_clusters = error
        half = float(student.ppf(0.975, n_clusters - 1)) * size
        interval = (mean - half, mean + half)
        p_value = float(student.sf((mean - least) / size, n_clusters - 1)) if size else float(mean <= least)
    return Comparison(
        mean=mean,
        ci95=interval,
        n=len(data),
        measure=measure,
        stratum=stratum,
        against=against,
        n_clients=len(set(clusters)),
        least=least,
        p_value=p_value,
    )


def summary(values: Sequence[float] | Values, clusters: Sequence[int], rng: np.random.Generator) -> Summary:
    """Return values over targets, summed up; where some are not finite, :class:`Summary` has neither mean nor sum.

    ``sd`` is None for one value, ``ci95`` where :func:`bootstrap_mean` has no interval.
    """
    data = np.asarray(values, dtype=np.float64)
    if np.isfinite(data).all() and len(data):
        return Summary(**dict(finite_summary(data, clusters, rng)))
    per_target = tuple(float(value) if np.isfinite(value) else None for value in data)
    return Summary(mean=None, median=None, sd=None, ci95=None, per_target=per_target, n=len(data))


def finite_summary(
    values: Sequence[float] | Values, clusters: Sequence[int], rng: np.random.Generator
) -> FiniteSummary:
    """Return values that are all finite, at least one, summed up."""
    data = np.asarray(values, dtype=np.float64)
    return FiniteSummary(
        mean=float(data.mean()),
        median=float(np.median(data)),
        sd=float(data.std(ddof=1)) if len(data) > 1 else None,
        ci95=bootstrap_mean(data, clusters, rng),
        per_target=tuple(data.tolist()),
        n=len(data),
        sum=float(data.sum()),
    )
