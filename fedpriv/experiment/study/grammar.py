"""Spelling of methods, defenses and attacks in one word: ``NAME:KEY=VALUE,KEY=VALUE``, with commas between entries.

``A+B`` puts defense B behind defense A; ``scale=0.1/1`` gives a list of values, which a defense expands to a grid and an
attack takes as its budgets.
"""

from __future__ import annotations

import re
from typing import Any

from fedpriv.attacks import ATTACKS
from fedpriv.defenses import DEFENSES
from fedpriv.methods import METHODS
from fedpriv.util.errors import UserError
from fedpriv.util.foreign import inline_value
from fedpriv.util.registry import split_reference

_BEHIND = re.compile(r"\+(?=[A-Za-z])")
"""The plus between two defenses; the plus of 1e+3 is followed by a digit."""


def split_entries(text: str) -> list[str]:
    """Return the entries of a list with commas, which separate an entry's own options too.

    >>> split_entries("none,noise:scale=0.1,kind=laplace,clip:norm=1")
    ['none', 'noise:scale=0.1,kind=laplace', 'clip:norm=1']
    """
    entries: list[str] = []
    for piece in text.split(","):
        head, equals, _ = piece.partition("=")
        if equals and ":" not in head and entries and ":" in entries[-1]:
            entries[-1] += f",{piece}"
        else:
            entries.append(piece.strip())
    return entries


def parse_entry(text: str) -> dict[str, Any]:
    """Return the table that one entry stands for.

    >>> parse_entry("noise:scale=0.1/1,kind=laplace")
    {'name': 'noise', 'scale': [0.1, 1], 'kind': 'laplace'}

    Raises:
        UserError: when it is not written so.
    """
    name, rest = split_reference(text, METHODS, DEFENSES, ATTACKS)
    colon = rest or text.endswith(":")
    if not name.strip():
        raise UserError(f"{text!r}: expected NAME or NAME:KEY=VALUE,KEY=VALUE")
    if "=" in name:
        raise UserError(
            f"{text!r}: expected a name before the options; options of one entry stand behind : with commas between, and + "
            "begins another defense"
        )
    table: dict[str, Any] = {"name": name.strip()}
    for pair in rest.split(",") if colon else ():
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
    """Return the tables of defenses that are applied one behind another: ``clip:norm=1+noise:scale=0.1``.

    Raises:
        UserError: when it is not written so.
    """
    return [parse_entry(part) for part in _BEHIND.split(text)]
