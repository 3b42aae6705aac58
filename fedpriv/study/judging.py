"""From what was counted, trained and attacked to the card of a claim: every value and every statement judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpriv.claims import Claim, Measure, Moment, Statement
from fedpriv.eval.claims import (
    ClaimCard,
    ClaimCell,
    ClaimedOrder,
    ClaimStatement,
    Printed,
    judge_claim,
    judge_counts,
    judge_order,
    judge_value,
)
from fedpriv.eval.intervals import Means, combine, compare
from fedpriv.eval.records import LABELS, Comparison, Estimate, ReconstructionRecord
from fedpriv.eval.score import versions
from fedpriv.eval.storage import load_metrics
from fedpriv.reports.run_records import ALONE, RunRecord, load_runs, same_clients
from fedpriv.reports.study_files import Cell, read_cells
from fedpriv.study.claim_plan import PAPER, Asked, Place, Plan, changed, measure_of, places, setting_at, sizes_of

ENOUGH_SEEDS = 3  # seeds from which on an interval goes over seeds
OTHER: dict[str, Moment] = {"after_training": "after_broadcast", "after_broadcast": "after_training"}
"""Moments of a round -> the other one."""


@dataclass(frozen=True)
class PerUnit:
    """Values ``(n,)`` of one seed of a cell, by client numbers ``(n,)``."""

    values: NDArray[np.float64]
    units: NDArray[np.int64]


Seeds = Mapping[int, PerUnit]


@dataclass(frozen=True)
class Measured:
    """The measured value of a cell, with its own baseline; all by seed too, where it was trained."""

    mean: Estimate | None = None  # in its unit; None where it was not measured
    baseline: Estimate | None = None  # the strongest guess, or the clients alone
    baseline_name: str = ""
    why: str = ""  # why nothing was measured
    compared: Seeds = field(default_factory=dict)  # what orders go by: advantages of inversions, else values
    failed: Mapping[int, str] = field(default_factory=dict)  # seeds without a value -> the reason


class StudyOutcome:
    """The results of a claim's study: its folder, and by name of a cell of the claim the label of its method there."""

    def __init__(self, folder: Path, labels: Mapping[str, str]) -> None:
        self.folder, self.labels = folder, labels
        self.rows: dict[str, dict[int, Cell]] = {}
        for row in read_cells(folder):
            self.rows.setdefault(str(row.method_label), {})[row.seed] = row
        rows = [row for cells in self.rows.values() for row in cells.values() if row.status == "done"]
        names = list(dict.fromkeys(row.run for row in rows))
        runs = load_runs([folder / name for name in names])
        self.runs: Mapping[str, RunRecord] = dict(zip(names, runs, strict=True))
        self.alone = {(same_clients(run.config), run.config.seed): run for run in runs if run.config.method == ALONE}

    def of(self, position: Place) -> Mapping[int, Cell]:
        """Return the state of the runs of a cell, by seed."""
        return self.rows.get(self.labels.get(position.name, ""), {})

    def others(self, claim: Claim, position: Place, seed: int) -> list[RunRecord | None]:
        """Return the runs of a cell's column in the other rows; None where one did not come to its end."""
        column = [cell for cell in places(claim) if cell.column is position.column and cell.row is not position.row]
        rows = [self.of(cell).get(seed) for cell in column]
        return [None if row is None else self.runs.get(row.run) for row in rows]

    def grids(self, position: Place) -> list[str]:
        """Return the pictures of a cell's reconstructions, one a seed, from the claim's folder."""
        paths = [Path(entry.path) / "grid.png" for row in self.of(position).values() for entry in row.attacks]
        return [(self.folder.name / path).as_posix() for path in paths if (self.folder / path).is_file()]


def _of_attack(record: ReconstructionRecord, measure: Measure) -> tuple[PerUnit, PerUnit]:
    """Return a measure of the reconstructions, and of the baseline at the same targets."""
    parts = record.metrics, record.floors[record.advantage_db.best_floor]
    attack, guess = (getattr(part, measure.what).per_target or () for part in parts)
    rows = zip(attack, guess, (target.client for target in record.targets), strict=True)
    table = np.array([row for row in rows if None not in row], dtype=np.float64).reshape(-1, 3)
    units = table[:, 2].astype(np.int64)
    return PerUnit(table[:, 0] / measure.every, units), PerUnit(table[:, 1] / measure.every, units)


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
    return Means(tuple(range(len(means)))).of(np.array(means))


