"""Settings and records: from untyped mappings and texts to frozen objects, with errors that a person can act on."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from fedpriv.util.errors import UserError, shown
from fedpriv.util.foreign import inline_value

T = TypeVar("T")


def parse(target: type[T], values: Mapping[str, Any], where: str) -> T:
    """Return ``target(**values)``, its bounds ``Annotated[float, Gt(0)]`` checked; ``where`` begins an error.

    Infinities and NaN are in nobody's bounds. Of a group of settings those that are not given keep the target's default.
    """
    _refuse_unknown_keys(target, values, where, "")
    groups = {
        spec.name: vars(spec.default) | dict(values[spec.name])
        for spec in dataclasses.fields(target)  # type: ignore[arg-type]
        if dataclasses.is_dataclass(spec.default) and isinstance(values.get(spec.name), Mapping)
    }
    try:
        made: T = _adapter(target).validate_python([{**values, **groups}])[0]  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        keys = first["loc"][1:]
        message = first["msg"][0].lower() + first["msg"][1:]
        if first["type"] == "tuple_type":
            message = "expected a list, such as [1,2]"
        name = ".".join(map(str, keys))
        raise UserError(f"{where}: {name}: {message}, got {shown(first['input'])}", keys=keys) from error
    return made


@lru_cache(maxsize=512)  # it takes as long to make as thousands of objects
def _adapter(target: type) -> Any:
    return TypeAdapter(list[target], config=ConfigDict(allow_inf_nan=False))  # type: ignore[valid-type]


_hints = lru_cache(maxsize=512)(typing.get_type_hints)


def _refuse_unknown_keys(target: type, values: Mapping[str, Any], where: str, prefix: str) -> None:
    hints = _hints(target)
    known = [spec.name for spec in dataclasses.fields(target)]
    for key, value in values.items():
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {prefix + close[0]!r}? " if close else ""
            text = f"{where}: unknown key {prefix + str(key)!r}; {hint}known: {', '.join(known) or 'none'}"
            raise UserError(text, keys=(*prefix.split(".")[:-1], str(key)))
        options = typing.get_args(hints[key]) if isinstance(hints[key], types.UnionType) else (hints[key],)
        nested: Any = next(filter(dataclasses.is_dataclass, options), None)
        if nested is not None and isinstance(value, Mapping):
            _refuse_unknown_keys(nested, value, where, f"{prefix}{key}.")


def plain(value: Any) -> Any:
    """Return a dataclass as nested dictionaries of JSON types."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {spec.name: plain(getattr(value, spec.name)) for spec in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    return value


def mapping(name: str, value: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
    """Return an argument that is a mapping, or texts ``KEY=VALUE``, as a mapping.

    ``("a=1", "server.epochs=2")`` is ``{"a": 1, "server": {"epochs": 2}}``: values are TOML where they can be, else text.
    """
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise UserError(f"{name}={shown(dict(value))}: expected names as keys")
        return dict(value)
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(item, str) for item in value):
        raise UserError(f"{name}={shown(value)}: expected a mapping, or texts KEY=VALUE")
    result: dict[str, Any] = {}
    for pair in value:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise UserError(f"{name} {pair}: expected KEY=VALUE")
        *parents, last = key.split(".")
        inner = result
        for parent in parents:
            inner = inner.setdefault(parent, {})
            if not isinstance(inner, dict):
                raise UserError(f"{name} {pair}: {parent!r} already has a value")
        inner[last] = inline_value(text)
    return result


def texts(name: str, value: Any) -> tuple[str, ...]:
    """Return one text or several as a tuple."""
    several = (value,) if isinstance(value, str) else value
    if not isinstance(several, Sequence) or not all(isinstance(item, str) for item in several):
        raise UserError(f"{name}={shown(value)}: expected a text or a list of texts")
    return tuple(several)


class Record(BaseModel):
    """A record or a part of one. Numbers in it are finite wherever they are measured."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants", defer_build=True)


def first_fault(error: ValidationError, skip: int = 0) -> str:
    """Return the first thing that is wrong, by its dotted name; ``skip`` leaves out so many steps of it."""
    first = error.errors(include_url=False)[0]
    name = ".".join(str(step) for step in first["loc"][skip:])
    if first["type"] == "missing":
        return f"field {name!r} is missing"
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"field {name!r} is unknown"
    message = first["msg"][0].lower() + first["msg"][1:]
    return f"field {name!r}: {message}" if name else message
