"""From untyped mappings (TOML files, flags, saved JSON) to frozen dataclasses, with errors a person can act on."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar

from fedpriv.util.errors import UserError, shown

T = TypeVar("T")


def parse(target: type[T], values: Mapping[str, Any], where: str) -> T:
    """Return ``target(**values)`` with nested dataclasses, coercion and every declared bound checked.

    Infinities and NaN are in nobody's bounds, unless one is the field's default.

    Bounds are declared with ``Annotated[float, annotated_types.Gt(0)]`` and the like; ``where`` begins an error.
    """
    from pydantic import ValidationError

    _refuse_unknown_keys(target, values, where, "")
    try:
        made: T = _adapter(target).validate_python(dict(values))  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(step) for step in first["loc"])
        message = first["msg"][0].lower() + first["msg"][1:]
        raise UserError(f"{where}: {name}: {message}, got {shown(first['input'])}", keys=first["loc"]) from error
    _refuse_not_finite(made, values, where, "")
    return made


@lru_cache(maxsize=512)
def _adapter(target: type) -> Any:
    """Return the maker of a class's objects, which itself takes as long to make as thousands of these."""
    from pydantic import TypeAdapter

    return TypeAdapter(target)


@lru_cache(maxsize=512)
def _hints(target: type) -> dict[str, Any]:
    return typing.get_type_hints(target)


def _refuse_unknown_keys(target: type, values: Mapping[str, Any], where: str, prefix: str) -> None:
    hints = _hints(target)
    known = [spec.name for spec in dataclasses.fields(target)]
    for key, value in values.items():
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {prefix + close[0]!r}? " if close else ""
            text = f"{where}: unknown key {prefix + str(key)!r}; {hint}known: {', '.join(known) or 'none'}"
            raise UserError(text, keys=(*prefix.split(".")[:-1], str(key)))
        nested = dataclass_in(hints[key])
        if nested is not None and isinstance(value, Mapping):
            _refuse_unknown_keys(nested, value, where, f"{prefix}{key}.")


def _refuse_not_finite(made: Any, values: Any, where: str, name: str) -> None:
    """Refuse infinities and NaN among the parsed forms of what was given; defaults were not."""
    if isinstance(made, float) and not math.isfinite(made):
        text = f"{where}: {name}: input should be a finite number, got {shown(values)}"
        raise UserError(text, keys=tuple(name.split(".")))
    if dataclasses.is_dataclass(made) and isinstance(values, Mapping):
        defaults = {spec.name: spec.default for spec in dataclasses.fields(made)}
        results = [(key, getattr(made, key), value) for key, value in values.items()]
        entries = [(key, entry, value) for key, entry, value in results if entry != defaults[key]]
    elif isinstance(made, Mapping) and isinstance(values, Mapping):
        entries = [(str(key), entry, values.get(key, entry)) for key, entry in made.items()]
    elif isinstance(made, (list, tuple)):
        written = list(values) if isinstance(values, (list, tuple)) and len(values) == len(made) else list(made)
        entries = [(str(index), *pair) for index, pair in enumerate(zip(made, written, strict=True))]
    else:
        return
    for key, entry, value in entries:
        _refuse_not_finite(entry, value, where, f"{name}.{key}".lstrip("."))


def dataclass_in(hint: Any) -> type | None:
    """Return the dataclass that a type hint is or offers, or None."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return next((option for option in options if dataclasses.is_dataclass(option)), None)  # type: ignore[return-value]


def plain(value: Any) -> Any:
    """Return a dataclass as nested dictionaries of JSON types."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {spec.name: plain(getattr(value, spec.name)) for spec in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    return value
