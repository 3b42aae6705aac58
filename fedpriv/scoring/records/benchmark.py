"""``benchmark.json``: speed and memory on one machine, beside others and beside what the project asks of itself."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Literal, Self

from pydantic import FiniteFloat

from fedpriv.scoring.records.base import RECORD_VERSION
from fedpriv.util.record import Record

Scale = Literal["quick", "full"]

Unit = Literal["CPU seconds", "wall seconds", "MiB"]

Met = Literal["met", "not met", "cannot be told"]
"""Met where every turn meets it, not met where none does."""


class Spread(Record):
    """One value a turn, or a pair of turns.

    Attributes:
        min, median, max: of the values.
        values: in the order in which they were measured.
    """

    min: FiniteFloat
    median: FiniteFloat
    max: FiniteFloat
    values: tuple[FiniteFloat, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Return the spread of some values, one at least."""
        return cls(min=min(values), median=median(values), max=max(values), values=tuple(values))


class Machine(Record):
    """The machine in words: its kind, not its name.

    Attributes:
        processor: as the platform tells it.
        cores: that this process may use.
        vector_unit: that torch uses.
        system: the operating system and its architecture.
        gpu: its name, or empty.
        versions: of Python, torch and fedpriv.
        matrix_gflops, convolution_gflops: billions of operations a second of matrix products and of convolutions, measured
            between the turns, by device; an operation is a multiplication or an addition.
    """

    processor: str
    cores: int
    vector_unit: str
    system: str
    gpu: str
    versions: dict[str, str]
    matrix_gflops: dict[str, Spread]
    convolution_gflops: dict[str, Spread]


class SideFigures(Record):
    """One side of a case.

    Attributes:
        name: of it.
        figure: a turn's, in the case's unit; None where it was not measured.
        rate: of work in a second, where that is told.
        gflop: billions of operations of a turn, as counted; None where they were not.
        not_measured: why, and what to install; empty where it was.
        failed: that is because its work failed.
    """

    name: str
    figure: Spread | None
    rate: Spread | None
    gflop: FiniteFloat | None
    not_measured: str
    failed: bool = False


class Ratio(Record):
    """Ratio of two sides, pair by pair.

    Attributes:
        says: in words, what over what.
        spread: of the pairs.
    """

    says: str
    spread: Spread


class GoalReached(Record):
    """A figure that the project asks of itself.

    Attributes:
        says: it, in words.
        at_most, at_least: one of them, of the first ratio, or without one of the figure.
        verdict: in a word.
        why: it cannot be told; empty otherwise.
    """

    says: str
    at_most: FiniteFloat | None
    at_least: FiniteFloat | None
    verdict: Met
    why: str


class BenchmarkCase(Record):
    """A case of a comparison.

    Attributes:
        comparison, case: names.
        device: ``cpu`` or ``cuda``.
        unit: of the figures.
        rate_unit: of work in the rates, or empty.
        sides: ours first.
        ratios: to each other side that was measured.
        peak_share: of what the machine reached around the same turns, in (0, 1]: the fewest operations that a side was
            counted to do, over our seconds; None where they were not counted.
        goal: or None.
    """

    comparison: str
    case: str
    device: str
    unit: Unit
    rate_unit: str
    sides: tuple[SideFigures, ...]
    ratios: tuple[Ratio, ...]
    peak_share: Spread | None
    goal: GoalReached | None


class BenchmarkRecord(Record):
    """``benchmark.json``.

    Attributes:
        version: of the format of all records.
        scale: ``quick`` or ``full``, which is what the goals are about.
        seed: of images and divisions.
        images: ``random``, or ``folder`` for real ones.
        command: that does it again, without paths.
        machine: that it was measured on.
        cases: in the order in which they were made.
    """

    kind: Literal["benchmark"] = "benchmark"
    version: Literal[3] = RECORD_VERSION
    scale: Scale
    seed: int
    images: Literal["random", "folder"]
    command: str
    machine: Machine
    cases: tuple[BenchmarkCase, ...]
