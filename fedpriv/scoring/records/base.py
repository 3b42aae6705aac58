"""What all records share: frozen, closed to unknown fields, and of one version of the format."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, FiniteFloat

RECORD_VERSION: Literal[2] = 2
"""Of the format of all records. 1 were dictionaries without ``kind``."""

SCORING_VERSION = 1
"""Of what the numbers in a record mean. It changes with a metric, a floor, an interval or a verdict."""

Interval = tuple[FiniteFloat, FiniteFloat]
"""Lower and upper end of a 95 % bootstrap interval."""


class Record(BaseModel):
    """A record or a part of one. Numbers in it are finite wherever they are measured."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class Estimate(Record):
    """A mean over targets.

    Attributes:
        mean: None where there is no value.
        ci95: its interval over clients; None for fewer than two values.
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


class FiniteSummary(Summary):
    """A :class:`Summary` of values that are all finite."""

    mean: FiniteFloat
    median: FiniteFloat
    per_target: tuple[FiniteFloat, ...]
    sum: FiniteFloat
