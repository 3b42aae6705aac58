"""A study as it is written: one model, filled from TOML, a mapping or flags. Every error names the path of its key."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, MinLen
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Strict,
    StringConstraints,
    ValidationError,
    model_validator,
)

from fedpriv.experiment.study.grammar import parse_chain, parse_entry, split_entries
from fedpriv.experiment.study.origin import Keys, Origin
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError, shown
from fedpriv.util.foreign import inline_values, toml_file
from fedpriv.util.numerics import Precision
from fedpriv.util.pairs import mapping


class _Refused(ValueError):
    """Carries an error of ours through pydantic, which adds where it is."""

    def __init__(self, message: str, keys: Keys = ()) -> None:
        super().__init__(message)
        self.keys = keys


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise _Refused(str(error), error.keys) from error


def _underscored(values: Any) -> Any:
    """Return a table with underscores in its keys; one that is there in both spellings is refused."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if name in found:
            told = f"set twice: as {name} and as {name.replace('_', '-')}; drop one of them"
            raise _Refused(told, (str(key),))
        found[name] = value
    return found


def _distinct(values: list[Any] | None) -> list[Any] | None:
    for place, value in enumerate(values or ()):
        if value in (values or ())[:place]:
            raise _Refused(f"{shown(value)} is listed twice", (place,))
    return values


def _listed(value: Any) -> Any:
    return value if value is None or isinstance(value, (list, tuple)) else [value]


def _chain(value: Any) -> Any:
    if isinstance(value, str):
        with _refusing():
            return [] if value == "none" else parse_chain(value)
    if value in ([], ()):
        raise _Refused('an empty list of defenses; write "none" for no defense')
    return _listed(value)


def _seeds(values: list[int]) -> list[int]:
    from fedpriv.datasets.federated import MAX_LEGACY_SEED

    for place, seed in enumerate(values):
        if seed > MAX_LEGACY_SEED:
            raise _Refused(f"expected a whole number of at most {MAX_LEGACY_SEED}, got {seed}", (place,))
    return values


_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
_Number = Annotated[int, Strict(), Ge(1)]
_Seed = Annotated[int, Strict(), Ge(0)]
_Table = Annotated[dict[str, Any], AfterValidator(_underscored)]


class _Member(BaseModel):
    """A method, defense or attack: a table with a name, or one word that stands for such a table.

    Keys that are not fields are its own options; whether it has them is found out where the name is looked up.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    name: _Text
    label: _Text | None = None

    @model_validator(mode="before")
    @classmethod
    def _table(cls, value: Any) -> Any:
        if isinstance(value, str):
            with _refusing():
                value = parse_entry(value)
        if not isinstance(value, Mapping):
            raise _Refused(f"expected a name or a table with one, got {shown(value)}")
        if not isinstance(value.get("name"), str):
            raise _Refused('needs a name: { name = "..." }')
        return _underscored(value)

    @property
    def options(self) -> dict[str, Any]:
        """Settings beside the fields."""
        return dict(self.__pydantic_extra__ or {})


class WrittenAttack(_Member):
    """An attack; ``budget`` lists iterations for a curve."""

    budget: Annotated[
        Annotated[list[_Number], MinLen(1)] | None, BeforeValidator(_listed), AfterValidator(_distinct)
    ] = None


class WrittenDefense(_Member):
    """A defense."""


_Chains = Annotated[list[Annotated[list[WrittenDefense], BeforeValidator(_chain)]], MinLen(1)]


def _attacked(value: Any) -> Any:
    if value in ([], ()):
        raise _Refused('an empty list: nothing would be attacked; write "none" to train only, "all" for all that fit')
    return None if value == "all" else [] if value == "none" else value


_Attacks = Annotated[list[WrittenAttack] | None, BeforeValidator(_attacked)]


class WrittenMethod(_Member):
    """A method; its own options may stand in ``option``, which sets them apart from settings of the federation."""

    target: _Text | None = None
    attacks: _Attacks = None
    defenses: _Chains | None = None
    option: _Table = {}


class WrittenStudy(BaseModel):
    """A study, every shape checked, nothing expanded. ``docs/audit.md`` describes the fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    federation: _Table = {}
    methods: Annotated[list[WrittenMethod], MinLen(1)] = [WrittenMethod(name="fedre")]
    defenses: _Chains = [[]]
    attacks: _Attacks = None
    seeds: Annotated[
        list[_Seed], MinLen(1), BeforeValidator(_listed), AfterValidator(_distinct), AfterValidator(_seeds)
    ] = [0]
    knowledge: _Table = {}
    targets: _Number = 48
    control: Annotated[bool, Strict()] = True
    local: Annotated[bool, Strict()] = True
    redact: Literal["none", "blur", "omit"] = "none"
    precision: Precision = "float32"
    rounds_seen: _Number | None = None
    axes: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _table(cls, value: Any) -> Any:
        return _underscored(value) if isinstance(value, Mapping) else value


