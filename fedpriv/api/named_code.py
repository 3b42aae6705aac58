"""The arguments of a verb: which there are, and the modules that they name, which may therefore be imported."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final, ParamSpec, TypeVar

from fedpriv.datasets import DATASETS
from fedpriv.util import files
from fedpriv.util.errors import unknown_name
from fedpriv.util.registry import allowing, is_reference, module_names, split_reference

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
        parameters = inspect.signature(function).parameters.items()
        names = [name for name, parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]

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
    modules: set[str] = set()
    for name, value in arguments.items():
        if name in MEMBERS or (name in TABLES and isinstance(value, Mapping)):
            modules.update(_modules(value))
        for item in value if isinstance(value, (list, tuple)) else (value,):
            modules.update(getattr(item, "code", ()) if hasattr(item, "path") else ())
    return modules


DEEPEST: Final = 32
"""Levels of nesting that are looked into; what lies deeper is refused where it is read."""


def _modules(value: Any, level: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        for piece in value.replace("+", ",").split(","):
            head, equals, rest = piece.strip().partition("=")
            for text in (head.rpartition(":")[0] if equals else head, rest):
                name, _ = split_reference(text.strip("\"'"), DATASETS)  # folder:PATH is a data set
                if is_reference(name):
                    yield name.partition(":")[0]
        return
    if is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, spec.name) for spec in fields(value)]
    inner = [*value, *value.values()] if isinstance(value, Mapping) else value
    for entry in inner if isinstance(inner, (list, tuple, set, frozenset)) and level < DEEPEST else ():
        yield from _modules(entry, level + 1)
