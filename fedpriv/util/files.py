"""Files that are whole or not there, and listed as ours in the folder that they are written to."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedpriv.util import ownership
from fedpriv.util.errors import UserError


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a temporary name to write a file under; when all is written the file takes its place, whole.

    A reader, or a crash, never sees half of it. Folders above are made. A failure leaves nothing behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}{ownership.PARTIAL}")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        ownership.note(path)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file of bytes, whole or not at all."""
    with whole(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, indented for people."""
    write_text(path, json.dumps(value, indent=2, allow_nan=True) + "\n")


def read_json(path: Path) -> Any:
    """Read JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not readable as JSON ({error})") from error


def append_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append JSON lines and force them to disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ownership.note(path)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines; a last line cut off by a crash is left out."""
    if not path.is_file():
        return []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not readable as lines of JSON ({error})") from error
    complete, rows = lines[:-1], []
    for number, line in enumerate(complete, start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{path}:{number}: not a line of JSON ({error})") from error
        if not isinstance(row, dict):
            raise UserError(f"{path}:{number}: expected a JSON object, got {type(row).__name__}")
        rows.append(row)
    return rows


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