def over_clients(seeds: Seeds) -> Estimate | None:
    """Return the mean over seeds with an interval over clients, seeds combined, for what is of targets."""
    if not seeds:
        return None
    result = combine([_compared(seed.values, seed.units.tolist(), 0.0) for seed in seeds.values()])
    return Estimate(mean=result.mean, ci95=result.ci95, n=result.n)


def _compared(values: NDArray[np.float64], units: Sequence[int], least: float) -> Comparison:
    return compare(values, units, measure="images", against="", least=least)


def difference(better: Seeds, than: Seeds | None, least: float, *, below: bool) -> Comparison | None:
    """Return the paired difference of two cells, or of one from zero; None where no seed has both.

    A seed draws clients anew, so of three seeds and more each is one unit; of fewer, clients are, the same in both cells.
    With ``below`` less is better; ``least`` is the least effect.
    """
    comparisons: list[Comparison] = []
    for seed in [seed for seed in better if than is None or seed in than]:
        ahead = better[seed]
        behind = PerUnit(np.zeros_like(ahead.values), ahead.units) if than is None else than[seed]
        shared = sorted(set(ahead.units.tolist()) & set(behind.units.tolist()))
        if not shared:
            return None
        means = [np.array([item.values[item.units == unit].mean() for unit in shared]) for item in (ahead, behind)]
        comparisons.append(_compared((-1.0 if below else 1.0) * (means[0] - means[1]), shared, least))
    if len(comparisons) < ENOUGH_SEEDS:
        return combine(comparisons) if comparisons else None
    gains = [entry.mean for entry in comparisons if entry.mean is not None]
    return _compared(np.array(gains), range(len(gains)), least)


def trained(
    claim: Claim, position: Place, outcome: StudyOutcome, scale: str, *, other_moment: bool = False
) -> Measured:
    """Return the value of a cell that a study trained, or attacked, with its own baseline: a guess, or clients alone.

    ``other_moment``: at the moment of a round that the claim does not mean.
    """
    measure, inverted = measure_of(claim, position, scale), claim.quantity == "inversion"
    if other_moment:
        measure = replace(measure, moment=OTHER[measure.moment])
    values: dict[int, PerUnit] = {}
    baselines: dict[int, PerUnit] = {}
    names: dict[str, None] = {}
    failed: dict[int, str] = {}
    for seed, row in outcome.of(position).items():
        finished = [entry.path for entry in row.attacks if entry.status == "done"]
        if row.status != "done" or (inverted and not finished):
            errors = [row.error, *(entry.error for entry in row.attacks)]
            failed[seed] = next((error for error in errors if error), "did not come to its end")
        elif inverted:
            record = load_metrics(outcome.folder / finished[0])
            values[seed], baselines[seed] = _of_attack(record, measure)
            best = record.advantage_db.best_floor
            names[LABELS.get(best, best)] = None
        else:
            run = outcome.runs[row.run]
            value = _of_run(run, measure)
            if value is None:
                failed[seed] = f"{measure.reach:.0%} not reached in {len(run.rounds)} rounds"
                continue
            if measure.what == "ahead":
                others = [other and _of_run(other, measure) for other in outcome.others(claim, position, seed)]
                if not others or None in others:
                    failed[seed] = "it takes the other rows of the column, and one was not run"
                    continue
                ahead = np.all([value.values > other.values for other in others if other], axis=0)
                value = replace(value, values=ahead / measure.every)
            values[seed] = value
            alone = outcome.alone.get((same_clients(run.config), seed))
            local = None if alone is None else _of_run(alone, replace(measure, moment="after_training"))
            if local is not None and measure.what == "accuracy":
                baselines[seed], names["local"] = local, None
    mean, compared = over_clients if inverted else mean_of, values
    if inverted:
        compared = {seed: PerUnit(it.values - baselines[seed].values, it.units) for seed, it in values.items()}
    why = "" if values else "; ".join(dict.fromkeys(failed.values())) or "not run"
    return Measured(mean(values), mean(baselines), " or ".join(names), why, compared, failed)


