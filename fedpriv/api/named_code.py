"""The arguments of a verb: which there are, and the modules that they name, which may therefore be imported."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final, ParamSpec, TypeVar

from fedpriv.util import files
from fedpriv.util.code import allowing, module_names
from fedpriv.util.errors import unknown_name
from fedpriv.util.registry import is_reference, split_reference

P = ParamSpec("P")
T = TypeVar("T")

MEMBERS: Final = frozenset(
    (
        *("attack", "attack_option", "attacks", "axes", "dataset", "defense", "defenses", "federation", "knowledge"),
        *("method", "methods", "models", "name", "option", "partition", "target"),
    )
)
"""Arguments that name members. Paths are none: a folder may be called as whoever made it likes."""

TABLES: Final = ("facts", "study")
"""Arguments that name members where they are mappings; as paths they are files, which may name what they like."""


def verb(keywords: Any = None) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let a verb import what its caller names, as ``package.module:NAME`` or in ``allow_code``, and no other module.

    What it writes is shared as ``share_group`` says. ``keywords`` is the typed dictionary of its further keywords.
    """

    def wrapped(function: Callable[P, T]) -> Callable[P, T]:
        names = tuple(inspect.signature(function).parameters)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            for name in given if keywords is not None else ():
                if name not in (*names, *keywords.__optional_keys__):
                    raise unknown_name("argument", name, keywords.__optional_keys__)
            modules = (*module_names(given.get("allow_code", ())), *named_code(given))
            with allowing(modules), files.sharing(bool(given.get("share_group", False))):
                return function(*args, **kwargs)

        return call

    return wrapped


def named_code(arguments: Mapping[str, Any]) -> set[str]:
    """Return the modules that arguments of a verb name.

    >>> sorted(named_code({"method": "mine:OURS", "defense": ["other.part:Blur:radius=2", "noise:scale=1"]}))
    ['mine', 'other.part']
    """
    texts: set[str] = set()
    for name, value in arguments.items():
        if name in MEMBERS or (name in TABLES and isinstance(value, Mapping)):
            texts.update(_named(value))
        for item in value if isinstance(value, (list, tuple)) else (value,):
            texts.update(getattr(item, "code", ()) if hasattr(item, "path") else ())
    return texts


DEEPEST: Final = 32
"""Levels of nesting that are looked into; what lies deeper is refused where it is read."""


def _named(value: Any, level: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        yield from _in_text(value)
        return
    if is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, spec.name) for spec in fields(value)]
    inner = [*value, *value.values()] if isinstance(value, Mapping) else value
    for entry in inner if isinstance(inner, (list, tuple, set, frozenset)) and level < DEEPEST else ():
        yield from _named(entry, level + 1)


def _in_text(text: str) -> Iterator[str]:
    for piece in text.replace("+", ",").split(","):
        head, equals, rest = piece.strip().partition("=")
        name = head.rpartition(":")[0] if equals else head
        yield from (module for module in map(_module, (name, rest)) if module)


def _module(text: str) -> str:
    """Return the module of a text that begins with a reference; empty for any other."""
    if ":" not in text:
        return ""
    from fedpriv.datasets import DATASETS

    name, _ = split_reference(text.strip("\"'"), DATASETS)  # folder:PATH is a data set
    return name.partition(":")[0] if is_reference(name) else ""
