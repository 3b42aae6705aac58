"""A study as it is written: one model, filled from TOML, a mapping or flags. Every error names the path of its key.

In one word a method, defense or attack is ``NAME:KEY=VALUE,KEY=VALUE``, with commas between entries. ``A+B`` puts defense B
behind defense A; ``scale=0.1/1`` gives a list of values, which makes a grid.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, MinLen
from pydantic import BaseModel, ConfigDict, Strict, StringConstraints, ValidationError

from fedpriv.attacks import ATTACKS
from fedpriv.datasets.partition import MAX_SEED
from fedpriv.defenses import DEFENSES
from fedpriv.methods import METHODS
from fedpriv.util.config import mapping
from fedpriv.util.errors import UserError, shown, unknown_name
from fedpriv.util.foreign import inline_value, inline_values
from fedpriv.util.registry import split_reference

Keys = tuple[str | int, ...]  # keys and positions from the top of a study: ``("methods", 2, "lr")``

QUICK: Mapping[str, Any] = {"rounds": 3, "targets": 10, "iterations": 20}
"""Settings of a study that only shows whether everything works."""


class Misplaced(UserError):
    """An error whose message begins with the path of a key; ``said`` is the message without it."""

    said = ""


def wrong(keys: Keys, message: str) -> Misplaced:
    """Return the error that says what is wrong with a key: ``methods[2].lr: ...``."""
    path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")
    error = Misplaced(f"{path}: {message}", keys=keys)
    error.said = message
    return error


@contextlib.contextmanager
def at(keys: Keys, where: Callable[[Keys], Keys] | None = None) -> Iterator[None]:
    """Say of any :class:`UserError` in the block which key it is about."""
    try:
        yield
    except Misplaced:
        raise
    except UserError as error:
        raise wrong(where(error.keys) if where and error.keys else (*keys, *error.keys), str(error)) from error


@contextlib.contextmanager
def read_from(source: str) -> Iterator[None]:
    """Say of errors in the block which file they are about."""
    try:
        yield
    except Misplaced as error:
        raise UserError(f"{source}: {error}") from error


_BEHIND = re.compile(r"\+(?=[A-Za-z])")  # the plus between two defenses; the plus of 1e+3 is followed by a digit


def split_entries(text: str) -> list[str]:
    """Return the entries of a list with commas, which separate an entry's own options too."""
    entries: list[str] = []
    for piece in text.split(","):
        head, equals, _ = piece.partition("=")
        if equals and ":" not in head and entries and ":" in entries[-1]:
            entries[-1] += f",{piece}"
        else:
            entries.append(piece.strip())
    return entries


def parse_entry(text: str) -> dict[str, Any]:
    """Return the table that one entry stands for: ``noise:scale=0.1/1,kind=laplace``."""
    name, rest = split_reference(text, METHODS, DEFENSES, ATTACKS)
    if not name.strip() or "=" in name:
        raise UserError(f"{text!r}: expected NAME or NAME:KEY=VALUE,KEY=VALUE")
    table: dict[str, Any] = {"name": name.strip()}
    for pair in rest.split(",") if rest or text.endswith(":") else ():
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not key or not value:
            raise UserError(f"{text!r}: expected NAME or NAME:KEY=VALUE,KEY=VALUE, got {pair!r}")
        parts = [inline_value(part) for part in value.split("/")]
        *parents, last = key.split(".")
        inner: Any = table
        for parent in parents:
            inner = inner.setdefault(parent, {}) if isinstance(inner, dict) else None
        if not isinstance(inner, dict) or last in inner:
            raise UserError(f"{text!r}: {key!r} is given twice")
        inner[last] = parts[0] if len(parts) == 1 else parts
    return table


def parse_chain(text: str) -> list[dict[str, Any]]:
    """Return the tables of defenses that are applied one behind another: ``clip:norm=1+noise:scale=0.1``."""
    return [] if text == "none" else [parse_entry(part) for part in _BEHIND.split(text)]


_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
_Number = Annotated[int, Strict(), Ge(1)]
_Flag = Annotated[bool, Strict()]


class Member(BaseModel):
    """A method, defense or attack: a table with a name; other keys are its own options."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: _Text
    label: _Text | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Settings beside the fields."""
        return dict(self.__pydantic_extra__ or {})


class MethodMember(Member):
    """A method; its own options may stand in ``option``, which sets them apart from settings of the federation."""

    target: _Text | None = None
    option: dict[str, Any] = {}