def card_of(
    name: str,
    claim: Claim,
    requested: Asked,
    plan: Plan,
    results: Mapping[str, Measured],
    guesses: Sequence[str] = (),
    *,
    command: str,
    outcome: StudyOutcome | None = None,
    seconds: float = 0.0,
) -> ClaimCard:
    """Judge everything of a claim that was measured, by name of a cell; ``command`` does the same again."""
    untried = Measured(why="not tried")
    cells = tuple(_cell(claim, index, requested, results.get(index.name, untried)) for index in places(claim))
    statements = tuple(_statement(claim, current, requested, plan, results) for current in claim.statements)
    if outcome is not None and claim.quantity == "accuracy":
        others = {item.name: trained(claim, item, outcome, requested.scale, other_moment=True) for item in plan.tried}
        cells = tuple(
            cell.model_copy(update={"other_moment": {OTHER[measure_of(claim, index).moment]: mean}})
            if (mean := others.get(index.name, untried).mean) is not None
            else cell
            for index, cell in zip(places(claim), cells, strict=True)
        )
        statements = tuple(
            statement.model_copy(update={"other_moment": _statement(claim, current, requested, plan, others).verdict})
            for current, statement in zip(claim.statements, statements, strict=True)
        )
    values = [cell.verdict for cell in cells if cell.verdict and cell.measured]
    if requested.scale != PAPER and not claim.counted:
        values = [word for word in values if word != "not decided"]
    grids = [grid for position in plan.tried for grid in outcome.grids(position)] if outcome else []
    check = requested.scale == "smoke" and not claim.counted
    return ClaimCard(
        name=name,
        **{key: getattr(claim, key) for key in ("quantity", "title", "paper", "where", "known", "unknown")},
        guesses=tuple(guesses),
        scale=requested.scale,
        seeds=plan.seeds,
        setting=_shared(claim, plan, requested.scale),
        changed={} if claim.counted else changed(claim, plan.tried, requested.scale),
        cells=cells,
        statements=statements,
        verdict="pipeline check" if check else judge_claim(values, [statement.verdict for statement in statements]),
        left_out=plan.left_out,
        command=command,
        versions=versions(),
        seconds=seconds,
        grids=tuple(dict.fromkeys(grids)),
    )


