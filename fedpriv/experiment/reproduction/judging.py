"""From what was counted, trained and attacked to the card of a claim: every value and every statement judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedpriv.claims import Claim, Measure, Statement
from fedpriv.experiment.reproduction.plan import Asked, Place, Plan, changed, measure_of, places, setting_at, sizes_of
from fedpriv.experiment.verbs.counting import cost
from fedpriv.pages.baselines import ALONE, same_clients
from fedpriv.pages.run_records import RunRecord, load_runs
from fedpriv.pages.study_files import Cell, read_cells
from fedpriv.scoring.claims import Printed, judge_claim, judge_counts, judge_order, judge_value, order
from fedpriv.scoring.floors import LABELS
from fedpriv.scoring.intervals import combine, compare, finite_summary
from fedpriv.scoring.records import (
    ClaimCard,
    ClaimCell,
    ClaimedOrder,
    ClaimStatement,
    Comparison,
    Estimate,
    ReconstructionRecord,
)
from fedpriv.scoring.score import versions
from fedpriv.scoring.storage import load_metrics
from fedpriv.util.errors import UserError

ENOUGH_SEEDS = 3
"""Seeds from which on an interval goes over seeds."""

_OPERATIONS = {
    "round": "per_client_round",
    "local training": "local_training_per_client_round",
    "ratio": "ratio_to_local",
    "prediction": "prediction_per_image",
}


@dataclass(frozen=True)
class PerUnit:
    """Values of one seed of a cell, by whom they are of.

    Attributes:
        values: ``(n,)`` in the cell's unit.
        units: ``(n,)`` client numbers.
        weights: ``(n,)`` by which the mean weighs; None for equal ones.
    """

    values: NDArray[np.float64]
    units: NDArray[np.int64]
    weights: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Found:
    """The measured value of a cell, with its floor.

    Attributes:
        measured: in its unit; None where it was not tried.
        floor, floor_name: the strongest guess, or the clients alone.
        why: why nothing was measured.
        seeds: values by seed, of trained cells.
        guesses: of the floor, likewise.
    """

    measured: Estimate | None = None
    floor: Estimate | None = None
    floor_name: str = ""
    why: str = ""
    seeds: Mapping[int, PerUnit] = field(default_factory=dict)
    guesses: Mapping[int, PerUnit] = field(default_factory=dict)


@dataclass(frozen=True)
class StudyOutcome:
    """The results of a claim's study: its folder, and by name of a cell of the claim the label of its method there."""

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
        names = dict.fromkeys(row.run for rows in self.rows.values() for row in rows.values())
        return dict(zip(names, load_runs([self.folder / name for name in names]), strict=True))

    @property
    def failures(self) -> tuple[str, ...]:
        """Cells that did not come to their end, a line each."""
        return tuple(
            f"{row.method_label}, seed {row.seed}: {row.error or row.status}"
            for row in read_cells(self.folder)
            if row.status != "done"
        )

    def done(self, place: Place) -> Mapping[int, Cell]:
        """Return the finished runs of a cell by seed."""
        return self.rows.get(self.labels.get(place.name, ""), {})

    def grids(self, place: Place) -> list[str]:
        """Return the pictures of a cell's reconstructions, one a seed, from the claim's folder."""
        paths = [Path(entry.path) / "grid.png" for row in self.done(place).values() for entry in row.attacks]
        return [(self.folder.name / path).as_posix() for path in paths if (self.folder / path).is_file()]

    def of(self, place: Place, measure: Measure) -> dict[int, PerUnit]:
        """Return the values of a cell by seed; empty where it has none."""
        found: dict[int, PerUnit | None] = {}
        for seed, row in self.done(place).items():
            if measure.what in ("accuracy", "rounds"):
                found[seed] = _of_run(self.runs[row.run], measure)
            elif (record := self._record(row)) is not None:
                name = "identification_top1" if measure.what == "identified" else measure.what
                found[seed] = _of_targets(record, getattr(record.metrics, name).per_target, measure)
        return _known(found)

    def alone(self, place: Place, measure: Measure) -> dict[int, PerUnit]:
        """Return the accuracies of the same clients without any exchange, by seed; empty where they were not trained."""
        if measure.what != "accuracy":
            return {}
        first = replace(measure, moment="after_training")
        runs = [run for run in self.runs.values() if run.config.method == ALONE]
        known = {(same_clients(run.config), run.config.seed): _of_run(run, first) for run in runs}
        configs = {seed: self.runs[row.run].config for seed, row in self.done(place).items()}
        return _known({seed: known.get((same_clients(config), seed)) for seed, config in configs.items()})

    def floors(self, place: Place, measure: Measure) -> tuple[dict[int, PerUnit], str]:
        """Return the scores of the strongest guess at the very targets, by seed, and its name."""
        found: dict[int, PerUnit | None] = {}
        names: dict[int, str] = {}
        for seed, row in self.done(place).items():
            if (record := self._record(row)) is not None:
                names[seed] = record.advantage_db.best_floor
                summary = getattr(record.floor_details.get(names[seed]), measure.what, None)
                found[seed] = None if summary is None else _of_targets(record, summary.per_target, measure)
        known = _known(found)
        return known, " or ".join(LABELS.get(name, name) for name in dict.fromkeys(names[seed] for seed in known))

    def _record(self, row: Cell) -> ReconstructionRecord | None:
        done = [entry.path for entry in row.attacks if entry.status == "done"]
        return load_metrics(self.folder / done[0]) if done else None


