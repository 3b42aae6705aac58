"""From what was counted, trained and attacked to the card of a claim: every value and every statement judged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedpriv.claims import Claim, Measure, Statement
from fedpriv.eval import claims
from fedpriv.eval.claims import (
    ClaimCard,
    ClaimStatement,
    Printed,
    judge_claim,
    judge_counts,
    judge_order,
    judge_value,
)
from fedpriv.eval.floors import LABELS
from fedpriv.eval.intervals import combine, compare, finite_summary
from fedpriv.eval.records import Comparison, Estimate, ReconstructionRecord
from fedpriv.eval.score import versions
from fedpriv.eval.storage import load_metrics
from fedpriv.reports.run_records import ALONE, RunRecord, load_runs, same_clients
from fedpriv.reports.study_files import Cell, read_cells
from fedpriv.study.claim_plan import Asked, Place, Plan, changed, measure_of, places, setting_at, sizes_of

ENOUGH_SEEDS = 3
"""Seeds from which on an interval goes over seeds."""


@dataclass(frozen=True)
class PerUnit:
    """Values ``(n,)`` of one seed of a cell, by client numbers ``(n,)``."""

    values: NDArray[np.float64]
    units: NDArray[np.int64]


Seeds = Mapping[int, PerUnit]


@dataclass(frozen=True)
class Measured:
    """The measured value of a cell, with its floor; both by seed too, where it was trained."""

    mean: Estimate | None = None  # in its unit; None where it was not measured
    floor: Estimate | None = None  # the strongest guess, or the clients alone
    floor_name: str = ""
    why: str = ""  # why nothing was measured
    seeds: Seeds = field(default_factory=dict)
    guesses: Seeds = field(default_factory=dict)  # of the floor


class StudyOutcome:
    """The results of a claim's study: its folder, and by name of a cell of the claim the label of its method there."""

    def __init__(self, folder: Path, labels: Mapping[str, str]) -> None:
        self.folder, self.labels = folder, labels
        rows = read_cells(folder)
        unfinished = [row for row in rows if row.status != "done"]
        self.failures = tuple(f"{row.method_label}, seed {row.seed}: {row.error or row.status}" for row in unfinished)
        self.rows: dict[str, dict[int, Cell]] = {}
        for row in rows:
            if row.status == "done":
                self.rows.setdefault(str(row.method_label), {})[row.seed] = row
        names = dict.fromkeys(row.run for cells in self.rows.values() for row in cells.values())
        runs = load_runs([folder / name for name in names])
        self.runs: Mapping[str, RunRecord] = dict(zip(names, runs, strict=True))
        self.alone = {(same_clients(run.config), run.config.seed): run for run in runs if run.config.method == ALONE}

    def done(self, position: Place) -> Mapping[int, Cell]:
        """Return the finished runs of a cell by seed."""
        return self.rows.get(self.labels.get(position.name, ""), {})

    def grids(self, position: Place) -> list[str]:
        """Return the pictures of a cell's reconstructions, one a seed, from the claim's folder."""
        paths = [Path(entry.path) / "grid.png" for row in self.done(position).values() for entry in row.attacks]
        return [(self.folder.name / path).as_posix() for path in paths if (self.folder / path).is_file()]

    def attacked(self, position: Place) -> Iterator[tuple[int, ReconstructionRecord]]:
        """Yield the attacked seeds of a cell, with the first finished attack of each."""
        for seed, row in self.done(position).items():
            finished = [entry.path for entry in row.attacks if entry.status == "done"]
            if finished:
                yield seed, load_metrics(self.folder / finished[0])


def _of_targets(record: ReconstructionRecord, values: Sequence[float | None], measure: Measure) -> PerUnit:
    pairs = [(value, t.client) for value, t in zip(values, record.targets, strict=True) if value is not None]
    result = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return PerUnit(result[:, 0] / measure.every, result[:, 1].astype(np.int64))


def _of_run(run: RunRecord, measure: Measure) -> PerUnit | None:
    """Return the accuracies of clients, or the rounds until the mean reached one; None where it never did."""
    result = run.at(measure.moment)
    if measure.what == "rounds":
        there = np.flatnonzero(result.mean >= (measure.reach or 0.0))
        return PerUnit(np.array([there[0] + 1.0]), np.zeros(1, np.int64)) if len(there) else None
    values = result.per_client[int(result.mean.argmax()) if measure.when == "best" else -1] / measure.every
    return PerUnit(values, np.arange(len(values)))


def mean_of(seeds: Seeds) -> Estimate | None:
    """Return the mean over seeds, with an interval over seeds where there are several."""
    means = [float(np.mean(seed.values)) for seed in seeds.values()]
    if len(means) < 2:
        return Estimate(mean=means[0], ci95=None, n=1) if means else None
    result = finite_summary(means, range(len(means)))
    return Estimate(mean=result.mean, ci95=result.ci95, n=result.n)


