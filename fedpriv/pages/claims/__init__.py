"""Figures that papers report, as data: one JSON file beside this one for each table or statement.

A file says which paper and table, the values, what is known and what is not known of how they were made, and what guesses
without an upload score on the same data set where that was measured. Claims stand beside results, never in their place.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from fedpriv.util.config import parse
from fedpriv.util.errors import UserError

Quantity = Literal["leakage", "accuracy", "communication"]


@dataclass(frozen=True)
class Column:
    """A column of a paper's table.

    Attributes:
        name: heading.
        unit: of the values; empty where there is none.
        dataset: as the paper calls it.
    """

    name: str
    unit: str
    dataset: str


@dataclass(frozen=True)
class Row:
    """A row of a paper's table.

    Attributes:
        name: as the paper calls it.
        method: the registry name of the method, or None where the claim is about uploads of any method.
        target: the kind of upload, or None where the paper does not say which upload it attacked.
        values: aligned with the columns; None where the paper gives none.
    """

    name: str
    method: str | None
    target: str | None
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class Guess:
    """The score of a guess without any upload: mean and standard deviation over images."""

    name: str
    psnr_db: float
    sd_db: float
    mse_255: float


@dataclass(frozen=True)
class Guesses:
    """Guesses measured with this package.

    Attributes:
        dataset: registry name.
        images: which images, and of which the means are.
        how: what measured them.
        guesses: by falling PSNR.
    """

    dataset: str
    images: str
    how: str
    guesses: tuple[Guess, ...]


@dataclass(frozen=True)
class Claim:
    """One table or statement of a paper.

    Attributes:
        quantity: what it is about.
        title: in a few words.
        paper: title of the paper.
        where: table, figure or section.
        columns, rows: the values.
        known, unknown: of how they were made; one sentence each.
        reading: what follows from the floors, or empty.
        floors: guesses on the same kind of images.
    """

    quantity: Quantity
    title: str
    paper: str
    where: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    known: tuple[str, ...]
    unknown: tuple[str, ...]
    reading: str = ""
    floors: tuple[Guesses, ...] = ()


@functools.cache
def claims() -> Mapping[str, Claim]:
    """Return all claims by the name of their file, in alphabetical order.

    Raises:
        UserError: when a file does not fit :class:`Claim`.
    """
    import json

    files = sorted(
        (file for file in resources.files(__name__).iterdir() if file.name.endswith(".json")), key=lambda f: f.name
    )
    return {file.name[: -len(".json")]: _claim(json.loads(file.read_text("utf-8")), file.name) for file in files}


def _claim(values: Mapping[str, Any], where: str) -> Claim:
    found: Claim = parse(Claim, values, where)
    for row in found.rows:
        if len(row.values) != len(found.columns):
            raise UserError(f"{where}: row {row.name!r} has {len(row.values)} values for {len(found.columns)} columns")
    return found


def matching(uploads: Iterable[tuple[str, str]], quantity: Quantity) -> list[tuple[Claim, tuple[Row, ...]]]:
    """Return the claims that speak of uploads, each with the rows that do.

    Args:
        uploads: (method, target) of results.
        quantity: what the claims should be about.
    """
    wanted = set(uploads)
    found = []
    for claim in claims().values():
        rows = tuple(row for row in claim.rows if any(speaks_of(row, *upload) for upload in wanted))
        if claim.quantity == quantity and rows:
            found.append((claim, rows))
    return found


def speaks_of(row: Row, method: str, target: str) -> bool:
    """True for a row about uploads of this kind by this method."""
    return row.method in (None, method) and row.target in (None, target)
