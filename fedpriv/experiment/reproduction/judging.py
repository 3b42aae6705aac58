"""From what was measured to the card of a claim: every value and every statement judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fedpriv.experiment.reproduction.counted import counted
from fedpriv.experiment.reproduction.measured import PerUnit, StudyOutcome, difference, mean_of, over_clients, units
from fedpriv.experiment.reproduction.plan import Asked, Plan
from fedpriv.experiment.reproduction.settings import (
    PAPER,
    Place,
    changed,
    measure_of,
    paper_setting,
    places,
    setting_at,
    sizes_of,
)
from fedpriv.pages.claims import Claim, Statement
from fedpriv.scoring.claims import Printed, judge_claim, judge_counts, judge_order, judge_value, order
from fedpriv.scoring.records import ClaimCard, ClaimCell, ClaimedOrder, ClaimStatement, Comparison, Estimate
from fedpriv.scoring.score import versions


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
class Made:
    """The making of a card.

    Attributes:
        command: that does the same again.
        left_out: what is missing beside what the plan leaves out, a line each.
        seconds: of training and attacks.
        grids: pictures of reconstructions, from the card's folder.
    """

    command: str
    left_out: tuple[str, ...] = ()
    seconds: float = 0.0
    grids: tuple[str, ...] = ()


def found_by_counting(claim: Claim, plan: Plan) -> dict[str, Found]:
    """Count every cell of a counted claim."""
    found = {}
    for place in plan.tried:
        value, why = counted(claim, place)
        measured = None if value is None else Estimate(mean=value, ci95=None, n=1)
        found[place.name] = Found(measured, why=why)
    return found


def found_by_study(claim: Claim, plan: Plan, outcome: StudyOutcome, scale: str) -> dict[str, Found]:
    """Return the values of a claim's study, cell by cell."""
    found = {}
    inverted = claim.quantity == "inversion"
    for place in plan.tried:
        measure = measure_of(claim, place, scale)
        seeds = outcome.of(place, measure)
        guesses, name = outcome.floors(place, measure) if inverted else (outcome.alone(place, measure), "local")
        summed = over_clients if inverted else mean_of
        unreached = measure.what == "rounds" and outcome.ended(place)
        why = (
            "" if seeds else "not reached in these rounds" if unreached else "its run or attack did not come to its end"
        )
        found[place.name] = Found(summed(seeds), summed(guesses), name if guesses else "", why, seeds, guesses)
    return found


def card_of(name: str, claim: Claim, asked: Asked, plan: Plan, found: Mapping[str, Found], made: Made) -> ClaimCard:
    """Judge everything of a claim that was found.

    Args:
        name: of the claim.
        claim: it.
        asked: what was to be tried.
        plan: what was tried.
        found: by name of a cell.
        made: how.
    """
    cells = tuple(_cell(claim, place, asked, found.get(place.name, Found(why="not tried"))) for place in places(claim))
    statements = tuple(_statement(claim, own, plan, found) for own in claim.statements)
    values = [
        cell.verdict
        for cell in cells
        if cell.verdict is not None
        and cell.measured is not None
        and (cell.same_setting or cell.verdict != "cannot be told")
    ]
    return ClaimCard(
        name=name,
        quantity=claim.quantity,
        title=claim.title,
        paper=claim.paper,
        where=claim.where,
        known=claim.known,
        unknown=claim.unknown,
        reading=claim.reading,
        scale=asked.scale,
        seeds=plan.seeds,
        setting=_shared(claim, plan, asked.scale),
        changed={} if claim.counted else changed(claim, plan.tried, asked.scale),
        cells=cells,
        statements=statements,
        verdict=judge_claim(values, [one.verdict for one in statements]),
        left_out=(*plan.left_out, *made.left_out),
        command=made.command,
        versions=versions(),
        seconds=made.seconds,
        grids=made.grids,
    )


def _cell(claim: Claim, place: Place, asked: Asked, found: Found) -> ClaimCell:
    digits = claim.digits if place.column.digits is None else place.column.digits
    same_data = claim.counted or _same_data(claim, place, asked)
    same_setting = claim.counted or (asked.scale == PAPER and same_data)
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
    told, here = paper_setting(claim, place), setting_at(claim, place, asked.scale)
    replaced = asked.scale != "smoke" and place.column.data in (asked.images or {})
    alike = all(told.get(name) == here.get(name) for name in ("dataset", "image_size"))
    return not replaced and alike and "dataset" in told


