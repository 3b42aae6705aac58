"""The card of a claim as a page: what a paper prints, what was measured, and whether it holds."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fedpriv.eval.claims import ClaimCard, ClaimCell, ClaimedOrder, ClaimWord
from fedpriv.eval.records import Estimate
from fedpriv.eval.storage import write_record
from fedpriv.reports.page import environment
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


class CellView(NamedTuple):
    """A value as a page shows it, in words; "–" for none."""

    cell: ClaimCell
    claimed: str
    measured: str
    floor: str
    verdict: str


def write_claim_card(folder: Path, card: ClaimCard) -> None:
    """Write ``claim.json``, ``claim.html`` and ``claim.md`` into a folder."""
    cells = [
        _view(cell, len(card.seeds)) for cell in card.cells if cell.claimed is not None or cell.measured is not None
    ]
    values = {
        "card": card,
        "scale": COUNTED if card.quantity == "communication" else SCALES[card.scale],
        "badges": BADGES,
        "cells": cells,
        "remarks": [view for view in cells if view.cell.remark],
        "versions": ", ".join(f"{name} {version}" for name, version in card.versions.items()),
        "took": duration(card.seconds),
        "statements": [(statement, [_order(order) for order in statement.orders]) for statement in card.statements],
        "said": headline(card),
        "shared": ", ".join(f"{name} {value}" for name, value in card.setting.items()),
    }
    write_record(folder, card)
    for name, html in ((PAGE, True), (TEXT, False)):
        write_text(folder / name, environment(autoescape=html).get_template(f"{name}.j2").render(values))


def headline(card: ClaimCard) -> str:
    """Return the grounds of the verdict on a claim, in one sentence."""
    at = "" if card.scale == "paper" or not card.seeds else f" at scale {card.scale}"
    tried = [cell.verdict for cell in card.cells if cell.measured is not None and cell.verdict is not None]
    words = {"holds": "hold", "does not hold": "do not", "below the floor": "lie below the floor"}
    counts = ", ".join(f"{tried.count(word)} {words.get(word, word)}" for word in BADGES if word in tried)
    hold = sum(statement.verdict == "holds" for statement in card.statements)
    orders = f"; {hold} of {len(card.statements)} statements hold{at}" if card.statements else ""
    return f"of {len(tried)} values tried, {counts or 'none can be judged'}{orders}"


def never(cell: ClaimCell, seeds: int) -> str:
    """Return the seeds that a mean number of rounds is of, where others never reached the accuracy; else nothing."""
    if cell.unit != "rounds" or cell.measured is None or cell.measured.n >= seeds:
        return ""
    return f", under {cell.measured.n} of {seeds} seeds: never under the others"


def _view(cell: ClaimCell, seeds: int) -> CellView:
    unit = f" {cell.unit}" if cell.unit else ""
    claimed = "–" if cell.claimed is None else f"{cell.claimed:,.{cell.digits}f}"
    claimed += "" if cell.spread is None else f" ± {cell.spread:,.{cell.digits}f}"
    claimed += "" if cell.claimed is None else unit
    floor = "–" if cell.floor is None else f"{_estimate(cell.floor, cell.digits)} ({cell.floor_name})"
    measured = _estimate(cell.measured, cell.digits) + never(cell, seeds)
    return CellView(cell, claimed, measured, floor, cell.verdict or "")


def _estimate(estimate: Estimate | None, digits: int) -> str:
    if estimate is None or estimate.mean is None:
        return "–"
    ends = estimate.ci95 or ()
    interval = f" [{', '.join(f'{end:,.{digits}f}' for end in ends)}]" if ends else ""
    return f"{estimate.mean:,.{digits}f}{interval}"


def _order(order: ClaimedOrder) -> dict[str, str]:
    ends = f" [{order.ci95[0]:+,.2f}, {order.ci95[1]:+,.2f}]" if order.ci95 else ""
    return {
        "what": f"{order.better} ahead of {order.than}",
        "within": order.within,
        "claimed": "–" if order.claimed is None else f"{order.claimed:+,.2f}",
        "measured": "–" if order.difference is None else f"{order.difference:+,.2f}{ends}",
        "units": f"{order.n} {order.over}" if order.n and order.ci95 is not None else "–",
    }
