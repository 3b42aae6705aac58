"""From untyped mappings (TOML files, flags, saved JSON) to frozen dataclasses, with errors a person can act on."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from fedpriv.errors import UserError

T = TypeVar("T")


def parse(target: type[T], values: Mapping[str, Any], where: str) -> T:
    """Return ``target(**values)`` with nested dataclasses, coercion and every declared bound checked.

    Args:
        target: a dataclass; bounds are declared with ``Annotated[float, annotated_types.Gt(0)]`` and the like.
        values: what the user gave.
        where: named in the error: a file, a flag.

    Raises:
        UserError: for an unknown key (with the nearest known one), a wrong type or a value out of bounds.
    """
    from pydantic import TypeAdapter, ValidationError

    _refuse_unknown_keys(target, values, where, "")
    try:
        return TypeAdapter(target).validate_python(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(step) for step in first["loc"])
        message = first["msg"][0].lower() + first["msg"][1:]
        raise UserError(f"{where}: {name}: {message}, got {first['input']!r}") from error


def _refuse_unknown_keys(target: type, values: Mapping[str, Any], where: str, prefix: str) -> None:
    hints = typing.get_type_hints(target)
    known = [spec.name for spec in dataclasses.fields(target)]
    for key, value in values.items():
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {prefix + close[0]!r}? " if close else ""
            raise UserError(f"{where}: unknown key {prefix + str(key)!r}; {hint}known: {', '.join(known) or 'none'}")
        nested = _dataclass_in(hints[key])
        if nested is not None and isinstance(value, Mapping):
            _refuse_unknown_keys(nested, value, where, f"{prefix}{key}.")


def _dataclass_in(hint: Any) -> type | None:
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