def read_written(origin: Origin) -> WrittenStudy:
    """Check a study's shape.

    Raises:
        UserError: naming the path of the key.
    """
    try:
        return WrittenStudy.model_validate(dict(origin.values))
    except ValidationError as error:
        first = error.errors()[0]
        keys, message = tuple(first["loc"]), first["msg"][0].lower() + first["msg"][1:]
        inner = first.get("ctx", {}).get("error")
        if isinstance(inner, _Refused):
            raise origin.error((*keys, *inner.keys), str(inner)) from error
        if first["type"] == "extra_forbidden":
            raise origin.error(keys, unknown_key("key of a study", str(keys[-1]), WrittenStudy.model_fields)) from error
        if first["type"] == "too_short":
            raise origin.error(keys, "an empty list: nothing would run") from error
        raise origin.error(keys, f"{message}, got {shown(first['input'])}") from error


def unknown_key(kind: str, key: str, known: Iterable[str]) -> str:
    """Return the message about a key that is not known."""
    names = sorted(set(known))
    close = difflib.get_close_matches(key.replace("-", "_"), names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"unknown {kind}: {key!r}; {hint}known: {', '.join(names)}"


# ---------------------------------------------------------------- from files and flags


def read_file(path: Path) -> Origin:
    """Read a study's file.

    Raises:
        UserError: when it is missing or not TOML; the message gives line and column.
    """
    return Origin(toml_file(path, expected="a study in TOML, see docs/audit.md"), path)


def overridden(origin: Origin, settings: Mapping[str, Any]) -> Origin:
    """Return a study in which settings take the place of what a file says.

    Args:
        origin: the file, or an empty study.
        settings: value by name with underscores, as a study has it or in texts; what is no key of a study is a setting of
            its federation.

    Raises:
        UserError: naming the argument whose text is not written as it should be.
    """
    top = {name: _from_texts(name, value) for name, value in settings.items() if name in WrittenStudy.model_fields}
    federation = {name: _plain(value) for name, value in settings.items() if name not in top}
    axes = top.pop("axes", {})
    places: dict[Keys, str] = {(name,): argument(name) for name in top}
    values = _over(origin.values, top)
    for table, own in (("federation", federation), ("axes", axes)):
        if own:
            before = values.get(table, {})
            if not isinstance(before, Mapping):
                raise origin.error((table,), f"expected a table, got {shown(before)}")
            values[table] = _over(before, own)
            places |= {
                (table, name): argument(name) if own is federation else f"{argument('axes')} {name}" for name in own
            }
    return Origin(values, origin.file, places)


def _from_texts(name: str, value: Any) -> Any:
    """Return a key of a study as a file would have it: texts may hold several entries with commas between."""
    listed = [value] if isinstance(value, str) else _plain(value)
    texts = listed if isinstance(listed, list) and all(isinstance(one, str) for one in listed) else None
    if name == "axes":
        if texts is None and not isinstance(value, Mapping):
            raise UserError(f"{argument('axes', value)}: expected a mapping, or texts KEY=VALUE,VALUE")
        return value if texts is None else parse_axes(texts)
    if name in ("redact", "precision"):
        return value
    if name == "knowledge":
        return mapping("knowledge", value)
    if texts is None:
        return listed
    if name == "seeds":
        try:
            return [int(part) for text in texts for part in text.split(",")]
        except ValueError as error:
            where = argument("seeds", ",".join(texts))
            raise UserError(f"{where}: expected whole numbers with commas between, such as 0,1,2") from error
    entries = [entry for text in texts for entry in split_entries(text)]
    return entries[0] if name == "attacks" and entries in (["all"], ["none"]) else entries


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value


def _over(before: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in before.items() if key.replace("-", "_") not in flags} | dict(flags)


def parse_axes(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Return the axes that flags describe.

    >>> parse_axes(["alpha=0.1,1", "methods.fedre.mechanism=VAP,VAR"])
    {'alpha': [0.1, 1], 'methods.fedre.mechanism': ['VAP', 'VAR']}

    Raises:
        UserError: when one is not written so, or is there twice.
    """
    found: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals or not key or not values:
            raise UserError(f"{argument('axes', text)}: expected KEY=VALUE,VALUE, such as alpha=0.1,1")
        if key in found:
            raise UserError(f"{argument('axes', text)}: {key} is there twice")
        found[key] = inline_values(values)
    return found
