"""Means with intervals: a percentile bootstrap that resamples clients, because targets of one client are alike.

Source: Efron and Tibshirani 1993, percentile interval; Davison and Hinkley 1997, section 3.8, for whole clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


def summary(values: Sequence[float] | Values, clusters: Sequence[int], rng: np.random.Generator) -> dict[str, Any]:
    """Return ``mean, median, sd, ci95, per_target, n, sum`` of values over targets.

    ``sd`` divides by n - 1 and is None for one value; ``ci95`` is [low, high] or None (see :func:`bootstrap_mean`).
    Infinite values (a feature error against a zero truth) stay in ``per_target`` as None and make the mean None.
    """
    data = np.asarray(values, dtype=np.float64)
    if not np.isfinite(data).all() or len(data) == 0:
        per_target = [float(value) if np.isfinite(value) else None for value in data]
        empty = dict.fromkeys(("mean", "median", "sd", "ci95"))
        return {**empty, "per_target": per_target, "n": len(data), "sum": None}
    interval = bootstrap_mean(data, clusters, rng)
    return {
        "mean": float(data.mean()),
        "median": float(np.median(data)),
        "sd": float(data.std(ddof=1)) if len(data) > 1 else None,
        "ci95": None if interval is None else list(interval),
        "per_target": data.tolist(),
        "n": len(data),
        "sum": float(data.sum()),
    }