def over_clients(seeds: Seeds) -> Estimate | None:
    """Return the mean over seeds with an interval over clients, seeds combined, for what is of targets."""
    if not seeds:
        return None
    result = combine([_compared(seed.values, seed.units.tolist(), 0.0) for seed in seeds.values()])
    return Estimate(mean=result.mean, ci95=result.ci95, n=result.n)


def _compared(values: NDArray[np.float64], units: Sequence[int], least: float) -> Comparison:
    return compare(values, units, measure="images", against="", least=least)


def difference(better: Seeds, than: Seeds, least: float, *, below: bool) -> Comparison | None:
    """Return the paired difference of two cells; None where no seed has both.

    A seed draws clients anew, so of three seeds and more each is one unit; of fewer, clients are, the same in both cells.
    With ``below`` less is better; ``least`` is the least effect.
    """
    comparisons: list[Comparison] = []
    for seed in [seed for seed in better if seed in than]:
        ahead, behind = better[seed], than[seed]
        shared = sorted(set(ahead.units.tolist()) & set(behind.units.tolist()))
        if not shared:
            return None
        means = [np.array([item.values[item.units == unit].mean() for unit in shared]) for item in (ahead, behind)]
        comparisons.append(_compared((-1.0 if below else 1.0) * (means[0] - means[1]), shared, least))
    if len(comparisons) < ENOUGH_SEEDS:
        return combine(comparisons) if comparisons else None
    gains = [entry.mean for entry in comparisons if entry.mean is not None]
    return _compared(np.array(gains), range(len(gains)), least)


def trained(claim: Claim, position: Place, outcome: StudyOutcome, scale: str) -> Measured:
    """Return the value of a cell that a study trained, or attacked, with its floor: the baseline, or clients alone."""
    measure, inverted = measure_of(claim, position, scale), claim.quantity == "inversion"
    known: dict[int, PerUnit | None] = {}
    floors: dict[int, PerUnit | None] = {}
    names: dict[str, None] = {}
    if inverted:
        for seed, record in outcome.attacked(position):
            best = record.advantage_db.best_floor
            floor = record.floor_details.get(best)
            for table, part in ((known, record.metrics), (floors, floor)):
                values = getattr(getattr(part, measure.what, None), "per_target", None)
                if values is not None:
                    table[seed] = _of_targets(record, values, measure)
            names[LABELS.get(best, best)] = None
    else:
        for seed, row in outcome.done(position).items():
            run = outcome.runs[row.run]
            known[seed] = _of_run(run, measure)
            alone = outcome.alone.get((same_clients(run.config), seed))
            if alone is not None and measure.what == "accuracy":
                floors[seed] = _of_run(alone, replace(measure, moment="after_training"))
                names["local"] = None
    seeds = {seed: item for seed, item in known.items() if item is not None}
    guesses = {seed: item for seed, item in floors.items() if item is not None}
    unreached = measure.what == "rounds" and outcome.done(position)
    why = "not reached in these rounds" if unreached else "its run or attack did not come to its end"
    mean, floor_name = over_clients if inverted else mean_of, " or ".join(names) if guesses else ""
    return Measured(mean(seeds), mean(guesses), floor_name, "" if seeds else why, seeds, guesses)


def card_of(
    name: str,
    claim: Claim,
    requested: Asked,
    plan: Plan,
    results: Mapping[str, Measured],
    *,
    command: str,
    outcome: StudyOutcome | None = None,
    seconds: float = 0.0,
) -> ClaimCard:
    """Judge everything of a claim that was measured, by name of a cell; ``command`` does the same again."""
    untried = Measured(why="not tried")
    cells = tuple(_cell(claim, index, requested, results.get(index.name, untried)) for index in places(claim))
    statements = tuple(_statement(claim, current, plan, results) for current in claim.statements)
    judged = [
        cell.verdict
        for cell in cells
        if cell.verdict and cell.measured and (cell.same_setting or cell.verdict != "cannot be told")
    ]
    grids = [grid for position in plan.tried for grid in outcome.grids(position)] if outcome else []
    return ClaimCard(
        name=name,
        **{key: getattr(claim, key) for key in ("quantity", "title", "paper", "where", "known", "unknown", "reading")},
        scale=requested.scale,
        seeds=plan.seeds,
        setting=_shared(claim, plan, requested.scale),
        changed={} if claim.counted else changed(claim, plan.tried, requested.scale),
        cells=cells,
        statements=statements,
        verdict=judge_claim([*judged, *(statement.verdict for statement in statements)]),
        left_out=(*plan.left_out, *(outcome.failures if outcome else ())),
        command=command,
        versions=versions(),
        seconds=seconds,
        grids=tuple(dict.fromkeys(grids)),
    )


