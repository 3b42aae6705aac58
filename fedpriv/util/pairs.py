"""Texts as people write them: ``KEY=VALUE``, nested by dots, and lists of names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedpriv.util.errors import UserError, shown
from fedpriv.util.foreign import inline_value


def key_values(pairs: tuple[str, ...], flag: str) -> dict[str, Any]:
    """Turn ``("a=1", "server.epochs=2")`` into ``{"a": 1, "server": {"epochs": 2}}``.

    Values are read as TOML where that is possible, otherwise as text.
    """
    result: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise UserError(f"{flag} {pair}: expected KEY=VALUE")
        *parents, last = key.split(".")
        inner = result
        for parent in parents:
            inner = inner.setdefault(parent, {})
            if not isinstance(inner, dict):
                raise UserError(f"{flag} {pair}: {parent!r} already has a value")
        inner[last] = inline_value(text)
    return result


def mapping(name: str, value: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
    """Return an argument that is a mapping, or texts ``KEY=VALUE``, as a mapping."""
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise UserError(f"{name}={shown(dict(value))}: expected names as keys")
        return dict(value)
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(item, str) for item in value):
        raise UserError(f"{name}={shown(value)}: expected a mapping, or texts KEY=VALUE")
    return key_values(tuple(value), name)


def texts(name: str, value: Any) -> tuple[str, ...]:
    """Return one text or several as a tuple."""
    several = (value,) if isinstance(value, str) else value
    if not isinstance(several, Sequence) or not all(isinstance(item, str) for item in several):
        raise UserError(f"{name}={shown(value)}: expected a text or a list of texts")
    return tuple(several)