def _known(found: Mapping[int, PerUnit | None]) -> dict[int, PerUnit]:
    return {seed: values for seed, values in found.items() if values is not None}


def _of_targets(
    record: ReconstructionRecord, values: Sequence[float | None] | None, measure: Measure
) -> PerUnit | None:
    if values is None:
        return None
    pairs = [(value, t.client) for value, t in zip(values, record.targets, strict=True) if value is not None]
    found = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return PerUnit(found[:, 0] / measure.every, found[:, 1].astype(np.int64))


def _of_run(run: RunRecord, measure: Measure) -> PerUnit | None:
    """Return the accuracies of clients, or the rounds until the mean reached one; None where it never did."""
    found = run.at(measure.moment)
    curve = found.mean if measure.over == "clients" else found.pooled
    if measure.what == "rounds":
        there = np.flatnonzero(curve >= (measure.reach or 0.0))
        return PerUnit(np.array([there[0] + 1.0]), np.zeros(1, np.int64)) if len(there) else None
    place = int(curve.argmax()) if measure.when == "best" else len(curve) - 1
    values = found.per_client[place] / measure.every
    weights = found.total[place].astype(np.float64) if measure.over == "pooled" else None
    return PerUnit(values, np.arange(len(values)), weights)


def mean_of(seeds: Mapping[int, PerUnit]) -> Estimate | None:
    """Return the mean over seeds, with an interval over seeds where there are several."""
    means = [float(np.average(own.values, weights=own.weights)) for own in seeds.values()]
    if len(means) < 2:
        return Estimate(mean=means[0], ci95=None, n=1) if means else None
    found = finite_summary(means, range(len(means)))
    return Estimate(mean=found.mean, ci95=found.ci95, n=found.n)


def over_clients(seeds: Mapping[int, PerUnit]) -> Estimate | None:
    """Return the mean over seeds with an interval over clients, seeds combined, for what is of targets."""
    if not seeds:
        return None
    about: dict[str, Any] = {"measure": "images", "against": "", "least": 0.0}
    each = [compare(own.values, own.units.tolist(), **about, weights=own.weights) for own in seeds.values()]
    found = combine(each)
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
    ahead, behind = (np.array([one.values[one.units == unit].mean() for unit in shared]) for one in (better, than))
    weights = None if better.weights is None else better.weights[shared]
    return compare(sign * (ahead - behind), shared, measure="images", against="", least=least, weights=weights)


