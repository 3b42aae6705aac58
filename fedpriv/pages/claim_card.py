"""The card of a claim as a page: what a paper prints, what was measured, and whether it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpriv.pages.page import environment
from fedpriv.scoring.records import ClaimCard, ClaimCell, ClaimedOrder, ClaimWord, Estimate
from fedpriv.scoring.storage import write_record
from fedpriv.util.escape import duration
from fedpriv.util.files import write_text

PAGE, TEXT = "claim.html", "claim.md"

BADGES: dict[ClaimWord, str] = {
    "holds": "good",
    "does not hold": "bad",
    "below the floor": "bad",
    "cannot be told": "soft",
}
"""Verdicts by how they look."""

SCALES = {
    "smoke": "Tried at scale smoke: on a few images of this package; of the claim it says nothing.",
    "cpu": "Tried at scale cpu: fewer and smaller runs than the paper's. Orders may be compared, values may not.",
    "paper": "Tried in the paper's own setting, as far as the paper tells it.",
}


COUNTED = "Counted exactly, from sizes alone; nothing is trained."


@dataclass(frozen=True)
class CellView:
    """A value as a page shows it.

    Attributes:
        cell: the value.
        claimed, measured, floor: in words; "–" for none.
        verdict: in words, or empty.
    """

    cell: ClaimCell
    claimed: str
    measured: str
    floor: str
    verdict: str


def write_claim_card(folder: Path, card: ClaimCard) -> None:
    """Write ``claim.json``, ``claim.html`` and ``claim.md`` into a folder."""
    views = [
        _view(cell, len(card.seeds)) for cell in card.cells if cell.claimed is not None or cell.measured is not None
    ]
    units: dict[str, str] = {}
    for cell in card.cells:
        units.setdefault(cell.column, cell.unit)
    by_place = {(view.cell.row, view.cell.column): view for view in views}
    values = {
        "card": card,
        "scale": COUNTED if card.quantity in ("communication", "computation") else SCALES[card.scale],
        "badges": BADGES,
        "cells": views,
        "columns": [f"{column} ({unit})" if unit else column for column, unit in units.items()],
        "matrix": [
            (row, [by_place.get((row, column)) for column in units])
            for row in dict.fromkeys(cell.row for cell in card.cells)
        ],
        "floors": any(cell.floor is not None for cell in card.cells),
        "whys": _whys(views),
        "remarks": [view for view in views if view.cell.remark],
        "versions": ", ".join(f"{name} {version}" for name, version in card.versions.items()),
        "took": duration(card.seconds),
        "statements": [(one, [_order(own) for own in one.orders]) for one in card.statements],
        "said": headline(card),
        "shared": ", ".join(f"{name} {value}" for name, value in card.setting.items()),
    }
    write_record(folder, card)
    write_text(folder / PAGE, environment(autoescape=True).get_template("claim.html.j2").render(values))
    write_text(folder / TEXT, environment(autoescape=False).get_template("claim.md.j2").render(values))


def _whys(views: Sequence[CellView]) -> list[tuple[str, str]]:
    """Return the reasons of what was tried, each once with the cells it is of."""
    found: dict[str, list[str]] = {}
    for view in views:
        if view.cell.measured is not None and view.cell.why:
            found.setdefault(view.cell.why, []).append(f"{view.cell.row}, {view.cell.column}")
    tried = sum(view.cell.measured is not None for view in views)
    return [("every value" if len(names) == tried else "; ".join(names), why) for why, names in found.items()]


def headline(card: ClaimCard) -> str:
    """Return the grounds of the verdict on a claim, in one sentence."""
    at = "" if card.scale == "paper" or not card.seeds else f" at scale {card.scale}"
    tried = [cell for cell in card.cells if cell.measured is not None and cell.verdict is not None]
    counts = [(word, sum(cell.verdict == word for cell in tried)) for word in BADGES]
    words = {"holds": "hold", "does not hold": "do not", "below the floor": "lie below the floor"}
    told = ", ".join(f"{number} {words.get(word, word)}" for word, number in counts if number)
    held = sum(one.verdict == "holds" for one in card.statements)
    orders = f"; {held} of {len(card.statements)} statements hold{at}" if card.statements else ""
    return f"of {len(tried)} values tried, {told or 'none can be judged'}{orders}"


def never(cell: ClaimCell, seeds: int) -> str:
    """Return the seeds that a mean number of rounds is of, where others never reached the accuracy; else nothing."""
    if cell.unit != "rounds" or cell.measured is None or cell.measured.n >= seeds:
        return ""
    return f", under {cell.measured.n} of {seeds} seeds: never under the others"


def _view(cell: ClaimCell, seeds: int) -> CellView:
    claimed = "–" if cell.claimed is None else _number(cell.claimed, cell.digits)
    if cell.spread is not None:
        claimed += f" ± {_number(cell.spread, cell.digits)}"
    floor = "–" if cell.floor is None else f"{_estimate(cell.floor, cell.digits)} ({cell.floor_name})"
    measured = _estimate(cell.measured, cell.digits) + never(cell, seeds)
    return CellView(cell, claimed, measured, floor, cell.verdict or "")


def _estimate(found: Estimate | None, digits: int) -> str:
    if found is None or found.mean is None:
        return "–"
    interval = "" if found.ci95 is None else f" [{_number(found.ci95[0], digits)}, {_number(found.ci95[1], digits)}]"
    return _number(found.mean, digits) + interval


def _order(own: ClaimedOrder) -> dict[str, str]:
    """Return the words of a comparison by column."""
    ends = f" [{own.ci95[0]:+,.2f}, {own.ci95[1]:+,.2f}]" if own.ci95 else ""
    return {
        "what": f"{own.better} ahead of {own.than}",
        "within": own.within,
        "claimed": "–" if own.claimed is None else f"{own.claimed:+,.2f}",
        "measured": "–" if own.difference is None else f"{own.difference:+,.2f}{ends}",
        "units": f"{own.n} {own.over}" if own.n and own.ci95 is not None else "–",
    }


def _number(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}"
