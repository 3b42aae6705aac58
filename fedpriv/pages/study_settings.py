"""The settings of a study as a page shows them: as they were written, in TOML that runs again, and filled in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv.pages.study_files import StudyFile


@dataclass(frozen=True)
class StudySettings:
    """The request of a study.

    Attributes:
        title: the file that it was written in, or how else; beside other studies its folder.
        written: a study file in TOML, flags worked in; empty where it was not recorded.
        complete: the same as JSON, with the options of methods, defenses and attacks filled in.
    """

    title: str
    written: str
    complete: str


def study_settings(study: StudyFile) -> StudySettings:
    """Return the settings that ``study.json`` holds."""
    return StudySettings(
        title=Path(study.source).name if study.source else "flags",
        written=toml(study.written or {}),
        complete=json.dumps(study.asked, indent=2, ensure_ascii=False),
    )


def toml(values: Mapping[str, Any]) -> str:
    """Return nested mappings, lists and plain values as TOML; None, which TOML lacks, is left out.

    Tables at the top have a header, lists of tables a line an entry, deeper ones stand in line.

    >>> print(toml({"seeds": [0, 1], "federation": {"lr": 0.1}}))
    seeds = [0, 1]
    <BLANKLINE>
    [federation]
    lr = 0.1
    """
    plain = [f"{_key(key)} = {_top(value)}" for key, value in _given(values) if not isinstance(value, Mapping)]
    tables = [
        "\n".join([f"[{_key(key)}]", *(f"{_key(name)} = {_value(item)}" for name, item in _given(value))])
        for key, value in _given(values)
        if isinstance(value, Mapping)
    ]
    return "\n\n".join(filter(None, ["\n".join(plain), *tables]))


def _given(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in values.items() if value is not None]


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if bare else _value(key)


def _top(value: Any) -> str:
    if isinstance(value, list) and any(isinstance(item, (Mapping, list)) for item in value):
        return "[\n" + "".join(f"  {_value(entry)},\n" for entry in value if entry is not None) + "]"
    return _value(value)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return "[" + ", ".join(_value(entry) for entry in value if entry is not None) + "]"
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(key)} = {_value(item)}" for key, item in _given(value))
        return f"{{ {inner} }}" if inner else "{}"
    return repr(value)
