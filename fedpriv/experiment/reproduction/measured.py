"""The outcome of a claim's study: every cell in its unit with its interval, its floor, and differences between cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedpriv.experiment.reproduction.settings import Place
from fedpriv.pages.baselines import ALONE, same_clients
from fedpriv.pages.claims import Measure
from fedpriv.pages.run_records import RunRecord, load_runs
from fedpriv.pages.study_files import Cell, read_cells
from fedpriv.scoring.floors import LABELS
from fedpriv.scoring.intervals import combine, compare, finite_summary
from fedpriv.scoring.records import Comparison, Estimate, ReconstructionRecord
from fedpriv.scoring.storage import load_metrics

Values = NDArray[np.float64]

ENOUGH_SEEDS = 3
"""Seeds from which on an interval goes over seeds."""


@dataclass(frozen=True)
class PerUnit:
    """Values of one seed of a cell, by whom they are of.

    Attributes:
        values: ``(n,)`` in the cell's unit.
        units: ``(n,)`` client numbers.
        weights: ``(n,)`` by which the mean weighs; None for equal ones.
    """

    values: Values
    units: NDArray[np.int64]
    weights: Values | None = None


@dataclass(frozen=True)
class StudyOutcome:
    """The results of a claim's study.

    Attributes:
        folder: of the study.
        labels: name of a cell of the claim -> label of its method in the study.
    """

    folder: Path
    labels: Mapping[str, str]

    @cached_property
    def rows(self) -> Mapping[str, dict[int, Cell]]:
        """By label of a method, the finished cells of the study by seed."""
        found: dict[str, dict[int, Cell]] = {}
        for row in read_cells(self.folder):
            if row.status == "done":
                found.setdefault(str(row.method_label), {})[row.seed] = row
        return found

    @cached_property
    def runs(self) -> Mapping[str, RunRecord]:
        """Finished runs by their folder in the study."""
        names = dict.fromkeys(row.run for own in self.rows.values() for row in own.values())
        records = load_runs([self.folder / name for name in names])
        return dict(zip(names, records, strict=True))

    def failures(self) -> tuple[str, ...]:
        """Cells that did not come to their end, a line each."""
        return tuple(
            f"{row.method_label}, seed {row.seed}: {row.error or row.status}"
            for row in read_cells(self.folder)
            if row.status != "done"
        )

    def of(self, place: Place, measure: Measure) -> dict[int, PerUnit]:
        """Return the values of a cell by seed; empty where it has none."""
        found = self.rows.get(self.labels.get(place.name, ""), {})
        each = {seed: self._values(row, measure) for seed, row in found.items()}
        return {seed: values for seed, values in each.items() if values is not None}

    def ended(self, place: Place) -> bool:
        """Tell whether some run of a cell came to its end."""
        return bool(self.rows.get(self.labels.get(place.name, "")))

    def alone(self, place: Place, measure: Measure) -> dict[int, PerUnit]:
        """Return the accuracies of the same clients without any exchange, by seed; empty where they were not trained."""
        if measure.what != "accuracy":
            return {}
        found = self.rows.get(self.labels.get(place.name, ""), {})
        known = {
            (same_clients(run.config), run.config.seed): run for run in self.runs.values() if run.config.method == ALONE
        }
        each = {seed: known.get((same_clients(self.runs[row.run].config), seed)) for seed, row in found.items()}
        first = Measure("accuracy", "after_training", measure.over, measure.when, every=measure.every)
        return {seed: _accuracy(run, first) for seed, run in each.items() if run is not None}

    def floors(self, place: Place, measure: Measure) -> tuple[dict[int, PerUnit], str]:
        """Return the scores of the strongest guess at the very targets, by seed, and its name."""
        found = self.rows.get(self.labels.get(place.name, ""), {})
        records = {seed: record for seed, row in found.items() if (record := self._record(row)) is not None}
        each: dict[int, PerUnit] = {}
        for seed, record in records.items():
            best = record.floor_details.get(record.advantage_db.best_floor)
            summary = (
                {"psnr_db": best.psnr_db, "mse_255": best.mse_255, "ssim": best.ssim}.get(measure.what)
                if best
                else None
            )
            if summary is not None and summary.per_target is not None:
                each[seed] = _targets(record, summary.per_target, measure.every)
        names = dict.fromkeys(records[seed].advantage_db.best_floor for seed in each)
        return each, " or ".join(LABELS.get(name, name) for name in names)

    def grids(self, place: Place) -> tuple[Path, ...]:
        """Return the pictures of a cell's reconstructions, one a seed, from the study's folder."""
        found = self.rows.get(self.labels.get(place.name, ""), {})
        paths = [Path(entry.path) / "grid.png" for row in found.values() for entry in row.attacks]
        return tuple(path for path in paths if (self.folder / path).is_file())

    def _record(self, row: Cell) -> ReconstructionRecord | None:
        done = [entry.path for entry in row.attacks if entry.status == "done"]
        return load_metrics(self.folder / done[0]) if done else None

    def _values(self, row: Cell, measure: Measure) -> PerUnit | None:
        if measure.what == "accuracy":
            return _accuracy(self.runs[row.run], measure)
        if measure.what == "rounds":
            return _rounds(self.runs[row.run], measure)
        record = self._record(row)
        if record is None:
            return None
        summary = {
            "psnr_db": record.metrics.psnr_db,
            "mse_255": record.metrics.mse_255,
            "ssim": record.metrics.ssim,
            "identified": record.metrics.identification_top1,
        }[measure.what]
        return None if summary.per_target is None else _targets(record, summary.per_target, measure.every)


def _targets(record: ReconstructionRecord, values: Sequence[float | None], every: float) -> PerUnit:
    pairs = [(value, t.client) for value, t in zip(values, record.targets, strict=True) if value is not None]
    found = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return PerUnit(found[:, 0] / every, found[:, 1].astype(np.int64))


def _accuracy(run: RunRecord, measure: Measure) -> PerUnit:
    found = run.at(measure.moment)
    curve = found.mean if measure.over == "clients" else found.pooled
    place = int(curve.argmax()) if measure.when == "best" else len(curve) - 1
    values = found.per_client[place] / measure.every
    weights = found.total[place].astype(np.float64) if measure.over == "pooled" else None
    return PerUnit(values, np.arange(len(values)), weights)


def _rounds(run: RunRecord, measure: Measure) -> PerUnit | None:
    found = run.at(measure.moment)
    curve = found.mean if measure.over == "clients" else found.pooled
    there = np.flatnonzero(curve >= (measure.reach or 0.0))
    return PerUnit(np.array([there[0] + 1.0]), np.zeros(1, np.int64)) if len(there) else None


def mean_of(seeds: Mapping[int, PerUnit]) -> Estimate | None:
    """Return the mean over seeds, with an interval over seeds; over clients, or targets' clients, where there is but one."""
    if not seeds:
        return None
    means = [float(np.average(own.values, weights=own.weights)) for own in seeds.values()]
    if len(means) > 1:
        found = finite_summary(means, range(len(means)))
        return Estimate(mean=found.mean, ci95=found.ci95, n=found.n)
    return Estimate(mean=means[0], ci95=None, n=1)


