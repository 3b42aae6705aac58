"""``claim.json``: a claim of a paper beside what was measured, and whether it holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import FiniteFloat

from fedpriv.scoring.records.base import RECORD_VERSION, Estimate, Interval
from fedpriv.util.config import Record

ClaimWord = Literal["holds", "does not hold", "below the floor", "cannot be told"]
"""``below the floor``: a guess without the upload, or clients without any exchange, reach as much."""


class ClaimCell(Record):
    """One value of a table: what the paper prints, and ours over seeds beside a floor.

    ``spread`` is the deviation that the paper prints; ``measured`` is None where the cell was not tried, ``verdict`` where
    the paper gives no value. The floor is the strongest guess, or ``local``.
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
    """A conclusion of a paper, its comparisons, and the verdict on all together."""

    text: str
    least: FiniteFloat
    orders: tuple[ClaimedOrder, ...]
    verdict: ClaimWord
    why: str


class ClaimCard(Record):
    """``claim.json``.

    ``setting`` is what all cells share; ``changed`` -> (the paper's, the one here) where settings differ from the paper's.
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
