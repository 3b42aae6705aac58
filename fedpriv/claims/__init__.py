"""Claims of papers as data: a TOML file beside this one for each table, figure or statement.

A file says which paper and where, the values cell by cell, the setting of every cell as far as the paper tells it, what
is known and what is not, and what the paper concludes; docs/reproducing.md describes it. ``fedpriv reproduce`` puts them to
the test.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from fedpriv.util.config import parse
from fedpriv.util.errors import UserError, unknown_name
from fedpriv.util.foreign import toml_file, toml_table

Quantity = Literal["accuracy", "communication", "inversion"]
Axis = Literal["rows", "columns"]
Table = Mapping[str, Any]
"""Settings by name, as a TOML file holds them."""

SCALES = ("smoke", "cpu", "paper")
"""Seconds on data of the package itself; about an hour on two cores; the paper's own setting."""


@dataclass(frozen=True)
class Measure:
    """The quantity of a value.

    Attributes:
        what: ``accuracy``, the mean over clients; ``rounds`` until it is reached; scalars or bytes of a round that go up
            (``upload``), down (``broadcast``) or both ways (``both``), as papers count;
            ``psnr_db``, ``mse_255`` or ``ssim`` of reconstructed images.
        moment: of accuracies: when in a round.
        when: of accuracies: after the last round, or the highest of any round.
        reach: of rounds: the accuracy, in [0, 1].
        per: of traffic: all clients together, or the mean over clients.
        every: how many of the quantity's own units one unit of the values is: 0.01 for percent, 1000 for thousands.
        bytes: of traffic: bytes in place of scalars.
    """

    what: Literal["accuracy", "rounds", "upload", "broadcast", "both", "psnr_db", "mse_255", "ssim"]
    moment: Literal["after_training", "after_broadcast"] = "after_training"
    when: Literal["final", "best"] = "final"
    reach: float | None = None
    per: Literal["all clients", "client"] = "all clients"
    every: float = 1.0
    bytes: bool = False


@dataclass(frozen=True)
class Column:
    """A column of a paper's table: its unique name, and the data set as the paper calls it.

    ``unit``, ``digits``, ``tolerance`` and ``measure`` stand in place of the claim's; ``method`` (a registry name) and
    ``target`` (a kind of upload) where columns are such; ``setting`` and ``sizes`` beyond the claim's, and ``scales`` ->
    settings that differ there; ``reach``, of rounds: scale -> the accuracy to reach there.
    """

    name: str
    data: str
    unit: str | None = None
    digits: int | None = None
    tolerance: float | None = None
    measure: Measure | None = None
    method: str | None = None
    target: str | None = None
    setting: Table = field(default_factory=dict)
    sizes: Table = field(default_factory=dict)
    scales: Mapping[str, Table] = field(default_factory=dict)
    reach: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A row of a paper's table: a unique name, values and perhaps standard deviations aligned with the columns.

    None, in a file ``"-"``, is where the paper gives no value. The other fields are those of a column; what both set, the
    row decides. ``method`` is None where columns say it, or the claim is about uploads of any method.
    """

    name: str
    values: tuple[float | None, ...]
    spread: tuple[float | None, ...] = ()
    method: str | None = None
    target: str | None = None
    setting: Table = field(default_factory=dict)
    sizes: Table = field(default_factory=dict)
    scales: Mapping[str, Table] = field(default_factory=dict)


@dataclass(frozen=True)
class Statement:
    """An order of values that the paper concludes something from, and that any scale can test.

    Attributes:
        text: in one sentence.
        better: name of the row, or of the column, that is ahead.
        than: names of those behind; empty for all others.
        along: whether these are rows or columns.
        within: names on the other axis where it is said to hold; empty for all.
        least: by how much at least, in the unit of the values; less is no effect.
        order: ahead is ``above``, or ``below`` where less is better.
    """

    text: str
    better: str
    than: tuple[str, ...] = ()
    along: Axis = "rows"
    within: tuple[str, ...] = ()
    least: float = 0.0
    order: Literal["above", "below"] = "above"


@dataclass(frozen=True)
class ScaledDown:
    """The setting of all cells at a scale smaller than the paper's, and what is tried by default."""

    setting: Table = field(default_factory=dict)
    study: Table = field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """One table, figure or statement of a paper.

    Attributes:
        quantity: what it is about.
        title: in a few words.
        paper: title of the paper.
        where: table, figure or section.
        unit: of the values.
        digits: decimals printed.
        measure: what the values are of.
        columns, rows: the values, and how each was made.
        statements: what the paper concludes.
        known, unknown: of how they were made; one sentence each.
        tolerance: how far a measured value may lie from the printed one, in its unit, where the paper's setting is run; of
            counts half of the last digit printed is meant by 0.
        tolerance_because: why that far.
        setting: of training, for all cells.
        sizes: for counting, for all cells.
        study: of an attacked claim: keys of a study such as ``attacks``, ``targets``, ``knowledge``.
        seeds: of the runs, as many as the paper made.
        scales: smaller ones, by name.
        dash: a value that is missing was not reached (``failed``, so that statements pass over it), or just not printed.
        remarks: ``ROW | COLUMN`` -> what is odd about that value, one sentence.
        reading: what follows from the floors, or empty.
    """

    quantity: Quantity
    title: str
    paper: str
    where: str
    unit: str
    digits: int
    measure: Measure
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    known: tuple[str, ...]
    unknown: tuple[str, ...]
    statements: tuple[Statement, ...] = ()
    tolerance: float = 0.0
    tolerance_because: str = ""
    setting: Table = field(default_factory=dict)
    sizes: Table = field(default_factory=dict)
    study: Table = field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)
    scales: Mapping[str, ScaledDown] = field(default_factory=dict)
    dash: Literal["failed", "not printed"] = "failed"
    remarks: Mapping[str, str] = field(default_factory=dict)
    reading: str = ""

    @property
    def counted(self) -> bool:
        """True where the values follow from sizes alone, so that nothing is trained."""
        return self.quantity == "communication"


