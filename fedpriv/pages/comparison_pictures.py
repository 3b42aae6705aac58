"""Pictures of two attacks on the same images side by side: the truth, what each made of it, and the best guess."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from torch import Tensor

from fedpriv.pages.grid import Column, at_quantiles, grid_columns
from fedpriv.pages.picture_table import PictureTable, encoded
from fedpriv.pages.upload_card import SHOWN, short_name
from fedpriv.scoring.redaction import NONE, OMIT, RULES
from fedpriv.scoring.storage import AttackRecord, scored

MOST: Final = 24
"""Results of a page that have pictures: each is read and scored again for them."""

ROWS: Final = ("truth", "first", "second", "best guess")


def side_by_side(before: AttackRecord, after: AttackRecord, room: int) -> PictureTable | None:
    """Return three targets as both attacks have them, at fixed quantiles of the first one's score.

    Args:
        before: the first, scored.
        after: the second, on the same images.
        room: bytes that the pictures may take on the page.

    Returns:
        None where the truth was left out, the rule of either is that there are no pictures, or a target has several
        guesses: then the two may assign them otherwise.
    """
    rules = {attack.about.redacted for attack in (before, after)}
    if OMIT in rules or any(attack.truths is None and attack.about.redacted == NONE for attack in (before, after)):
        return None
    targets = [scored(attack).targets for attack in (before, after)]
    columns = [grid_columns(attack, every_target=True) for attack in (before, after)]
    if any(len(found) != len(own) for (_, found), own in zip(columns, targets, strict=True)):
        return None
    places = {(one.client, one.index, one.label): place for place, one in enumerate(targets[1])}
    made: list[tuple[Column, dict[str, tuple[Tensor, str]]]] = []
    for quantile, place in zip(SHOWN, at_quantiles([one.psnr_db for one in targets[0]], SHOWN), strict=True):
        one = targets[0][place]
        (names, found), (other_names, others) = columns
        first = _by_row(names, found[place])
        second = _by_row(other_names, others[places[one.client, one.index, one.label]])
        cells = {"first": first.pop("attack"), "second": second["attack"], **first}
        made.append((replace(found[place], heading=f"{100 * quantile:.0f} % quantile"), cells))
    there = [row for row in ROWS if all(row in cells for _, cells in made)]
    shown = [replace(column, cells=tuple(cells[row] for row in there)) for column, cells in made]
    table = encoded(there, shown, room)
    rule = max(rules, key=list(RULES).index)
    return table if rule == NONE else replace(table, remark=f"Redacted: {RULES[rule]}. {table.remark}")


def _by_row(names: list[str], column: Column) -> dict[str, tuple[Tensor, str]]:
    """Return the cells of a column by what a reader calls the row; of two of one name the first."""
    found: dict[str, tuple[Tensor, str]] = {}
    for name, cell in zip(names, column.cells, strict=True):
        found.setdefault(short_name(" ".join(name.split("\n"))), cell)
    return found
