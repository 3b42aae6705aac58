"""Two folders of fedpriv compared, byte for byte but for locks and the order of what markers list."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from fedpriv.util.files import LOCK, MARKER, PARTIAL


def contents(folder: Path) -> dict[str, bytes | None]:
    """Return every file below a folder with its bytes, every folder with None, by name."""
    found: dict[str, bytes | None] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = f"link to {path.readlink()}".encode()
        else:
            found[name] = path.read_bytes() if path.is_file() else None
    return found


def differences(
    expected: dict[str, bytes | None], folder: Path, *, besides: Collection[str] = frozenset()
) -> list[str]:
    """Return what is otherwise in a folder than expected, a line a file, besides some files; see :func:`contents`."""
    expected, there = (
        {name: held for name, held in one.items() if name not in besides} for one in (expected, contents(folder))
    )
    lines = [f"missing: {name}" for name in expected.keys() - there.keys()]
    lines += [f"too many: {name}" for name in there.keys() - expected.keys()]
    lines += [
        f"differs: {name}"
        for name in expected.keys() & there.keys()
        if _essence(name, expected[name], expected) != _essence(name, there[name], there)
    ]
    return sorted(lines)


def litter(folder: Path) -> list[str]:
    """Return the names of what is left unfinished at any depth of a folder."""
    unfinished = (PARTIAL, ".partial", ".tmp")
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.name.endswith(unfinished))


def _essence(name: str, held: bytes | None, beside: dict[str, bytes | None]) -> object:
    """Return what of a file is a function of what was asked for, where clocks stand still."""
    if held is None:
        return None
    base = name.rpartition("/")[2]
    if base == LOCK:
        return b""
    if base == MARKER:
        return _listed(name.removesuffix(MARKER), held, beside)
    if base == "cells.jsonl":
        return [_timeless(json.loads(line)) for line in held.splitlines()]
    return held


def _timeless(row: dict[str, object]) -> dict[str, object]:
    """Return a line of a study's cells without its recorded times: what was done before a kill has none."""
    attacks = row.get("attacks")
    kept = [_timeless(one) for one in attacks] if isinstance(attacks, list) else attacks
    return {name: value for name, value in row.items() if name != "seconds"} | {"attacks": kept}


def _listed(above: str, held: bytes, beside: dict[str, bytes | None]) -> dict[str, object]:
    """Return the head, and which of the files that are there are listed."""
    found: dict[str, object] = {}
    for line in held.decode("utf-8", "replace").split("\n"):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and "file" not in row:
            found[""] = {key: value for key, value in row.items() if key != "id"}
        elif isinstance(row, dict) and above + row["file"] in beside:
            found[row["file"]] = True
    return found
