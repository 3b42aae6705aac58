"""The parts of records: frozen models, closed to unknown fields, of one version of the format."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import FiniteFloat

from fedpriv.util.config import Record

RECORD_VERSION: Literal[4] = 4
"""Of the format of all records."""

SCORING_VERSION = 7
"""Of what the numbers in a record mean. It changes with a metric, a baseline, an interval or a verdict."""

Measure = Literal[
    "images",
    "beyond_3db",
    "identified",
    "vectors",
    "vectors_identified",
    "classes",
    "membership",
    "members_found",
    "property",
    "accuracy",
]
"""Quantities compared with a baseline: PSNR of images, images 3 dB above it, images re-identified among decoys, the error
of recovered vectors, vectors nearest to their own, classes recognised, areas under the curve of membership and of a
property, members found at 1 % false positives; and of no attack, accuracy beside that without any exchange."""

Interval = tuple[FiniteFloat, FiniteFloat]
"""Lower and upper end of a 95 % interval."""

# Least effects: a difference smaller than these is no leak, however sure it is. Records carry theirs.
DECIBELS = 0.5
"""Of mean PSNR above the baseline."""
ERROR_SHARE = 0.1
"""Of a recovered vector's relative error, as a share of the baseline's error."""
IDENTIFIED = 0.05
"""Of a rate (images or vectors re-identified, classes recognised) above what the baseline reaches."""
AUC = 0.55
"""Area under the ROC curve that membership and property inference must exceed."""
FOUND_AT_1_PERCENT = 0.03
"""True-positive rate at 1 % false positives that membership inference must exceed."""


class Estimate(Record):
    """A mean over targets.

    Attributes:
        mean: None where there is no value.
        ci95: its interval over clients; None for fewer than two clients.
        n: number of values, by which means combine.
    """

    mean: FiniteFloat | None
    ci95: Interval | None
    n: int


class Summary(Estimate):
    """One value a target, summed up.

    Attributes:
        median, sd: of the values; sd divides by n - 1. None where some value is not finite, sd also for one value.
        per_target: the values, None for one that is not finite; None where the measure is not of single targets.
        sum: of the values, or None where some is not finite.
        not_measured: why there are no values, or empty.
    """

    median: FiniteFloat | None
    sd: FiniteFloat | None
    per_target: tuple[FiniteFloat | None, ...] | None
    sum: FiniteFloat | None = None
    not_measured: str = ""

    @classmethod
    def nothing(cls, reason: str, **others: object) -> Self:
        """Return a summary of what was not measured, and why; ``others`` are fields beside those of a summary."""
        missing = dict.fromkeys(("mean", "median", "sd", "ci95", "per_target"))
        return cls.model_validate({**missing, "n": 0, "not_measured": reason, **others})


class FiniteSummary(Summary):
    """A :class:`Summary` of values that are all finite."""

    mean: FiniteFloat
    median: FiniteFloat
    per_target: tuple[FiniteFloat, ...]
    sum: FiniteFloat


class Comparison(Estimate):
    """A paired difference, target by target, between an attack and the baseline; positive where the attack is better.

    Every claim that a page makes rests on one of these, so that a page knows how many it makes.

    Attributes:
        measure: the quantity compared.
        stratum: targets by how many images went into each, or ``all``.
        against: the guess that is the baseline, by name.
        n_clients: independent units over which the interval goes.
        least: the least effect that counts, in the unit of the mean.
        p_value: one-sided, of a difference no larger than ``least``; None for fewer than two units.
        degrees: of freedom of the interval, by which seeds are combined; None for fewer than two units.
        by_design: the guess's rate where it follows from how targets and decoys were drawn; None where it was measured.
    """

    measure: Measure
    stratum: str
    against: str
    n_clients: int
    least: FiniteFloat
    p_value: FiniteFloat | None
    degrees: FiniteFloat | None = None
    by_design: FiniteFloat | None = None
