"""The page over two results or studies: settings that differ, what changed and how surely, pictures of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv.pages.comparison_pictures import MOST
from fedpriv.pages.page import percent, with_scripts
from fedpriv.pages.picture_table import PictureTable
from fedpriv.scoring.difference import FEW, LESS, MORE, NOISE
from fedpriv.util.files import write_text

PAGE = "comparison.html"

LOOKS: Mapping[str, str] = {MORE: "leaks", LESS: "none", NOISE: "untested", FEW: "untested"}
"""Verdicts -> the kind of finding that they look like."""


@dataclass(frozen=True)
class Sides:
    """Two results or studies.

    Attributes:
        before, after: names.
        settings: (setting, of the first, of the second, results of which that is so), where they differ.
        only_before, only_after: results that only one has.
        verdict: all of it in one line.
    """

    before: str
    after: str
    settings: Sequence[tuple[str, str, str, str]]
    only_before: Sequence[str]
    only_after: Sequence[str]
    verdict: str


@dataclass(frozen=True)
class ChangeView:
    """A row as the page shows it; places are shares of the width of the drawing, in per cent.

    Attributes:
        name, quantity, verdict, look: in words.
        before, after, difference, interval, accuracy: likewise, "–" for none.
        value: the difference as a number, or None.
        zero, point: places of no difference and of the difference; None where there is no difference.
        low, high: ends of the interval; None where there is none.
        band: ends of what alone would not be told from noise; None likewise.
        pictures: of both, or None.
    """

    name: str
    quantity: str
    verdict: str
    look: str
    before: str
    after: str
    difference: str
    interval: str
    accuracy: str
    value: float | None
    zero: float | None = None
    point: float | None = None
    low: float | None = None
    high: float | None = None
    band: tuple[float, float] | None = None
    pictures: PictureTable | None = None


def write_comparison(
    rows: Sequence[Mapping[str, Any]], sides: Sides, pictures: Mapping[str, PictureTable], out: Path
) -> None:
    """Write ``comparison.html`` into the folder ``out``.

    Args:
        rows: of :class:`fedpriv.Changes`.
        sides: what is compared.
        pictures: of both, by name of a row.
        out: where to.
    """
    scales = {unit: _scale([row for row in rows if _unit(row) == unit]) for unit in {_unit(row) for row in rows}}
    views = [_view(row, scales[_unit(row)], pictures.get(row["name"])) for row in rows]
    values = {"sides": sides, "rows": views, "noise": NOISE, "most": MOST}
    write_text(out / PAGE, with_scripts("comparison.html.j2", "report.js", values=values))


def _unit(row: Mapping[str, Any]) -> str:
    return "" if row["quantity"] == "AUC" else " dB"


def noise(row: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the differences around zero that one of this interval would not be told from, were it the only one.

    >>> noise({"difference": 2.0, "low": 1.5, "high": 3.0})
    (-1.0, 0.5)
    """
    if row["low"] is None:
        return None
    return row["difference"] - row["high"], row["difference"] - row["low"]


def _scale(rows: Iterable[Mapping[str, Any]]) -> tuple[float, float]:
    """Return the least and the largest of what is drawn of rows of one unit, zero among it, with a margin."""
    found = [0.0]
    for row in rows:
        found += [row[key] for key in ("difference", "low", "high") if row[key] is not None]
        found += noise(row) or ()
    low, high = min(found), max(found)
    margin = 0.04 * (high - low) or 1.0
    return low - margin, high + margin


def _view(row: Mapping[str, Any], scale: tuple[float, float], pictures: PictureTable | None) -> ChangeView:
    unit = _unit(row)
    digits = 1 if unit else 3

    def place(value: float | None) -> float | None:
        return None if value is None else round(100 * (value - scale[0]) / (scale[1] - scale[0]), 2)

    def text(value: float | None, sign: str = "") -> str:
        return "–" if value is None else f"{value:{sign}.{digits}f}{unit}"

    compared, band = row["difference"] is not None, noise(row)
    ends = None if band is None else (place(band[0]) or 0.0, place(band[1]) or 0.0)
    return ChangeView(
        name=row["name"],
        quantity=row["quantity"] or "–",
        verdict=row["verdict"],
        look=LOOKS.get(row["verdict"], "untested"),
        before=text(row["before"]),
        after=text(row["after"]),
        difference=text(row["difference"], "+"),
        interval="–" if row["low"] is None else f"{row['low']:+.{digits}f} to {row['high']:+.{digits}f}",
        accuracy=_accuracy(row),
        value=row["difference"],
        zero=place(0.0) if compared else None,
        point=place(row["difference"]),
        low=place(row["low"]),
        high=place(row["high"]),
        band=ends,
        pictures=pictures,
    )


def _accuracy(row: Mapping[str, Any]) -> str:
    both = [row["accuracy before"], row["accuracy after"]]
    return "–" if both == [None, None] else " → ".join("none" if one is None else percent(one) for one in both)