def counted(claim: Claim, place: Place) -> Found:
    """Return the value of a cell that follows from sizes alone, or the size that is not known."""
    measure, sizes = measure_of(claim, place), sizes_of(claim, place)
    clients = int(sizes.get("clients", 10))
    try:
        (found,) = cost(
            str(place.method), **sizes | ({"operations": True} if measure.what == "operations" else {})
        ).methods
    except UserError as error:
        return Found(why=str(error))
    if measure.what == "operations":
        value: float = found["operations"][_OPERATIONS[measure.operations]]
        if measure.per == "all clients" and measure.operations in ("round", "local training"):
            value *= clients
    else:
        counts: Mapping[str, Any] = found["communication"][measure.count]
        ways = ("upload", "broadcast") if measure.what == "both" else (measure.what,)
        total = sum(counts[f"{way}_{'bytes' if measure.bytes else 'scalars'}_per_round"] for way in ways)
        value = float(total) / (clients if measure.per == "client" else 1)
    return Found(Estimate(mean=value / measure.every, ci95=None, n=1))


def trained(claim: Claim, place: Place, outcome: StudyOutcome, scale: str) -> Found:
    """Return the value of a cell that a study trained, or attacked, with its floor."""
    measure, inverted = measure_of(claim, place, scale), claim.quantity == "inversion"
    seeds = outcome.of(place, measure)
    guesses, name = outcome.floors(place, measure) if inverted else (outcome.alone(place, measure), "local")
    summed = over_clients if inverted else mean_of
    unreached = measure.what == "rounds" and outcome.done(place)
    why = "not reached in these rounds" if unreached else "its run or attack did not come to its end"
    return Found(summed(seeds), summed(guesses), name if guesses else "", "" if seeds else why, seeds, guesses)


def card_of(
    name: str,
    claim: Claim,
    asked: Asked,
    plan: Plan,
    found: Mapping[str, Found],
    *,
    command: str,
    outcome: StudyOutcome | None = None,
    seconds: float = 0.0,
) -> ClaimCard:
    """Judge everything of a claim that was found, by name of a cell; ``command`` does the same again."""
    cells = tuple(_cell(claim, place, asked, found.get(place.name, Found(why="not tried"))) for place in places(claim))
    statements = tuple(_statement(claim, own, plan, found) for own in claim.statements)
    values = [
        cell.verdict
        for cell in cells
        if cell.verdict is not None
        and cell.measured is not None
        and (cell.same_setting or cell.verdict != "cannot be told")
    ]
    grids = [grid for place in plan.tried for grid in outcome.grids(place)] if outcome else []
    return ClaimCard(
        name=name,
        **{key: getattr(claim, key) for key in ("quantity", "title", "paper", "where", "known", "unknown", "reading")},
        scale=asked.scale,
        seeds=plan.seeds,
        setting=_shared(claim, plan, asked.scale),
        changed={} if claim.counted else changed(claim, plan.tried, asked.scale),
        cells=cells,
        statements=statements,
        verdict=judge_claim(values, [one.verdict for one in statements]),
        left_out=(*plan.left_out, *(outcome.failures if outcome else ())),
        command=command,
        versions=versions(),
        seconds=seconds,
        grids=tuple(dict.fromkeys(grids)),
    )


def _cell(claim: Claim, place: Place, asked: Asked, found: Found) -> ClaimCell:
    digits = claim.digits if place.column.digits is None else place.column.digits
    same_data = claim.counted or _same_data(claim, place, asked)
    same_setting = claim.counted or (asked.scale == "paper" and same_data)
    verdict, why = None, found.why
    if place.claimed is not None:
        tolerance = claim.tolerance if place.column.tolerance is None else place.column.tolerance
        printed = Printed(place.claimed, digits, tolerance, claim.counted)
        verdict, told = judge_value(
            printed,
            found.measured,
            same_setting=same_setting,
            floor=found.floor if claim.quantity == "inversion" else None,
            same_data=same_data,
            error=measure_of(claim, place).what == "mse_255",
        )
        why = told if found.measured is not None or not why else why
    spread = place.row.spread[place.number] if place.row.spread else None
    return ClaimCell(
        row=place.row.name,
        column=place.column.name,
        unit=claim.unit if place.column.unit is None else place.column.unit,
        digits=digits,
        claimed=place.claimed,
        spread=spread,
        measured=found.measured,
        floor=found.floor,
        floor_name=found.floor_name,
        same_data=same_data,
        same_setting=same_setting,
        verdict=verdict,
        why=why,
        remark=claim.remarks.get(place.name, ""),
    )


