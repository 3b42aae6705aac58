"""The files of a study's folder (:mod:`fedpriv.study.folder`): read, and checked field by field."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, JsonValue, Strict, ValidationError

from fedpriv.util.config import first_fault
from fedpriv.util.errors import UserError
from fedpriv.util.files import check_present, read_json, read_lines
from fedpriv.util.foreign import inside

STUDY, CELLS, SHARDS = "study.json", "cells.jsonl", "shards"
FORMAT = 4  # of ``study.json``
_FAR = {"done": 2, "failed": 1}

_Inside = Annotated[str, AfterValidator(inside)]
_Seconds = Annotated[float, Strict()] | None


class _Part(BaseModel):
    """Fields that are read by name; the others are kept as they are."""

    model_config = ConfigDict(frozen=True, extra="allow")


class Choice(_Part):
    """A defense by name with its options."""

    name: str
    options: dict[str, JsonValue] = {}
    label: str | None = None


class StudyFile(_Part):
    """``study.json``: the study as it was written, and the command and file that it is from."""

    format: int
    source: str | None = None
    command: str | None = None
    written: dict[str, Any]


class CellAttack(_Part):
    """A result of a cell."""

    attack: str
    path: _Inside  # its folder, from the study's
    status: str  # ``pending``, ``done``, ``failed`` or ``left out``
    error: str | None = None  # why it is not done
    seconds: _Seconds = None


class Spent(_Part):
    """Wall seconds of a cell."""

    train: _Seconds = None
    attack: _Seconds = None


class Cell(_Part):
    """A line of ``cells.jsonl``: a run of a study, the attacks on it, and how far it has come."""

    cell: str  # its name
    method: str  # registry name
    method_label: str | None = None  # what tables call it
    defenses: tuple[Choice, ...] | None = None
    defense_label: str | None = None
    seed: Annotated[int, Strict()]  # of everything
    varied: dict[str, JsonValue] = {}  # axis -> value, of the method's grid
    target: str | None  # kind of upload attacked; None for a run that is only trained
    run: _Inside  # its folder, from the study's
    attack_folder: str = ""
    attacks: tuple[CellAttack, ...]  # one a result
    status: str  # ``pending``, ``done`` or ``failed``
    error: str | None = None  # why it failed
    seconds: Spent = Spent()  # spent so far


T = TypeVar("T", bound=_Part)


def read_study(folder: Path) -> StudyFile:
    """Return the contents of ``study.json``, checked field by field."""
    values, path = read_json(folder / STUDY), folder / STUDY
    check_present(folder)
    if isinstance(values, Mapping) and values.get("format") != FORMAT:
        text = f"of format {values.get('format')!r}, but this version reads format {FORMAT}"
        raise UserError(f"{path}: {text}; use the fedpriv that began it, or run the study again")
    return _check(StudyFile, values, str(path))


def accounts(folder: Path) -> list[Path]:
    """Return the folders in which shards of a study say how far they have come, until they are merged."""
    return sorted(position.parent for position in (folder / SHARDS).glob(f"*/{CELLS}"))


def read_cells(folder: Path, besides: Collection[Path] = ()) -> list[Cell]:
    """Return a line for each cell of a study, also of those that its shards (but ``besides``) are at."""
    rows = {row.cell: row for row in read_list(folder)}
    for account in accounts(folder):
        for row in () if account in besides else read_list(account):
            if row.cell in rows and _how_far(row) >= _how_far(rows[row.cell]):
                rows[row.cell] = row
    return list(rows.values())


def _how_far(row: Cell) -> tuple[int, int]:
    return _FAR.get(row.status, 0), sum(entry.status in ("done", "left out") for entry in row.attacks)


def read_list(folder: Path) -> list[Cell]:
    """Return the lines of the ``cells.jsonl`` of a study, or of one of its shards; none where there is no such file."""
    path = folder / CELLS
    return [_check(Cell, line, f"{path}:{index}") for index, line in enumerate(read_lines(path), start=1)]


def _check(shape: type[T], value: Any, where: str) -> T:
    if not isinstance(value, Mapping):
        raise UserError(f"{where}: expected an object, got {type(value).__name__}")
    try:
        return shape.model_validate(dict(value))
    except ValidationError as error:
        raise UserError(f"{where}: {first_fault(error)}") from error
