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
Moment = Literal["after_training", "after_broadcast"]
Table = Mapping[str, Any]
"""Settings by name, as a TOML file holds them."""

SCALES = ("smoke", "cpu", "paper")
"""Seconds on data of the package itself; about an hour on two cores; the paper's own setting."""


@dataclass(frozen=True)
class Measure:
    """The quantity of a value."""

    # Accuracy: the mean over clients; rounds until it is reached; share of clients where it is ahead of all other rows;
    # scalars or bytes of a round that go up, down or both ways.
    what: Literal["accuracy", "rounds", "ahead", "upload", "broadcast", "both", "psnr_db", "mse_255", "ssim"]
    moment: Moment = "after_training"  # of accuracies: when in a round
    when: Literal["final", "best"] = "final"  # of accuracies: after the last round, or the highest of any
    reach: float | None = None  # of rounds: the accuracy, in [0, 1]
    per: Literal["all clients", "client"] = "all clients"  # of traffic, or the mean over clients
    every: float = 1.0  # own units in one unit of the values: 0.01 for percent, 1000 for thousands
    bytes: bool = False  # of traffic: bytes in place of scalars


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
    """An order of values that the paper concludes something from, and that any scale can test."""

    text: str  # in one sentence
    better: str  # name of the row, or of the column, that is ahead
    than: tuple[str, ...] = ()  # names of those behind; empty for all others
    along: Axis = "rows"  # whether these are rows or columns
    within: tuple[str, ...] = ()  # names on the other axis where it is said to hold; empty for all
    least: float = 0.0  # by how much at least, in the unit of the values; less is no effect
    order: Literal["above", "below"] = "above"  # below where less is better


@dataclass(frozen=True)
class ScaledDown:
    """The setting of all cells at a scale smaller than the paper's, and what is tried by default."""

    setting: Table = field(default_factory=dict)
    study: Table = field(default_factory=dict)
    seeds: tuple[int, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pixels:
    """Mean and standard deviation of each channel over a data set, in [0, 1]: what guesses score where it is not at hand."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


@dataclass(frozen=True)
class Claim:
    """One table, figure or statement of a paper."""

    quantity: Quantity
    title: str
    paper: str
    where: str  # table, figure or section
    unit: str  # of the values
    digits: int  # decimals printed
    measure: Measure
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]  # how each was made
    known: tuple[str, ...]  # of how they were made; one sentence each
    unknown: tuple[str, ...]
    statements: tuple[Statement, ...] = ()  # what the paper concludes
    tolerance: float = 0.0  # of a measured value where the paper's setting is run; 0, of counts: half a digit
    tolerance_because: str = ""  # why that far
    setting: Table = field(default_factory=dict)  # of training, for all cells
    sizes: Table = field(default_factory=dict)  # for counting, for all cells
    study: Table = field(default_factory=dict)  # of an attacked claim: keys of a study such as ``attacks``
    seeds: tuple[int, ...] = (0,)  # of the runs, as many as the paper made
    scales: Mapping[str, ScaledDown] = field(default_factory=dict)  # smaller ones, by name
    dash: Literal["failed", "not printed"] = "failed"  # a missing value: statements pass over failures
    remarks: Mapping[str, str] = field(default_factory=dict)  # ``ROW | COLUMN`` -> what is odd about that value
    pixels: Pixels | None = None  # of the data set of inverted images

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