def _same_data(claim: Claim, place: Place, asked: Asked) -> bool:
    """Tell whether a cell is tried on the paper's data: what a guess scores on smaller images is another figure."""
    told, here = setting_at(claim, place), setting_at(claim, place, asked.scale)
    replaced = asked.scale != "smoke" and place.column.data in (asked.images or {})
    alike = all(told.get(name) == here.get(name) for name in ("dataset", "image_size"))
    return not replaced and alike and "dataset" in told


def _statement(claim: Claim, own: Statement, plan: Plan, found: Mapping[str, Found]) -> ClaimStatement:
    by_place = {(place.row.name, place.column.name): place for place in places(claim)}
    tried = {place.name for place in plan.tried}
    rows, columns = [one.name for one in claim.rows], [one.name for one in claim.columns]
    along, across = (rows, columns) if own.along == "rows" else (columns, rows)
    below = own.order == "below"
    sign = -1.0 if below else 1.0
    orders: list[ClaimedOrder] = []
    compared: list[Comparison | None] = []
    ahead: list[Found] = []
    for within, than in product(own.within or across, own.than or [name for name in along if name != own.better]):
        one, other = (
            by_place[(name, within) if own.along == "rows" else (within, name)] for name in (own.better, than)
        )
        failed = claim.dash == "failed" and None in (one.claimed, other.claimed)
        if failed or not {one.name, other.name} & tried:
            continue
        printed = None if one.claimed is None or other.claimed is None else sign * (one.claimed - other.claimed)
        here, there = found.get(one.name, Found()), found.get(other.name, Found())
        empty = ClaimedOrder(
            within=within, better=own.better, than=than, difference=None, ci95=None, n=0, claimed=printed
        )
        if claim.counted:
            values = [each.measured.mean for each in (here, there) if each.measured and each.measured.mean is not None]
            exact = {"difference": sign * (values[0] - values[1]), "n": 2} if len(values) == 2 else {}
            orders.append(empty.model_copy(update=exact))
            continue
        gap = difference(here.seeds, there.seeds, own.least, below=below)
        compared.append(gap)
        ahead.append(here)
        over = units(here.seeds, there.seeds)
        orders.append(empty if gap is None else order(within, own.better, than, gap, printed, over))
    verdict, why = judge_counts(orders, own.least) if claim.counted else judge_order(orders, compared, own.least)
    if verdict == "holds" and claim.quantity == "inversion":
        gains = [difference(one.seeds, one.guesses, 0.0, below=below) for one in ahead]
        if not all(gain is not None and gain.ci95 is not None and gain.ci95[0] > 0 for gain in gains):
            verdict, why = "below the floor", f"so it is, but {own.better} is no nearer than a guess without the upload"
    every = len(own.within or across)
    covered = len({one.within for one in orders})
    partly = f"tried in {covered} of {every}" if covered < every else ""
    return ClaimStatement(
        text=own.text,
        least=own.least,
        orders=tuple(orders),
        verdict=verdict,
        why="; ".join(part for part in (why, partly) if part),
    )


def _shared(claim: Claim, plan: Plan, scale: str) -> dict[str, str]:
    """Return the settings that all tried cells share, in words."""
    each = [sizes_of(claim, place) if claim.counted else setting_at(claim, place, scale) for place in plan.tried]
    names = dict.fromkeys(name for one in each for name in one)
    return {
        name: str(each[0][name])
        for name in names
        if name != "option" and all(name in one and one[name] == each[0][name] for one in each)
    }
