"""The parts of a comparison: cases, and the sides of a case, which take turns in processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Clock = Literal["CPU seconds", "wall seconds", "MiB"]
"""Measure of a turn: CPU seconds of one thread, seconds that pass (of commands, and on a GPU), or memory at its peak."""


@dataclass(frozen=True)
class Asked:
    """A comparison as it is asked for.

    Attributes:
        full: at the size of the figures that the project asks of itself; else the quick one.
        device: ``cpu`` or ``cuda``.
        seed: of everything drawn.
        htfllib: a checkout of HtFLlib, or None.
        images: a folder of images, one folder a class, or None for random ones.
    """

    full: bool
    device: str = "cpu"
    seed: int = 0
    htfllib: str | None = None
    images: str | None = None

    @property
    def clock(self) -> Clock:
        """The measure of work on the device."""
        return "CPU seconds" if self.device == "cpu" else "wall seconds"

    def settings(self, **own: Any) -> dict[str, Any]:
        """Return the settings of a side: its own, the device, the seed, and the images."""
        return {"device": self.device, "seed": self.seed, "images": self.images, **own}


@dataclass(frozen=True)
class Side:
    """One side of a case.

    Attributes:
        name: by which it is told.
        work: ``module:function``, called in a process of its own with settings and turns
            (:class:`fedpriv.experiment.benchmarks.turns.Turns`).
        settings: of the work, as JSON has them.
        anew: a new process for every turn, which then has no turn to warm up in.
        units: of work in a turn, where a rate is told.
    """

    name: str
    work: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    anew: bool = False
    units: float | None = None


@dataclass(frozen=True)
class Goal:
    """A figure that the project asks of itself.

    Attributes:
        says: it, in words.
        at_most, at_least: of the case's first ratio, or where it has none of the first side's figure; one of the two.
        cores: of the machine that it is about, where that matters.
    """

    says: str
    at_most: float | None = None
    at_least: float | None = None
    cores: int | None = None


@dataclass(frozen=True)
class Case:
    """Sides that do the same work, turn by turn.

    Attributes:
        name: unique in its comparison.
        sides: ours first.
        clock: the measure of a turn.
        faster: a ratio is the other side's figure over ours (times as fast), else ours over the other's (share of it).
        unit: of a rate, where sides have ``units``: target-iterations, say.
        device: where it computes.
        pairs: turns of each side that are measured.
        counted: operations of a turn of ours are counted and set beside the machine's peak.
        goal: or None.
        smaller: why a goal is not about this size of the case; empty where it is.
    """

    name: str
    sides: tuple[Side, ...]
    clock: Clock = "CPU seconds"
    faster: bool = True
    unit: str = ""
    device: str = "cpu"
    pairs: int = 3
    counted: bool = False
    goal: Goal | None = None
    smaller: str = ""


QUICK = "of a smaller case; --scale full is the size that it is about"
"""Reason why a goal is not judged at the quick scale."""


@dataclass(frozen=True)
class Comparison:
    """A comparison.

    Attributes:
        summary: in one line.
        cases: of what is asked for.
        on_gpu: its cases can compute on a GPU too.
        peer: the package or checkout that it stands beside; empty where none is needed.
    """

    summary: str
    cases: Callable[[Asked], tuple[Case, ...]]
    on_gpu: bool = False
    peer: str = ""
