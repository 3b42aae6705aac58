"""The two files of a study's folder that say what it is and how far it has come: read, and checked field by field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Strict, TypeAdapter, ValidationError

from fedpriv.util.errors import UserError
from fedpriv.util.files import read_json, read_lines

STUDY, CELLS = "study.json", "cells.jsonl"
_CELL_KEYS = ("cell", "method", "target", "seed", "run", "attacks", "status")

_Seconds = Annotated[float, Strict()] | None


@dataclass(frozen=True)
class _Choice:
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    label: str | None = None


@dataclass(frozen=True)
class _Defense:
    choices: list[_Choice]


@dataclass(frozen=True)
class _Study:
    """Fields of ``study.json`` that are read; it has more."""

    defenses: list[_Defense] | None = None
    command: str | None = None
    written: dict[str, Any] | None = None


@dataclass(frozen=True)
class _Attack:
    attack: str
    path: str
    status: str
    error: str | None = None
    seconds: _Seconds = None


@dataclass(frozen=True)
class _Spent:
    train: _Seconds = None
    attack: _Seconds = None


@dataclass(frozen=True)
class _Cell:
    """Fields of a line of ``cells.jsonl`` that are read; it has more."""

    cell: str
    method: str
    target: str
    seed: Annotated[int, Strict()]
    run: str
    attacks: list[_Attack]
    status: str
    method_label: str | None = None
    defense_label: str | None = None
    method_title: str | None = None
    defense_title: str | None = None
    defenses: list[_Choice] | None = None
    error: str | None = None
    seconds: _Spent | None = None


def read_study(folder: Path) -> dict[str, Any]:
    """Return what ``study.json`` holds.

    Raises:
        UserError: when it is missing or damaged, naming the field.
    """
    found: dict[str, Any] = read_json(folder / STUDY)
    _check(_Study, found, str(folder / STUDY))
    return found


def read_cells(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of ``cells.jsonl``; none where there is no such file.

    Raises:
        UserError: when it is damaged, naming the line and the field.
    """
    cells = read_lines(folder / CELLS)
    for place, cell in enumerate(cells, start=1):
        missing = [key for key in _CELL_KEYS if key not in cell]
        if missing:
            raise UserError(
                f"{folder / CELLS}:{place}: field {missing[0]!r} is missing; expected {', '.join(_CELL_KEYS)}"
            )
        _check(_Cell, cell, f"{folder / CELLS}:{place}")
    return cells


def _check(shape: type, found: Any, where: str) -> None:
    if not isinstance(found, Mapping):
        raise UserError(f"{where}: expected an object, got {type(found).__name__}")
    try:
        TypeAdapter(shape).validate_python(dict(found))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(step) for step in first["loc"])
        if first["type"] == "missing":
            raise UserError(f"{where}: field {name!r} is missing") from error
        wanted = "an object" if first["type"] == "dataclass_type" else first["msg"].removeprefix("Input should be a ")
        raise UserError(f"{where}: {name}: expected {_with_article(wanted)}, got {first['input']!r}") from error


def _with_article(wanted: str) -> str:
    return wanted if wanted.startswith("an ") else f"a {wanted}"
