"""Growth of an attack's leak with its budget: one curve an attack, as picture and as table, from saved records alone.

A single number says how far one budget came. A curve that still rises says that more can be had; one that is flat says
that the attack, not its budget, is what limits it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpriv.pages.curves import house_style, open_axes, svg_text
from fedpriv.pages.labels import upload_title
from fedpriv.scoring.convergence import convergence
from fedpriv.scoring.floors import CONTROL, LABELS, SHUFFLED, blind_floors
from fedpriv.scoring.ranking import budget_value, by_budget, stage_name
from fedpriv.scoring.records import ReconstructionRecord
from fedpriv.scoring.sections import Means
from fedpriv.scoring.storage import AttackRecord, scored
from fedpriv.util.escape import picture_text

_LINE, _CONTROL, _SOFT = "#2f5d8a", "#a86a00", "#5b6572"


@dataclass(frozen=True)
class Point:
    """One budget.

    Attributes:
        budget: value of the attack's budget field.
        iterations: what the row that took most used of it; rows stop early by their own rule.
        seconds: wall seconds of the attack, without its control.
        psnr: mean PSNR in dB.
        advantage: mean over targets of the PSNR above the best blind guess, dB.
        interval: its 95 % interval, or None with one client.
        shuffled: the same mean on shuffled uploads, or None where that was not run.
        converged: share of targets that met the attack's own rule.
        specific: share of targets of a single image whose fit is specific; None where it was not measured.
        objective: median objective.
    """

    budget: int
    iterations: int
    seconds: float
    psnr: float
    advantage: float
    interval: tuple[float, float] | None
    shuffled: float | None
    converged: float
    specific: float | None
    objective: float | None


@dataclass(frozen=True)
class BudgetCurve:
    """An attack at several budgets, all on the same targets.

    Attributes:
        name: the attack, its target, the method with its defense, and the data set; with the stage where there is one.
        unit: the budget field.
        floor: the best blind guess, the same at every budget.
        floor_psnr: its mean PSNR in dB.
        points: budgets ascending.
        over: what their intervals are over: how many clients, or declared groups of them.
    """

    name: str
    unit: str
    floor: str
    floor_psnr: float
    points: tuple[Point, ...]
    over: str

    @property
    def description(self) -> str:
        """The picture in words."""
        text = "; ".join(f"{point.advantage:+.2f} dB at {point.budget:,}" for point in self.points)
        return f"Chart of {self.name}: PSNR above the floor ({self.floor}) by {self.unit} and by seconds: {text}"


def budget_curves(attack_records: Sequence[AttackRecord]) -> list[BudgetCurve]:
    """Return a curve for every attack that was run with at least two budgets, in the order given."""
    series = by_budget(attack_records, scored, lambda attack: attack.about)
    return [
        _curve([scored(attack) for attack in members], upload_title(members[-1].about))
        for members in series
        if len(members) > 1
    ]


def _curve(records: Sequence[ReconstructionRecord], upload: str) -> BudgetCurve:
    last = records[-1]
    # Blind guesses do not depend on the attack, so the best of them is the same at every budget.
    floor = max(blind_floors(last.image_floors), key=lambda name: last.image_floors[name].psnr_db)
    stage = stage_name(last)
    return BudgetCurve(
        name=f"{last.attack} on {last.target} uploads of {upload}, {last.dataset}"
        + (f", {stage} stage" if stage else ""),
        unit="" if last.budget is None else last.budget.field.replace("_", " "),
        floor=LABELS[floor],
        floor_psnr=last.image_floors[floor].psnr_db,
        points=tuple(_point(record, floor) for record in records),
        over=f"{last.n_clients} {last.units}",
    )


def _point(record: ReconstructionRecord, floor: str) -> Point:
    means = Means(tuple(record.unit_of(row.client) for row in record.targets))
    mine, blind = (
        np.asarray(result.psnr_db.per_target, dtype=np.float64)
        for result in (record.metrics, record.floor_details[floor])
    )
    gain = means.of(mine - blind, range(len(mine)))
    search = convergence(record)
    shuffled = record.image_floors.get(SHUFFLED)
    return Point(
        budget=budget_value(record) or 0,
        iterations=record.cost.iterations,
        seconds=record.cost.seconds,
        psnr=float(mine.mean()),
        advantage=float((mine - blind).mean()),
        interval=gain.ci95,
        shuffled=None if shuffled is None else float(shuffled.psnr_db - blind.mean()),
        converged=search.converged,
        specific=search.specific,
        objective=search.objective,
    )


def curve_svg(curve: BudgetCurve) -> str:
    """Draw a curve: PSNR above the floor against the budget, and against seconds, both on logarithmic axes.

    A point is filled where at least half of the targets converged.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    with house_style():
        figure = Figure(figsize=(6.6, 2.7), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        for axes, xs, label in (
            (left, [float(point.budget) for point in curve.points], curve.unit),
            (right, [max(point.seconds, 1e-3) for point in curve.points], "seconds"),
        ):
            open_axes(axes)
            axes.set_xscale("log")
            axes.axhline(0, color=_SOFT, linewidth=1, linestyle=(0, (4, 2)))
            _draw_points(axes, xs, curve.points)
            axes.set_xlabel(picture_text(label))
            if label != "seconds":
                axes.set_xticks(xs, [f"{point.budget:,}" for point in curve.points])
            else:
                axes.xaxis.set_major_locator(LogLocator(subs=_subdivisions(xs)))
                axes.xaxis.set_major_formatter("{x:g}")
            axes.minorticks_off()
            axes.xaxis.set_minor_formatter(NullFormatter())
        left.set_ylabel("advantage (dB)")
        left.margins(y=0.14)
        left.annotate(
            picture_text(f"floor: {curve.floor}, {curve.floor_psnr:.1f} dB"),
            (0.02, 0),
            xycoords=("axes fraction", "data"),
            xytext=(0, 2),
            textcoords="offset points",
            fontsize=7.5,
            color=_SOFT,
        )
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
        return svg_text(figure)


def _subdivisions(seconds: Sequence[float]) -> tuple[float, ...]:
    """Return where a decade of seconds is marked, so that a few marks are shown whatever the span."""
    span = max(seconds) / min(seconds)
    return (1.0,) if span > 300 else (1.0, 3.0) if span > 30 else (1.0, 2.0, 5.0)


def _draw_points(axes: Any, xs: Sequence[float], points: Sequence[Point]) -> None:
    gains = [point.advantage for point in points]
    axes.plot(xs, gains, color=_LINE, linewidth=1.6, label="attack, 95 % interval")
    for x, point in zip(xs, points, strict=True):
        if point.interval is not None:
            axes.plot([x, x], point.interval, color=_LINE, linewidth=1)
        face = _LINE if point.converged >= 0.5 else "#ffffff"
        axes.plot([x], [point.advantage], marker="o", markersize=5, color=_LINE, markerfacecolor=face)
    wrong = [(x, point.shuffled) for x, point in zip(xs, points, strict=True) if point.shuffled is not None]
    if len(wrong) == 1:  # it was run at the largest budget only, and stands for all
        axes.axhline(wrong[0][1], color=_CONTROL, linewidth=1, linestyle=(0, (1, 2)), label=CONTROL)
    elif wrong:
        axes.plot(*zip(*wrong, strict=True), color=_CONTROL, marker="D", markersize=4, linewidth=1, label=CONTROL)
