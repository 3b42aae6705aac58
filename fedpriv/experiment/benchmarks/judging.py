"""From the figures of turns to the record of a case: rates, ratios by pairs, the share of the peak, and the goal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedpriv.experiment.benchmarks.contract import Case, Goal
from fedpriv.experiment.benchmarks.machine import cores
from fedpriv.experiment.benchmarks.peak import CONVOLUTION, MATRIX
from fedpriv.scoring.records.benchmark import BenchmarkCase, GoalReached, Ratio, SideFigures, Spread

FIELD = {"CPU seconds": "cpu", "wall seconds": "wall", "MiB": "mib"}
"""Unit of a case -> what a turn tells of it."""

Turn = Mapping[str, Mapping[str, Any]]
"""Side by name -> what it told of a turn."""


def judged(comparison: str, case: Case, warm: Turn, turns: Sequence[Turn]) -> BenchmarkCase:
    """Return the record of a case.

    Args:
        comparison: its name.
        case: as it was planned.
        warm: what each side told of the turn that was not measured.
        turns: what each told of the others, pair by pair.
    """
    field = FIELD[case.clock]
    sides = tuple(_side(case, place, field, warm, turns) for place in range(len(case.sides)))
    ours, *others = sides
    ratios = [_ratio(case, field, ours.name, other.name, turns) for other in others if ours.figure and other.figure]
    return BenchmarkCase(
        comparison=comparison,
        case=case.name,
        device=case.device,
        unit=case.clock,
        rate_unit=case.unit,
        sides=sides,
        ratios=tuple(ratios),
        peak_share=_peak_share(ours, sides, field, turns),
        goal=None if case.goal is None else _reached(case, case.goal, ours, others[:1], ratios),
    )


def _side(case: Case, place: int, field: str, warm: Turn, turns: Sequence[Turn]) -> SideFigures:
    side = case.sides[place]
    told = [warm.get(side.name, {}), *(turn.get(side.name, {}) for turn in turns)]
    values = [one[field] for one in told[1:] if field in one]
    reasons = [one[why] for one in told for why in ("missing", "failed") if why in one]
    operations = [one["operations"] for one in told if "operations" in one]
    rates = [side.units / value for value in values if value > 0] if side.units else []
    return SideFigures(
        name=side.name,
        figure=Spread.of(values) if values else None,
        rate=Spread.of(rates) if rates else None,
        gflop=operations[0] / 1e9 if operations else None,
        not_measured="" if values else (reasons or ["it was not reached"])[0],
        failed=any("failed" in one for one in told),
    )


def _ratio(case: Case, field: str, ours: str, other: str, turns: Sequence[Turn]) -> Ratio:
    pairs = [(turn[ours][field], turn[other][field]) for turn in turns if field in turn[ours] and field in turn[other]]
    if case.faster:
        says, found = f"times as fast as {other}", [theirs / own for own, theirs in pairs]
    else:
        says, found = f"as much as {other}", [own / theirs for own, theirs in pairs]
    return Ratio(says=says, spread=Spread.of(found))


def _peak_share(ours: SideFigures, sides: Sequence[SideFigures], field: str, turns: Sequence[Turn]) -> Spread | None:
    """Return our share of the better of the machine's two peaks, by the fewest operations that a side was counted to do."""
    counted = [side.gflop for side in sides if side.gflop]
    shares = []
    for turn in turns:
        peaks = [turn[name]["gflops"] for name in (MATRIX, CONVOLUTION) if "gflops" in turn.get(name, {})]
        own = turn.get(ours.name, {}).get(field)
        if counted and peaks and own:
            shares.append(min(counted) / own / max(peaks))
    return Spread.of(shares) if shares else None


def _reached(
    case: Case, goal: Goal, ours: SideFigures, beside: Sequence[SideFigures], ratios: Sequence[Ratio]
) -> GoalReached:
    compared = [one.not_measured for one in (ours, *beside) if one.not_measured]
    why = case.smaller
    if case.device != "cpu":
        why = "of a CPU"
    elif compared:
        why = compared[0]
    elif goal.cores is not None and cores() != goal.cores:
        why = f"of a machine with {goal.cores} cores; this one has {cores()}"
    spread = ratios[0].spread if ratios else ours.figure
    verdict = "cannot be told"
    if not why and spread is not None:
        inside = [_meets(goal, value) for value in (spread.min, spread.max)]
        verdict = "met" if all(inside) else "cannot be told" if any(inside) else "not met"
        why = "some turns meet it and some do not" if any(inside) and not all(inside) else ""
    return GoalReached.model_validate(
        {"says": goal.says, "at_most": goal.at_most, "at_least": goal.at_least, "verdict": verdict, "why": why}
    )


def _meets(goal: Goal, value: float) -> bool:
    return (goal.at_most is None or value <= goal.at_most) and (goal.at_least is None or value >= goal.at_least)
