"""``claim.json``: a claim of a paper beside what was measured, and whether it holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import FiniteFloat

from fedpriv.scoring.records.base import RECORD_VERSION, Estimate, Interval
from fedpriv.util.record import Record

ClaimWord = Literal["holds", "does not hold", "below the floor", "cannot be told"]
"""``below the floor``: a guess without the upload, or clients without any exchange, reach as much."""


class ClaimCell(Record):
    """One value of a table.

    Attributes:
        row, column: names.
        unit: of the values.
        digits: decimals that the paper prints.
        claimed, spread: what the paper prints, and the deviation beside it; None where it gives none.
        measured: mean over seeds with its interval; None where the cell was not tried.
        floor: likewise, of ``floor_name``; None where there is no floor.
        floor_name: the strongest guess, or ``local``.
        same_data, same_setting: whether it was tried on the paper's data, and in the paper's setting.
        verdict: None where the paper gives no value.
        why: in a sentence.
        remark: what is odd about the paper's value, or empty.
    """

    row: str
    column: str
    unit: str
    digits: int
    claimed: FiniteFloat | None
    spread: FiniteFloat | None
    measured: Estimate | None
    floor: Estimate | None
    floor_name: str
    same_data: bool
    same_setting: bool
    verdict: ClaimWord | None
    why: str
    remark: str = ""


class ClaimedOrder(Record):
    """One comparison of a statement.

    Attributes:
        within: the column, or row, in which it is.
        better, than: who is said to be ahead of whom.
        difference: by how much it was, positive as the paper says; None where either was not measured.
        ci95: its interval; None where there is none, or values are exact.
        n: units over which the interval goes; of counts, the two values.
        over: those units: clients, or seeds, each of which draws clients anew.
        claimed: by how much the paper's values are; None where it gives none.
    """

    within: str
    better: str
    than: str
    difference: FiniteFloat | None
    ci95: Interval | None
    n: int
    over: Literal["clients", "seeds"] = "clients"
    claimed: FiniteFloat | None


class ClaimStatement(Record):
    """A conclusion of a paper, and its verdict.

    Attributes:
        text: the conclusion.
        least: by how much at least, in the unit of the values.
        orders: its comparisons.
        verdict: of all together.
        why: in a sentence.
    """

    text: str
    least: FiniteFloat
    orders: tuple[ClaimedOrder, ...]
    verdict: ClaimWord
    why: str


class ClaimCard(Record):
    """``claim.json``.

    Attributes:
        version: of the format of all records.
        name: of the claim.
        quantity, title, paper, where, known, unknown, reading: of the claim.
        scale: at which it was tried.
        seeds: of the runs; empty where nothing was trained.
        setting: of all cells, by name, as far as they share it; what differs from the paper's stands in ``changed``.
        changed: setting -> (the paper's, the one here), in words, where they differ anywhere.
        cells, statements: what was claimed and measured.
        verdict: of the claim as a whole.
        left_out: columns, rows or cells that were not tried, and why, a line each.
        command: that does it again.
        versions: of the packages.
        seconds: of training and attacks.
        grids: file names of pictures, from the card's folder.
    """

    kind: Literal["claim"] = "claim"
    version: Literal[4] = RECORD_VERSION
    name: str
    quantity: str
    title: str
    paper: str
    where: str
    known: tuple[str, ...]
    unknown: tuple[str, ...]
    reading: str
    scale: str
    seeds: tuple[int, ...]
    setting: Mapping[str, str]
    changed: Mapping[str, tuple[str, str]]
    cells: tuple[ClaimCell, ...]
    statements: tuple[ClaimStatement, ...]
    verdict: ClaimWord
    left_out: tuple[str, ...]
    command: str
    versions: Mapping[str, str]
    seconds: FiniteFloat
    grids: tuple[str, ...] = ()
