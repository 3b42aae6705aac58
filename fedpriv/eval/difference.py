"""Differences between two results of one name: by how much, with an interval, and whether that is more than noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedpriv.eval.answers import LEVEL, holm
from fedpriv.eval.intervals import TAIL, clustered
from fedpriv.eval.records import Comparison, InferenceResult, ReconstructionRecord

FEW = "no interval: too few clients"
NOISE = "not told from noise"
MORE, LESS = "leaks more", "leaks less"

_SAME_DB = 1e-6
"""Floors of the same images under the same guesses differ by less."""


@dataclass(frozen=True)
class Difference:
    """The second result less the first.

    ``quantity`` is ``PSNR`` in dB, paired, where both attacked the same images, else the ``advantage`` over the baseline in
    dB; ``AUC`` of inferences. ``p_value`` is two-sided, of no difference; None with ``ci95`` where there is one client.
    """

    quantity: str
    before: float
    after: float
    mean: float
    ci95: tuple[float, float] | None
    p_value: float | None


def of_reconstructions(before: ReconstructionRecord, after: ReconstructionRecord) -> Difference:
    """Return the difference of two attacks: paired by image where both attacked the same, else of their advantages.

    The images are the same where data set, clients, classes, numbers of images and floors are, target by target. Two
    advantages are compared as Welch does (Biometrika 34, 1947), each with its own error and degrees of freedom.
    """
    pairs = _pairs(before, after)
    if pairs is not None:
        values = [second - first for first, second, _ in pairs]
        units = [unit for _, _, unit in pairs]
        result = clustered(values, units)
        sides = [result.p_value(0.0), clustered([-value for value in values], units).p_value(0.0)]
        known = [side for side in sides if side is not None]
        first_mean, second_mean = (sum(pair[position] for pair in pairs) / len(pairs) for position in (0, 1))
        p_value = min(1.0, 2 * min(known)) if known else None
        return Difference("PSNR", first_mean, second_mean, result.mean, result.interval(), p_value)
    first, second = _advantage(before), _advantage(after)
    interval, p_value = _welch(first, second)
    current = before.advantage_db.mean, after.advantage_db.mean
    return Difference("advantage", *current, current[1] - current[0], interval, p_value)


def of_inferences(before: InferenceResult, after: InferenceResult) -> Difference:
    """Return the difference of two areas under the ROC curve.

    Its limits are made of those of both (Zou and Donner 2008, Statistics in Medicine 27, 1693-1702), as of independent
    areas; the p-value is a normal one of the limit that faces zero.
    """
    first, second = before.auc, after.auc
    mean = second.value - first.value
    if first.ci95 is None or second.ci95 is None:
        return Difference("AUC", first.value, second.value, mean, None, None)
    down = math.hypot(second.value - second.ci95[0], first.ci95[1] - first.value)
    up = math.hypot(second.ci95[1] - second.value, first.value - first.ci95[0])
    facing = down if mean > 0 else up
    z = abs(mean) / facing * 1.959964 if facing else math.inf * bool(mean)
    p_value = math.erfc(z / math.sqrt(2)) if mean else 1.0
    return Difference("AUC", first.value, second.value, mean, (mean - down, mean + up), p_value)


def separated(differences: Sequence[Difference]) -> list[bool]:
    """Return which differences are more than noise, all of them tested together by Holm's rule."""
    known = [item.p_value for item in differences if item.p_value is not None]
    adjusted = iter(holm(known))
    return [entry.p_value is not None and next(adjusted) <= LEVEL for entry in differences]


def _pairs(before: ReconstructionRecord, after: ReconstructionRecord) -> list[tuple[float, float, int]] | None:
    first, second = (
        {(target.client, target.index, target.label): target for target in current.targets}
        for current in (before, after)
    )
    if before.dataset != after.dataset or first.keys() != second.keys() or before.groups != after.groups:
        return None
    if len(first) < len(before.targets) or len(second) < len(after.targets):
        return None
    for key, entry in first.items():
        other = second[key]
        if entry.n_c != other.n_c or abs(entry.floor_psnr_db - other.floor_psnr_db) > _SAME_DB:
            return None
    return [(item.psnr_db, second[key].psnr_db, before.unit_of(item.client)) for key, item in first.items()]


def _advantage(record: ReconstructionRecord) -> Comparison | None:
    return next((one for one in record.comparisons if (one.measure, one.stratum) == ("images", "all")), None)


def _welch(first: Comparison | None, second: Comparison | None) -> tuple[tuple[float, float] | None, float | None]:
    """Return interval and two-sided p-value of the second mean less the first."""
    from scipy.special import stdtr, stdtrit  # type: ignore[import-untyped]

    variances, degrees, means = [], [], []
    for item in (first, second):
        if item is None or item.mean is None or item.ci95 is None or item.degrees is None:
            return None, None
        half = (item.ci95[1] - item.ci95[0]) / 2
        variances.append((half / float(stdtrit(item.degrees, 1 - TAIL))) ** 2)
        degrees.append(item.degrees)
        means.append(item.mean)
    total, mean = sum(variances), means[1] - means[0]
    if total == 0:  # no spread to tell noise by
        return None, None
    free = total**2 / sum(variance**2 / its for variance, its in zip(variances, degrees, strict=True))
    half = float(stdtrit(free, 1 - TAIL)) * math.sqrt(total)
    return (mean - half, mean + half), float(2 * stdtr(free, -abs(mean) / math.sqrt(total)))
