"""The words in which members describe themselves: their docstrings, where their kind has them."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import is_dataclass
from typing import Any

from fedpriv.util.docstrings import markdown, summary
from fedpriv.util.registry import Registry


def one_sentence(kind: str, members: Registry, name: str) -> str:
    """Return the sentence in which a member says what it is or does; empty where it has no docstring.

    Args:
        kind: ``methods``, ``defenses``, ``datasets``, ``models`` or ``payloads``.
        members: the registry of that kind.
        name: of a member that can be loaded.
    """
    told = summary(_docstring(kind, members, name))
    return told.removeprefix("Load ").removeprefix("Draw ") if kind == "datasets" else told


def in_full(kind: str, members: Registry, name: str) -> str:
    """Return a member's docstring as Markdown, and its options beneath."""
    parts = [markdown(_docstring(kind, members, name))]
    options = getattr(members.load(name), "options", None) if kind == "methods" else None
    if is_dataclass(options) and (told := _own(options)):
        parts.append(f"## Options\n\n{markdown(told)}")
    return "\n\n".join(part for part in parts if part)


def _docstring(kind: str, members: Registry, name: str) -> str:
    if kind == "methods":  # a method is a constant: its file speaks for it
        return inspect.cleandoc(importlib.import_module(members[name].partition(":")[0]).__doc__ or "")
    found = members.load(name)
    return _own(getattr(found, "func", found))  # of a partial function, the whole one's


def _own(found: Any) -> str:
    """Return a docstring that somebody wrote: dataclasses without one are given their signature by Python."""
    told = inspect.getdoc(found) or ""
    return "" if told.startswith(f"{getattr(found, '__name__', '')}(") else told