class WrittenStudy(BaseModel):
    """A study, every shape checked, nothing expanded. ``docs/audit.md`` describes the fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    federation: dict[str, Any] = {}
    methods: Annotated[list[MethodMember], MinLen(1)] = [MethodMember(name="fedre")]
    defenses: Annotated[list[list[Member]], MinLen(1)] = [[]]
    attacks: list[Member] | None = None
    seeds: Annotated[list[Annotated[int, Strict(), Ge(0), Le(MAX_SEED)]], MinLen(1)] = [0]
    knowledge: dict[str, Any] = {}
    targets: _Number | None = None
    iterations: _Number | None = None
    control: _Flag = True
    local: _Flag = True
    redact: Literal["none", "blur", "omit"] = "none"
    rounds_seen: _Number | None = None
    axes: dict[str, list[Any]] = {}


def read_written(values: Mapping[str, Any]) -> WrittenStudy:
    """Check a study's shape."""
    tables = {name: _in_full(name, value) for name, value in values.items()}
    try:
        written = WrittenStudy.model_validate(tables)
    except ValidationError as error:
        first = error.errors()[0]
        keys, message = tuple(first["loc"]), first["msg"][0].lower() + first["msg"][1:]
        if first["type"] == "extra_forbidden":
            raise wrong(keys, str(unknown_name("key of a study:", str(keys[-1]), WrittenStudy.model_fields))) from error
        if first["type"] == "too_short":
            raise wrong(keys, "an empty list: nothing would run") from error
        raise wrong(keys, f"{message}, got {shown(first['input'])}") from error
    for keys, points in (("seeds",), written.seeds), *((("axes", name), axis) for name, axis in written.axes.items()):
        refuse_no_grid(points, keys)
    return written


def _in_full(name: str, value: Any) -> Any:
    """Return a key of a study without one-word entries, of which a text may hold several with commas between."""
    if name == "knowledge":
        with at((name,)):
            return mapping(name, value)
    if name == "attacks" and value in ([], ()):
        raise wrong((name,), 'an empty list: nothing would be attacked; write "none" to train only, "all" for all')
    listed = [value] if isinstance(value, (str, int)) else value
    if name not in ("methods", "defenses", "attacks", "seeds") or not isinstance(listed, (list, tuple)):
        return value
    entries = [part for item in listed for part in (split_entries(item) if isinstance(item, str) else [item])]
    if name == "seeds":
        return [int(entry) if str(entry).isdecimal() else entry for entry in entries]
    if name == "attacks" and entries in (["all"], ["none"]):
        return None if entries == ["all"] else []
    parse = parse_chain if name == "defenses" else parse_entry
    return [_table(entry, parse, (name, index)) for index, entry in enumerate(entries)]


def _table(entry: Any, parse: Callable[[str], Any], keys: Keys) -> Any:
    """Return the table, or of defenses the list of tables, that an entry of a list stands for."""
    with at(keys):
        if isinstance(entry, str):
            return parse(entry)
    if parse is not parse_chain:
        return entry
    if entry in ([], ()):
        raise wrong(keys, 'an empty list of defenses; write "none" for no defense')
    chain = entry if isinstance(entry, (list, tuple)) else [entry]
    return [_table(link, parse_entry, (*keys, index)) for index, link in enumerate(chain)]


def refuse_no_grid(values: list[Any], keys: Keys) -> None:
    """Check the values of a grid: at least one, each once."""
    if not values:
        raise wrong(keys, "an empty grid: expected at least one value")
    for index, value in enumerate(values):
        if value in values[:index]:
            raise wrong((*keys, index), f"{shown(value)} is listed twice")


def overridden(values: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a study in which settings take the place of what a file says."""
    result: dict[str, Any] = dict(values)
    for name, value in sorted(settings.items(), key=lambda item: item[0] != "federation"):
        given: Any = str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
        if name in WrittenStudy.model_fields and name not in ("federation", "axes"):
            result[name] = given
            continue
        table = name if name == "axes" else "federation"
        given = parse_axes(given) if name == "axes" else given if name == "federation" else {name: given}
        if not isinstance(result.get(table, {}), Mapping):
            raise wrong((table,), f"expected a table, got {shown(result[table])}")
        result[table] = {**result.get(table, {}), **given}
    return result


def parse_axes(texts: Any) -> dict[str, list[Any]]:
    """Return the axes that texts describe (``alpha=0.1,1``); a table of them stays as it is."""
    if isinstance(texts, Mapping):
        return dict(texts)
    results: dict[str, list[Any]] = {}
    for text in [texts] if isinstance(texts, str) else texts:
        key, equals, values = text.partition("=")
        if not equals or not key or not values or key in results:
            raise UserError(f"axes={shown(text)}: expected KEY=VALUE,VALUE, each key once, such as alpha=0.1,1")
        results[key] = inline_values(values)
    return results