def _cell(claim: Claim, position: Place, requested: Asked, result: Measured) -> ClaimCell:
    column = position.column
    digits = claim.digits if column.digits is None else column.digits
    same_data = claim.counted or is_same_data(claim, position, requested)
    same_setting = claim.counted or (requested.scale == PAPER and same_data)
    inverted = claim.quantity == "inversion"
    error = measure_of(claim, position).what == "mse_255"
    gain = difference(result.compared, None, 0.0, below=error) if inverted else None
    verdict, why = None, result.why
    if position.claimed is not None:
        tolerance = claim.tolerance if column.tolerance is None else column.tolerance
        verdict, reason = judge_value(
            Printed(position.claimed, digits, tolerance, claim.counted),
            result.mean,
            same_setting=same_setting,
            baseline=result.baseline if inverted else None,
            same_data=same_data,
            error=error,
            failed=len(result.failed),
        )
        why = reason if result.mean is not None or not why else why
    if requested.scale == "smoke" and not claim.counted and result.mean is not None:
        verdict, why = "pipeline check", ""
    return ClaimCell(
        row=position.row.name,
        column=column.name,
        unit=claim.unit if column.unit is None else column.unit,
        digits=digits,
        claimed=position.claimed,
        spread=position.spread,
        measured=result.mean,
        baseline=result.baseline,
        baseline_name=result.baseline_name,
        advantage=None if gain is None else Estimate(mean=gain.mean, ci95=gain.ci95, n=gain.n_clients),
        failed=tuple(f"seed {seed}: {reason}" for seed, reason in result.failed.items()),
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


def _statement(
    claim: Claim, statement: Statement, requested: Asked, plan: Plan, results: Mapping[str, Measured]
) -> ClaimStatement:
    by_name = {position.name: position for position in places(claim)}
    tried = {index.name for index in plan.tried}
    rows, columns = [row.name for row in claim.rows], [column.name for column in claim.columns]
    along, across = (rows, columns) if statement.along == "rows" else (columns, rows)
    better, below, least = statement.better, statement.order == "below", statement.least
    sign = -1.0 if below else 1.0
    orders: list[ClaimedOrder] = []
    comparisons: list[Comparison | None] = []
    compared: dict[str, Measured] = {}
    ahead: list[Measured] = []
    others = statement.than or [name for name in along if name != better]
    for within, than in product(statement.within or across, others):
        names = [f"{name} | {within}" if statement.along == "rows" else f"{within} | {name}" for name in (better, than)]
        claimed = [by_name[name].claimed for name in names]
        if not tried & set(names) or (claim.dash == "failed" and None in claimed):
            continue
        here, there = (results.get(name, Measured()) for name in names)
        compared |= dict(zip(names, (here, there), strict=True))
        ahead.append(here)
        order: dict[str, Any] = {"difference": None, "ci95": None, "n": 0, "claimed": None}
        if claimed[0] is not None and claimed[1] is not None:
            order["claimed"] = sign * (claimed[0] - claimed[1])
        if claim.counted:
            counts = [items.mean.mean for items in (here, there) if items.mean and items.mean.mean is not None]
            order |= {"difference": sign * (counts[0] - counts[1]), "n": 2} if len(counts) == 2 else {}
        else:
            # Seeds that both cells have, where one failed under others, would favour the one that fails.
            whole = not here.failed and not there.failed
            gap = difference(here.compared, there.compared, least, below=below) if whole else None
            comparisons.append(gap)
            order["over"] = "seeds" if len(set(here.compared) & set(there.compared)) >= ENOUGH_SEEDS else "clients"
            order |= {} if gap is None else {"difference": gap.mean, "ci95": gap.ci95, "n": gap.n_clients}
        orders.append(ClaimedOrder(within=within, better=better, than=than, **order))
    same = all(requested.scale == PAPER and is_same_data(claim, by_name[name], requested) for name in compared)
    verdict, why = (
        judge_counts(orders, least) if claim.counted else judge_order(orders, comparisons, least, same_setting=same)
    )
    nearer = all((measure_of(claim, by_name[name]).what == "mse_255") == below for name in compared)
    if verdict == "holds" and claim.quantity == "inversion" and nearer:
        gains = [difference(item.compared, None, 0.0, below=below) for item in ahead]
        ends = [(0.0, 0.0) if gain is None or gain.ci95 is None else gain.ci95 for gain in gains]
        if any(high < 0 for _, high in ends):
            verdict, why = "below the baseline", f"so it is, but a guess without the upload is nearer than {better}"
        elif not all(low > 0 for low, _ in ends):
            verdict, why = "not decided", f"so it is, but {better} may be no nearer than a guess without the upload"
    every, covered = len(statement.within or across), len({entry.within for entry in orders})
    lacking = {name.replace(" | ", ", "): len(item.failed) for name, item in compared.items() if item.failed}
    failed = [f"{name}, failed under {number} of {len(plan.seeds)} seeds" for name, number in lacking.items()]
    partly = f"tried in {covered} of {every}" if covered < every else ""
    reasons = "; ".join(part for part in (why, *failed, partly) if part)
    if requested.scale == "smoke" and not claim.counted:
        verdict, reasons = "pipeline check", ""
    return ClaimStatement(text=statement.text, least=least, orders=tuple(orders), verdict=verdict, why=reasons)


def _shared(claim: Claim, plan: Plan, scale: str) -> dict[str, str]:
    """Return the settings that all tried cells share, in words."""
    each = [
        sizes_of(claim, position) if claim.counted else setting_at(claim, position, scale) for position in plan.tried
    ]
    names = [name for name in each[0] if name != "option"]
    return {name: str(each[0][name]) for name in names if all(item.get(name, ...) == each[0][name] for item in each)}