def _statement(claim: Claim, own: Statement, plan: Plan, found: Mapping[str, Found]) -> ClaimStatement:
    by_place = {(place.row.name, place.column.name): place for place in places(claim)}
    tried = {place.name for place in plan.tried}
    orders: list[ClaimedOrder] = []
    compared: list[Comparison | None] = []
    ahead: list[Found] = []
    for within, first, second in _pairs(claim, own):
        one, other = by_place[first], by_place[second]
        failed = claim.dash == "failed" and None in (one.claimed, other.claimed)
        if failed or not {one.name, other.name} & tried:
            continue
        sign = -1.0 if own.order == "below" else 1.0
        printed = None if one.claimed is None or other.claimed is None else sign * (one.claimed - other.claimed)
        names = (first[0], second[0]) if own.along == "rows" else (first[1], second[1])
        here, there = found.get(one.name, Found()), found.get(other.name, Found())
        if claim.counted:
            orders.append(_exact(within, names, sign, here, there, printed))
            continue
        difference_ = difference(here.seeds, there.seeds, own.least, below=own.order == "below")
        compared.append(difference_)
        ahead.append(here)
        empty = ClaimedOrder(
            within=within, better=names[0], than=names[1], difference=None, ci95=None, n=0, claimed=printed
        )
        over = units(here.seeds, there.seeds)
        orders.append(empty if difference_ is None else order(within, *names, difference_, printed, over))
    verdict, why = judge_counts(orders, own.least) if claim.counted else judge_order(orders, compared, own.least)
    if verdict == "holds" and claim.quantity == "inversion" and not all(_beyond_guesses(one, own) for one in ahead):
        verdict, why = "below the floor", f"so it is, but {own.better} is no nearer than a guess without the upload"
    every = len(own.within or (claim.columns if own.along == "rows" else claim.rows))
    covered = len({one.within for one in orders})
    partly = f"tried in {covered} of {every}" if covered < every else ""
    return ClaimStatement(
        text=own.text,
        least=own.least,
        orders=tuple(orders),
        verdict=verdict,
        why="; ".join(part for part in (why, partly) if part),
    )


def _beyond_guesses(found: Found, own: Statement) -> bool:
    """Tell whether a cell is ahead of its own floor, so that an order of what leaks can be read from it."""
    gain = difference(found.seeds, found.guesses, 0.0, below=own.order == "below")
    return gain is not None and gain.ci95 is not None and gain.ci95[0] > 0


def _exact(
    within: str, names: tuple[str, str], sign: float, here: Found, there: Found, printed: float | None
) -> ClaimedOrder:
    known = here.measured is not None and there.measured is not None
    values = [one.measured.mean for one in (here, there) if one.measured is not None and one.measured.mean is not None]
    gap = sign * (values[0] - values[1]) if known and len(values) == 2 else None
    return ClaimedOrder(
        within=within, better=names[0], than=names[1], difference=gap, ci95=None, n=2 if known else 0, claimed=printed
    )


def _pairs(claim: Claim, own: Statement) -> list[tuple[str, tuple[str, str], tuple[str, str]]]:
    """Return (where, cell ahead, cell behind) of every comparison of a statement."""
    rows, columns = [one.name for one in claim.rows], [one.name for one in claim.columns]
    along, across = (rows, columns) if own.along == "rows" else (columns, rows)
    behind = own.than or tuple(name for name in along if name != own.better)
    cell: Callable[[str, str], tuple[str, str]] = (
        (lambda name, where: (name, where)) if own.along == "rows" else (lambda name, where: (where, name))
    )
    return [(where, cell(own.better, where), cell(name, where)) for where in own.within or across for name in behind]


def _shared(claim: Claim, plan: Plan, scale: str) -> dict[str, str]:
    """Return the settings that all tried cells share, in words."""
    each = [sizes_of(claim, place) if claim.counted else setting_at(claim, place, scale) for place in plan.tried]
    names = dict.fromkeys(name for one in each for name in one)
    return {
        name: str(each[0][name])
        for name in names
        if name != "option" and all(name in one and one[name] == each[0][name] for one in each)
    }
