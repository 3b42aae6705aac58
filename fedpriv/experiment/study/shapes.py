"""The shapes that the settings of a study come in, and what is said of one that has another."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedpriv.experiment.study.entries import DefenseEntry, MethodEntry
from fedpriv.experiment.study.grammar import parse_entry
from fedpriv.experiment.study.source import Source
from fedpriv.experiment.study.toml_lines import Path as Keys


def slug(label: str) -> str:
    """Return a label as the name of a file.

    >>> slug("noise scale=0.1 + clip norm=1")
    'noise-scale=0.1+clip-norm=1'
    """
    plus = label.lower().replace(" + ", "+")
    kept = "".join(c if c.isascii() and (c.isalnum() or c in ".=+") else " " for c in plus)
    return "-".join(kept.split()).strip("-.") or "x"


def as_list(source: Source, keys: Keys, written: Any, besides: str = "") -> list[Any]:
    """Return a list that holds something.

    Raises:
        UserError: when it is none, or empty.
    """
    if not isinstance(written, list):
        raise source.error(keys, f"expected a list {besides}".rstrip() + f", got {written!r}")
    if not written:
        raise source.error(keys, "an empty list: nothing would run")
    return written


def as_table(source: Source, keys: Keys, written: Any) -> Mapping[str, Any]:
    """Return a table.

    Raises:
        UserError: when it is none.
    """
    if not isinstance(written, Mapping):
        raise source.error(keys, f"expected a table, got {written!r}")
    return written


def as_entry(source: Source, keys: Keys, written: Any, kind: str) -> dict[str, Any]:
    """Return the table of a method, defense or attack: as it was written, or what its one word stands for.

    Raises:
        UserError: when it is neither, or has no name.
    """
    if isinstance(written, str):
        with source.at(keys):
            return parse_entry(written)
    if not isinstance(written, Mapping):
        raise source.error(keys, f"expected the name of a {kind} or a table with one, got {written!r}")
    if not isinstance(written.get("name"), str):
        raise source.error(keys, f'a {kind} needs a name: {{ name = "..." }}')
    return dict(written)


def own_label(source: Source, keys: Keys, table: Mapping[str, Any]) -> str | None:
    """Return the label that an entry gives itself, or None.

    Raises:
        UserError: when it is no text.
    """
    if "label" not in table:
        return None
    if not isinstance(table["label"], str) or not table["label"].strip():
        raise source.error((*keys, "label"), f"expected a text, got {table['label']!r}")
    return table["label"].strip()


def with_values(name: str, values: Mapping[str, Any]) -> str:
    """Return a name with settings behind it: ``noise scale=0.1``."""
    return " ".join([name, *(f"{key}={value}" for key, value in values.items())])


def refuse_twice(source: Source, entries: Iterable[MethodEntry | DefenseEntry], kind: str) -> None:
    """Check that labels differ, also as names of files.

    Raises:
        UserError: for the second of two alike.
    """
    seen: dict[str, str] = {}
    for entry in entries:
        name = slug(entry.label)
        if name in seen:
            alike = "" if seen[name] == entry.label else f" (as {seen[name]!r})"
            raise source.error(entry.keys, f"{kind} {entry.label!r} is there twice{alike}; give one a label of its own")
        seen[name] = entry.label


def refuse_unknown(source: Source, keys: Keys, table: Mapping[str, Any], known: Sequence[str], kind: str) -> None:
    """Check the keys of a table; dashes may stand for underscores.

    Raises:
        UserError: for an unknown one, with the nearest known, or one that is there in both spellings.
    """
    refuse_spelled_twice(source, keys, table)
    for key in table:
        if key.replace("-", "_") not in known:
            raise source.error((*keys, key), unknown_key(kind, key, known))


def refuse_spelled_twice(source: Source, keys: Keys, table: Mapping[str, Any]) -> None:
    """Check that no key is there with a dash and with an underscore, of which one would win silently.

    Raises:
        UserError: for the second of the two.
    """
    seen: set[str] = set()
    for key in table:
        name = key.replace("-", "_")
        if name in seen:
            raise source.error((*keys, key), f"set twice: as {name} and as {name.replace('_', '-')}; drop one of them")
        seen.add(name)


def unknown_key(kind: str, key: str, known: Sequence[str]) -> str:
    """Return what is said of a key that is not known."""
    close = difflib.get_close_matches(key.replace("-", "_"), known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"unknown {kind}: {key!r}; {hint}known: {', '.join(sorted(set(known)))}"
