"""Pictures of an attack as a table of a page: small PNG files in it, captions as text, sized to a budget.

The targets are those of :mod:`fedpriv.pages.grid`: fixed quantiles of the score, or all of few; never the best ones.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from fedpriv.pages.grid import QUANTILES, Column, grid_columns
from fedpriv.scoring.redaction import NONE, OMIT, RULES
from fedpriv.scoring.storage import AttackRecord

PAGE_BYTES = 3_400_000
"""Room for all pictures of a page, as base64."""

_STEPS: tuple[tuple[int | None, int], ...] = ((None, 1), (256, 1), (64, 1), (64, 2), (32, 4), (16, 8))
"""(colours kept, factor by which sides shrink), tried in order until the pictures fit."""


@dataclass(frozen=True)
class Cell:
    """One picture: its data URI, the text under it, and what it shows in words."""

    source: str
    caption: str
    alt: str


@dataclass(frozen=True)
class PictureTable:
    """Rows of pictures.

    Attributes:
        headings: of the columns: which quantile, and whose target.
        rows: (what the row shows, its cells).
        remark: what was done to make the pictures fit, or empty.
    """

    headings: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    remark: str


def picture_table(attack: AttackRecord, room: int, quantiles: Sequence[float] | None = None) -> PictureTable | None:
    """Return the pictures of a scored attack, or None where the truth was left out or the rule is that there are none.

    Args:
        attack: a scored attack.
        room: bytes that its pictures may take on the page.
        quantiles: of the score, whose targets are shown; None for all of few, else the page's quantiles.
    """
    rule = attack.about.redacted
    if rule == OMIT or (attack.truths is None and rule == NONE):
        return None
    every = None if quantiles is None else False
    names, columns = grid_columns(attack, every, QUANTILES if quantiles is None else quantiles)
    names = [" ".join(name.split("\n")) for name in names]
    table = encoded(names, columns, room)
    return table if rule == NONE else replace(table, remark=f"Redacted: {RULES[rule]}. {table.remark}")


def encoded(names: Sequence[str], columns: Sequence[Column], room: int) -> PictureTable:
    """Return columns of images as a table of pictures.

    Args:
        names: of the rows.
        columns: each with a cell a row.
        room: bytes that the pictures may take on the page.
    """
    uris: list[list[str]] = []
    step: tuple[int | None, int] = _STEPS[0]
    for step in _STEPS:
        uris = [[_data_uri(image.detach().clamp(0, 1).numpy(), *step) for image, _ in c.cells] for c in columns]
        if sum(len(uri) for column in uris for uri in column) <= room:
            break
    rows = tuple(
        (name, tuple(_cell(name, column, current[row], row) for column, current in zip(columns, uris, strict=True)))
        for row, name in enumerate(names)
    )
    headings = tuple((c.heading or f"target {index}", c.note) for index, c in enumerate(columns, start=1))
    return PictureTable(headings, rows, _remark(*step))


def _cell(name: str, column: Column, uri: str, row: int) -> Cell:
    caption = column.cells[row][1]
    text = ", ".join(part for part in (name, column.heading, column.note, caption) if part)
    return Cell(uri, caption, text)


def _data_uri(image: np.ndarray, colours: int | None, shrink: int) -> str:
    values = np.round(255 * image).astype(np.uint8)
    picture = Image.fromarray(values[0] if len(values) == 1 else np.moveaxis(values, 0, 2))
    if shrink > 1:
        picture = picture.resize([max(1, side // shrink) for side in picture.size], Image.Resampling.BOX)
    if colours is not None and picture.mode != "L":
        picture = picture.quantize(colours, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    picture.save(buffer, format="png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _remark(colours: int | None, shrink: int) -> str:
    if colours is None:
        return ""
    smaller = "" if shrink == 1 else f" and 1/{shrink} of their side"
    return f"To keep the page small, pictures are reduced to {colours} colours{smaller}; scores are of the originals."


def room_for(count: int) -> int:
    """Return the bytes that the pictures of each of ``count`` attacks may take."""
    return PAGE_BYTES // max(count, 1)