def _cell(claim: Claim, position: Place, requested: Asked, result: Measured) -> claims.ClaimCell:
    column = position.column
    digits = claim.digits if column.digits is None else column.digits
    same_data = claim.counted or is_same_data(claim, position, requested)
    same_setting = claim.counted or (requested.scale == "paper" and same_data)
    verdict, why = None, result.why
    if position.claimed is not None:
        tolerance = claim.tolerance if column.tolerance is None else column.tolerance
        verdict, reason = judge_value(
            Printed(position.claimed, digits, tolerance, claim.counted),
            result.mean,
            same_setting=same_setting,
            floor=result.floor if claim.quantity == "inversion" else None,
            same_data=same_data,
            error=measure_of(claim, position).what == "mse_255",
        )
        why = reason if result.mean is not None or not why else why
    return claims.ClaimCell(
        row=position.row.name,
        column=column.name,
        unit=claim.unit if column.unit is None else column.unit,
        digits=digits,
        claimed=position.claimed,
        spread=position.row.spread[position.number] if position.row.spread else None,
        measured=result.mean,
        floor=result.floor,
        floor_name=result.floor_name,
        same_data=same_data,
        same_setting=same_setting,
        verdict=verdict,
        why=why,
        remark=claim.remarks.get(position.name, ""),
    )


def is_same_data(claim: Claim, position: Place, requested: Asked) -> bool:
    """Tell whether a cell is tried on the paper's data: what a guess scores on smaller images is another figure."""
    printed, here = setting_at(claim, position), setting_at(claim, position, requested.scale)
    replaced = requested.scale != "smoke" and position.column.data in requested.images
    alike = all(printed.get(name) == here.get(name) for name in ("dataset", "image_size"))
    return not replaced and alike and "dataset" in printed


def _statement(claim: Claim, statement: Statement, plan: Plan, results: Mapping[str, Measured]) -> ClaimStatement:
    by_name = {position.name: position for position in places(claim)}
    tried = {index.name for index in plan.tried}
    rows, columns = [row.name for row in claim.rows], [column.name for column in claim.columns]
    along, across = (rows, columns) if statement.along == "rows" else (columns, rows)
    better, below, least = statement.better, statement.order == "below", statement.least
    sign = -1.0 if below else 1.0
    orders: list[claims.ClaimedOrder] = []
    compared: list[Comparison | None] = []
    ahead: list[Measured] = []
    others = statement.than or [name for name in along if name != better]
    for within, than in product(statement.within or across, others):
        pairs = [(name, within) if statement.along == "rows" else (within, name) for name in (better, than)]
        names = [" | ".join(pair) for pair in pairs]
        claimed = [by_name[name].claimed for name in names]
        if not tried & set(names) or (claim.dash == "failed" and None in claimed):
            continue
        here, there = (results.get(name, Measured()) for name in names)
        order = claims.ClaimedOrder(
            within=within,
            better=better,
            than=than,
            difference=None,
            ci95=None,
            n=0,
            over="seeds" if len(set(here.seeds) & set(there.seeds)) >= ENOUGH_SEEDS else "clients",
            claimed=None if claimed[0] is None or claimed[1] is None else sign * (claimed[0] - claimed[1]),
        )
        if claim.counted:
            counts = [items.mean.mean for items in (here, there) if items.mean and items.mean.mean is not None]
            if len(counts) == 2:
                order = order.model_copy(update={"difference": sign * (counts[0] - counts[1]), "n": 2})
        else:
            gap = difference(here.seeds, there.seeds, least, below=below)
            compared.append(gap)
            ahead.append(here)
            if gap is not None:
                order = order.model_copy(update={"difference": gap.mean, "ci95": gap.ci95, "n": gap.n_clients})
        orders.append(order)
    verdict, why = judge_counts(orders, least) if claim.counted else judge_order(orders, compared, least)
    if verdict == "holds" and claim.quantity == "inversion":
        gains = [difference(item.seeds, item.guesses, 0.0, below=below) for item in ahead]
        if not all(gain is not None and gain.ci95 is not None and gain.ci95[0] > 0 for gain in gains):
            verdict, why = "below the floor", f"so it is, but {better} is no nearer than a guess without the upload"
    every, covered = len(statement.within or across), len({entry.within for entry in orders})
    partly = f"tried in {covered} of {every}" if covered < every else ""
    reasons = "; ".join(part for part in (why, partly) if part)
    return ClaimStatement(text=statement.text, least=least, orders=tuple(orders), verdict=verdict, why=reasons)


def _shared(claim: Claim, plan: Plan, scale: str) -> dict[str, str]:
    """Return the settings that all tried cells share, in words."""
    each = [
        sizes_of(claim, position) if claim.counted else setting_at(claim, position, scale) for position in plan.tried
    ]
    names = [name for name in each[0] if name != "option"]
    return {name: str(each[0][name]) for name in names if all(item.get(name, ...) == each[0][name] for item in each)}