@functools.cache
def claims() -> Mapping[str, Claim]:
    """Return all claims by the name of their file, in alphabetical order."""
    files = {file.name: file for file in resources.files(__name__).iterdir() if file.name.endswith(".toml")}
    return {name[:-5]: parsed(toml_table(files[name].read_text("utf-8")), name) for name in sorted(files)}


def find_claim(name: str | Path) -> tuple[str, Claim]:
    """Return a claim by its name, or from a TOML file of the user's, with the name it goes by."""
    if isinstance(name, Path) or name.endswith(".toml"):
        path = Path(name)
        return path.stem, parsed(toml_file(path, expected="a claim in TOML, see docs/reproducing.md"), str(path))
    if name not in claims():
        raise unknown_name("claim", name, claims())
    return name, claims()[name]


def parsed(values: Table, where: str) -> Claim:
    """Return the claim that a table describes."""
    claim: Claim = parse(Claim, {**values, "rows": [_without_dashes(row) for row in values.get("rows", ())]}, where)
    names = {axis: [item.name for item in getattr(claim, axis)] for axis in ("rows", "columns")}
    for axis, listed in names.items():
        twice = next((name for name in listed if listed.count(name) > 1), None)
        if twice is not None or not listed:
            raise UserError(f"{where}: {axis}: {f'{twice!r} is there twice' if twice else 'expected at least one'}")
    for row in claim.rows:
        for what, numbers in (("values", row.values), ("spread", row.spread or row.values)):
            if len(numbers) != len(claim.columns):
                raise UserError(f"{where}: row {row.name!r}: {len(numbers)} {what} for {len(claim.columns)} columns")
    for statement in claim.statements:
        across = names["columns" if statement.along == "rows" else "rows"]
        for key, used, known in (
            *(
                ("better", (statement.better,), names[statement.along]),
                ("than", statement.than, names[statement.along]),
            ),
            ("within", statement.within, across),
        ):
            _refuse_unknown(f"name ({where}: statement {statement.text!r}: {key})", used, known)
    for scale, smaller in claim.scales.items():
        for axis, known in names.items():
            _refuse_unknown(f"name ({where}: scales.{scale}.{axis})", getattr(smaller, axis), known)
    scales: list[Mapping[str, Any]] = [claim.scales, *(row.scales for row in claim.rows)]
    scales += [table for column in claim.columns for table in (column.scales, column.reach)]
    _refuse_unknown(f"scale ({where})", [scale for table in scales for scale in table], SCALES[:-1])
    for remark in claim.remarks:
        if remark not in {f"{row} | {column}" for row in names["rows"] for column in names["columns"]}:
            raise UserError(f"{where}: remarks: {remark!r} is no 'ROW | COLUMN'")
    return claim


def _refuse_unknown(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise unknown_name(what, name, known)


def _without_dashes(row: Any) -> Any:
    if not isinstance(row, Mapping):
        return row
    lists = {name: row[name] for name in ("values", "spread") if isinstance(row.get(name), (list, tuple))}
    return {**row, **{name: [None if item == "-" else item for item in listed] for name, listed in lists.items()}}
