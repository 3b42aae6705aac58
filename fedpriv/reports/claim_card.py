"""The card of a claim as a page: what a paper prints, what was measured, and whether it holds."""

from __future__ import annotations

from pathlib import Path

from fedpriv.eval.claims import ClaimCard, ClaimCell, ClaimedOrder, ClaimWord
from fedpriv.eval.records import Estimate
from fedpriv.eval.storage import write_record
from fedpriv.reports.page import environment
from fedpriv.reports.run_records import MOMENTS
from fedpriv.util.escape import duration
from fedpriv.util.files import write_text

PAGE = "claim.html"

BADGES: dict[ClaimWord, str] = {
    "holds": "good",
    "does not hold": "bad",
    "below the baseline": "bad",
    "not decided": "soft",
    "pipeline check": "soft",
}

SCALES = {
    "smoke": "Tried at scale smoke: a few images of this package, which says nothing of the claim.",
    "cpu": "Tried at scale cpu: fewer and smaller runs than the paper's. Orders may be compared, values may not.",
    "paper": "Tried in the paper's own setting, as far as the paper tells it.",
}
COUNTED = "Counted exactly, from sizes alone; nothing is trained."


def write_claim_card(folder: Path, card: ClaimCard) -> None:
    """Write ``claim.json`` and ``claim.html`` into a folder."""
    cells = [cell for cell in card.cells if cell.claimed is not None or cell.measured is not None or cell.failed]
    inverted = card.quantity == "inversion"
    twice = any(cell.other_moment for cell in cells)
    further = ("advantage [95 %]",) if inverted else ("at the other moment of a round",) if twice else ()
    values = {
        "card": card,
        "scale": COUNTED if card.quantity == "communication" else SCALES[card.scale],
        "badges": BADGES,
        "inverted": inverted,
        "columns": ("claimed", "measured [95 %]", "its own baseline", *further),
        "cells": [(cell, _shown(cell, len(card.seeds), inverted=inverted, twice=twice)) for cell in cells],
        "failed": [f"{cell.row}, {cell.column}: {'; '.join(cell.failed)}" for cell in cells if cell.failed],
        "remarks": [f"{cell.row}, {cell.column}: {cell.remark}" for cell in cells if cell.remark],
        "versions": ", ".join(f"{name} {version}" for name, version in card.versions.items()),
        "took": duration(card.seconds),
        "statements": [(statement, [_order(order) for order in statement.orders]) for statement in card.statements],
        "said": headline(card),
        "shared": ", ".join(f"{name} {value}" for name, value in card.setting.items()),
    }
    write_record(folder, card)
    write_text(folder / PAGE, environment(autoescape=True).get_template(f"{PAGE}.j2").render(values))


def headline(card: ClaimCard) -> str:
    """Return the grounds of the verdict on a claim, in one sentence."""
    tried = [cell for cell in card.cells if cell.measured is not None or cell.failed]
    if card.verdict == "pipeline check":
        came = sum(cell.measured is not None for cell in tried)
        return f"{came} of {len(tried)} values came out; on a few images of the package they say nothing of the claim"
    at = "" if card.scale == "paper" or not card.seeds else f" at scale {card.scale}"
    words = [cell.verdict for cell in tried]
    hold = [statement.verdict for statement in card.statements].count("holds")
    parts = [f"{hold} of {len(card.statements)} statements hold{at}"] if card.statements else []
    if any(cell.same_setting for cell in tried) or not parts:
        counts = [f"{words.count(word)} {word}" for word in BADGES if word in words]
        why = {cell.why for cell in tried if cell.verdict == "not decided"}
        reason = f" ({why.pop()})" if len(why) == 1 else ""
        parts.append(
            f"of {len(tried)} values tried {', '.join(counts) or 'none can be judged'}{reason}{'' if parts else at}"
        )
    return "; ".join(parts)


def lines_of(card: ClaimCard) -> list[str]:
    """Return the verdicts of a card for a terminal, with their reasons."""
    lines = [f"{card.verdict}: {headline(card)}"]
    if card.verdict != "pipeline check":
        for statement in card.statements:
            why = f" ({statement.why})" if statement.why else ""
            turned = statement.other_moment not in (None, statement.verdict)
            other = f" At the other moment of a round: {statement.other_moment}." if turned else ""
            lines.append(f"{statement.verdict}{why}: {statement.text}{other}")
    return lines + [f"failed: {cell.row}, {cell.column}: {reason}" for cell in card.cells for reason in cell.failed]


def _shown(cell: ClaimCell, seeds: int, *, inverted: bool, twice: bool) -> list[str]:
    """Return a value as a table shows it, in words; "–" for none."""
    claimed = "–" if cell.claimed is None else f"{cell.claimed:,.{cell.digits}f}"
    claimed += "" if cell.spread is None else f" ± {cell.spread:,.{cell.digits}f}"
    claimed += f" {cell.unit}" if cell.claimed is not None and cell.unit else ""
    name = f" ({cell.baseline_name})" if cell.baseline is not None else ""
    lacking = f", {seeds - len(cell.failed)} of {seeds} seeds" if cell.failed else ""
    shown = [claimed, estimate(cell.measured, cell.digits) + lacking, estimate(cell.baseline, cell.digits) + name]
    if inverted:
        shown.append(estimate(cell.advantage, cell.digits, sign="+"))
    others = [f"{estimate(mean, cell.digits)} {MOMENTS[name]}" for name, mean in cell.other_moment.items()]
    return [*shown, ", ".join(others) or "–"] if twice else shown


def estimate(found: Estimate | None, digits: int, sign: str = "") -> str:
    """Return a mean with its interval; "–" for none."""
    if found is None or found.mean is None:
        return "–"
    mean, *ends = (f"{value:{sign},.{digits}f}" for value in (found.mean, *(found.ci95 or ())))
    return f"{mean} [{', '.join(ends)}]" if ends else mean


def _order(order: ClaimedOrder) -> list[str]:
    whole = Estimate(mean=order.difference, ci95=order.ci95, n=order.n)
    return [
        f"{order.better} ahead of {order.than}",
        order.within,
        "–" if order.claimed is None else f"{order.claimed:+,.2f}",
        estimate(whole, 2, sign="+"),
        f"{order.n} {order.over}" if order.n and order.ci95 is not None else "–",
    ]