def over_clients(seeds: Mapping[int, PerUnit]) -> Estimate | None:
    """Return the mean over seeds with an interval over clients, seeds combined, for what is of targets."""
    if not seeds:
        return None
    found = combine(
        [
            compare(own.values, own.units.tolist(), measure="images", against="", least=0.0, weights=own.weights)
            for own in seeds.values()
        ]
    )
    return Estimate(mean=found.mean, ci95=found.ci95, n=found.n)


def difference(
    better: Mapping[int, PerUnit], than: Mapping[int, PerUnit], least: float, *, below: bool
) -> Comparison | None:
    """Return the paired difference of two cells; None where no seed has both.

    A seed draws clients anew, so of three seeds and more each is one unit; of fewer, clients are.

    Args:
        better: by seed.
        than: by seed; the clients of a seed are the same in both.
        least: the least effect.
        below: less is better.
    """
    found = [_paired(better[seed], than[seed], least, -1.0 if below else 1.0) for seed in better if seed in than]
    known = [one for one in found if one is not None]
    if not known or len(known) < len(found):
        return None
    if len(known) < ENOUGH_SEEDS:
        return combine(known)
    means = [one.mean for one in known if one.mean is not None]
    return compare(means, range(len(means)), measure="images", against="", least=least)


def units(better: Mapping[int, PerUnit], than: Mapping[int, PerUnit]) -> Literal["clients", "seeds"]:
    """Name the units over which the interval of :func:`difference` goes."""
    return "seeds" if len(set(better) & set(than)) >= ENOUGH_SEEDS else "clients"


def _paired(better: PerUnit, than: PerUnit, least: float, sign: float) -> Comparison | None:
    shared = sorted(set(better.units.tolist()) & set(than.units.tolist()))
    if not shared:
        return None
    pairs = [(_mean_of_unit(better, unit), _mean_of_unit(than, unit)) for unit in shared]
    weights = None if better.weights is None else better.weights[shared]
    values = np.array([sign * (a - b) for a, b in pairs], dtype=np.float64)
    return compare(values, shared, measure="images", against="", least=least, weights=weights)


def _mean_of_unit(values: PerUnit, unit: int) -> float:
    return float(values.values[values.units == unit].mean())
