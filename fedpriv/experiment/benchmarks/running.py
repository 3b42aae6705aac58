"""Comparisons carried out in a folder, case by case and pair by pair; what is measured there is not measured again.

asked.json       what is compared, by which an interrupted one knows its continuation
turns.jsonl      a line a case that warmed up, and a line a pair of turns
benchmark.json   the record, written last
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedpriv.experiment.benchmarks import COMPARISONS
from fedpriv.experiment.benchmarks.contenders import Contender, Figures, contenders
from fedpriv.experiment.benchmarks.contract import Asked, Case
from fedpriv.experiment.benchmarks.judging import FIELD, judged
from fedpriv.experiment.benchmarks.peak import CONVOLUTION, MATRIX, sides
from fedpriv.scoring.records.benchmark import BenchmarkCase, Spread
from fedpriv.util.files import append_lines, read_lines, scratch_folder
from fedpriv.util.listener import Listener, Report

TURNS = "turns.jsonl"

Told = dict[str, Figures]


@dataclass(frozen=True)
class Planned:
    """A case, and the comparison that it is of."""

    comparison: str
    case: Case

    @property
    def key(self) -> list[str]:
        """Its name in the file of turns."""
        return [self.comparison, self.case.name, self.case.device]


def planned(names: Sequence[str], asked: Asked, devices: Sequence[str], pairs: int | None) -> tuple[Planned, ...]:
    """Return the cases of some comparisons on the CPU, and of those that can on other devices.

    Args:
        names: of comparisons.
        asked: of them; its device is left out.
        devices: ``cpu``, ``cuda``.
        pairs: turns of each side, in place of those of the cases.
    """
    found = []
    for name in names:
        comparison = COMPARISONS.load(name)
        for device in devices:
            if device == "cpu" or comparison.on_gpu:
                own = comparison.cases(replace(asked, device=device))
                found += [Planned(name, one if pairs is None else replace(one, pairs=pairs)) for one in own]
    return tuple(found)


@dataclass
class Kept:
    """The turns of a case that are in the file: the first ones, which were not measured, and the pairs."""

    warm: Told
    turns: list[Told]


def kept(folder: Path, cases: Sequence[Planned]) -> list[Kept]:
    """Return the turns of every case that are there, in the order of the cases."""
    lines = read_lines(folder / TURNS)
    found = []
    for one in cases:
        own = [line for line in lines if line["of"] == one.key]
        warm = [line["told"] for line in own if not line["measured"]]
        found.append(Kept(warm[-1] if warm else {}, [line["told"] for line in own if line["measured"]]))
    return found


def measure(folder: Path, cases: Sequence[Planned], listener: Listener) -> None:
    """Measure what is missing, so that an interrupt loses one pair of turns at most."""
    there = kept(folder, cases)
    left = [(one, had) for one, had in zip(cases, there, strict=True) if len(had.turns) < one.case.pairs]
    whole = sum(one.case.pairs for one in cases)
    done = whole - sum(one.case.pairs - len(had.turns) for one, had in left)
    with listener.progress("comparisons") as report, scratch_folder(folder / "scratch") as scratch:
        for place, (one, had) in enumerate(left):
            missing = one.case.pairs - len(had.turns)
            _measure_case(folder, one, missing, scratch / str(place), _Counting(report, done, whole))
            done += missing


@dataclass
class _Counting:
    """Progress of a case among all."""

    report: Report
    done: int
    whole: int

    def at(self, pairs: int, what: str) -> None:
        """Tell of so many pairs."""
        self.report(self.done + pairs, self.whole, what)


def _measure_case(folder: Path, one: Planned, missing: int, scratch: Path, counting: _Counting) -> None:
    """Measure so many pairs of a case, each side in turn, and the machine's peak around them where that is wanted."""
    case = one.case
    beside = sides(case.device) if case.counted else ()
    with contenders((*case.sides, *beside), scratch) as found:
        own = found[: len(case.sides)]
        counting.at(0, f"{one.comparison}: {case.name}, warming up")
        warm = {each.side.name: each.warm_up(counted=case.counted and each in own) for each in found}
        _keep(folder, one, warm, measured=False)
        for pair in range(missing):
            counting.at(pair, f"{one.comparison}: {case.name}")
            told = dict(_turn(found, own, case))
            _keep(folder, one, told, measured=True)
        counting.at(missing, f"{one.comparison}: {case.name}")


def _turn(found: Sequence[Contender], own: Sequence[Contender], case: Case) -> Iterator[tuple[str, Figures]]:
    for each in found:
        told: Mapping[str, Any] = each.measure()
        seconds = told.get(FIELD[case.clock])
        if each not in own and seconds:
            told = {**told, "gflops": (each.side.units or 0.0) / seconds / 1e9}
        yield each.side.name, told


def _keep(folder: Path, one: Planned, told: Mapping[str, Figures], *, measured: bool) -> None:
    append_lines(folder / TURNS, [{"of": one.key, "measured": measured, "told": told}])


def results(folder: Path, cases: Sequence[Planned]) -> tuple[BenchmarkCase, ...]:
    """Return the records of all cases."""
    there = kept(folder, cases)
    return tuple(judged(one.comparison, one.case, had.warm, had.turns) for one, had in zip(cases, there, strict=True))


def peaks(folder: Path, cases: Sequence[Planned]) -> tuple[dict[str, Spread], dict[str, Spread]]:
    """Return the machine's peaks in GFLOP/s by device, of matrix products and of convolutions."""
    found: tuple[dict[str, list[float]], dict[str, list[float]]] = ({}, {})
    for one, had in zip(cases, kept(folder, cases), strict=True):
        for name, values in zip((MATRIX, CONVOLUTION), found, strict=True):
            told = [turn[name]["gflops"] for turn in had.turns if "gflops" in turn.get(name, {})]
            values.setdefault(one.case.device, []).extend(told)
    matrix, convolution = ({device: Spread.of(all_) for device, all_ in values.items() if all_} for values in found)
    return matrix, convolution
