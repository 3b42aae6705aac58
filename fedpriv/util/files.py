"""Files that are whole or not there, and folders that fedpriv made, each known by its marker.

A marker says ``{"made_by": "fedpriv", "format": 4, "kind": "run", "id": ...}``. A file is written under a temporary name,
forced to the disk, then renamed, so a crash leaves the old file or the new one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fedpriv.util import access, foreign
from fedpriv.util.errors import UserError

MARKER = ".fedpriv.jsonl"
LOCK = ".fedpriv.lock"
PARTIAL = ".fedpriv-partial"
"""End of temporary names."""
FORMAT = 4


def _head(folder: Path) -> dict[str, Any] | None:
    try:
        with (folder / MARKER).open(encoding="utf-8") as file:
            head = foreign.json_value(file.readline(4096))
    except (OSError, ValueError):
        return None
    if not isinstance(head, dict) or head.get("made_by") != "fedpriv" or not head.get("id"):
        return None
    if head.get("format") != FORMAT:
        raise UserError(
            f"{folder / MARKER}: format {head.get('format')!r}, but this version reads format {FORMAT}; "
            "use the fedpriv that made the folder, or another folder"
        )
    return head


def identity(folder: Path) -> str | None:
    """Return the identity of a folder that fedpriv made, or None for any other; UserError for another version's format."""
    return (_head(folder) or {}).get("id")


def homes_of(folder: Path) -> list[Path]:
    """Return the marked folders among this one and those above it, the innermost first."""
    position = Path(os.path.abspath(folder))
    return [home for home in (position, *position.parents) if _head(home) is not None]


def mode_of(folder: Path) -> int | None:
    """Return the mode of folders within a marked one, by that one's own mode; None outside of marked folders."""
    homes = homes_of(folder)
    if not homes:
        return None
    mode = homes[0].stat().st_mode
    return next((known for known in (access.PUBLIC, access.GROUP) if mode & known == known), access.PRIVATE)


def make(folder: Path, least: int = 0) -> None:
    """Make a folder and those above it: within a marked folder with its mode, else by the umask or as ``least`` has it."""
    for index in reversed([position for position in (folder, *folder.parents) if not position.is_dir()]):
        mode = mode_of(index.parent)
        index.mkdir(exist_ok=True)
        access.set_mode(index, index.stat().st_mode & 0o777 | least if mode is None else mode)


def new_mode(folder: Path, *, public: bool = False) -> int:
    """Return the mode of a folder to mark: public or the group's where asked, else that of the marked one around it."""
    requested = access.PUBLIC if public else access.GROUP if access.shared() else None
    return requested or mode_of(folder.parent) or access.PRIVATE


def mark(folder: Path, kind: str, *, public: bool = False) -> str:
    """Make and mark a folder, to hold a kind of thing, unless it is marked; return its identity, which is its alone."""
    known = identity(folder)
    if known is not None:
        return known
    made, mode = uuid.uuid4().hex, new_mode(folder, public=public)
    make(folder, mode)
    access.set_mode(folder, mode)
    write_text(folder / MARKER, json.dumps({"made_by": "fedpriv", "format": FORMAT, "kind": kind, "id": made}) + "\n")
    access.set_mode(folder / MARKER, mode & 0o666)
    return made


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def placing(paths: Iterable[Path]) -> Iterator[dict[Path, Path]]:
    """Yield temporary names to write files under; when the block ends they take their places, the last one last.

    UserError where a folder is in the way, or a link leads out of the marked folder.
    """
    temporary: dict[Path, Path] = {}
    modes: dict[Path, int | None] = {}
    try:
        for path in paths:
            if path.is_dir():
                raise UserError(f"{path}: is a folder, where fedpriv writes a file; move it away")
            modes[path] = _folder_for(path)
            temporary[path] = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
            temporary[path].unlink(missing_ok=True)
            access.in_place(temporary[path], os.O_RDWR | os.O_CREAT | os.O_EXCL, modes[path]).close()
        yield temporary
        for path, mode in modes.items():
            if mode is not None:  # a library may have made the file anew
                access.set_mode(temporary[path], mode & 0o666)
        with ThreadPoolExecutor(8, "force") as threads:  # the system then writes its own records once for many
            list(threads.map(_force, temporary.values()))
        for path, position in temporary.items():
            os.replace(position, path)
        for folder in dict.fromkeys(path.parent for path in temporary):
            with contextlib.suppress(OSError):
                _force(folder)
    except BaseException:
        for position in temporary.values():
            position.unlink(missing_ok=True)
        raise


def write_all(files: Mapping[Path, bytes]) -> None:
    """Write files, each whole or not at all, forced to the disk together."""
    with placing(files) as temporary:
        for path, content in files.items():
            temporary[path].write_bytes(content)  # into the file that was made, so its mode stays


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file of bytes, whole or not at all."""
    write_all({path: content})


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write JSON, whole or not at all, indented for people."""
    write_text(path, json.dumps(value, indent=2, allow_nan=True) + "\n")


def append_lines(lines: Mapping[Path, Iterable[Mapping[str, Any]]]) -> None:
    """Append JSON lines to files, which are written anew."""
    added = {path: b"".join(json.dumps(row).encode() + b"\n" for row in rows) for path, rows in lines.items()}
    write_all({path: _lines_there(path) + rows for path, rows in added.items()})


def log(path: Path, text: str) -> None:
    """Append text for people, which nothing reads back."""
    with access.in_place(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, _folder_for(path)) as file:
        file.write(text.encode("utf-8"))


def remove(path: Path) -> None:
    """Remove a file, a folder with all that is in it, or a link alone; what is not there is no fault."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _folder_for(path: Path) -> int | None:
    """Make the folder of a file and return its mode, None outside of marked folders."""
    homes = homes_of(path.parent)
    if homes and not path.parent.resolve().is_relative_to(homes[-1].resolve()):
        raise UserError(f"{path.parent}: a link leads out of {homes[-1]}, and nothing is written through it; remove it")
    make(path.parent)
    return mode_of(path.parent)


def _force(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def read_bytes(path: Path) -> bytes:
    """Return the contents of a file of records."""
    return foreign.read_bytes(path, foreign.RECORDS)


def read_json(path: Path) -> Any:
    """Read a file of JSON."""
    try:
        return foreign.json_value(read_bytes(path))
    except ValueError as error:
        raise UserError(f"{path}: not readable as JSON ({error})") from error


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines, none where there is no file; half a line at the end is left out."""
    rows = []
    for number, line in enumerate(_lines_there(path).split(b"\n")[:-1], start=1):
        try:
            row = foreign.json_value(line)
        except ValueError as error:
            raise UserError(f"{path}:{number}: not a line of JSON ({error})") from error
        if not isinstance(row, dict):
            raise UserError(f"{path}:{number}: expected a JSON object, got {type(row).__name__}")
        rows.append(row)
    return rows


def _lines_there(path: Path) -> bytes:
    if not os.path.lexists(path):
        return b""
    if not path.is_file():
        raise UserError(f"{path}: expected a file of JSON lines, and this is none")
    return read_bytes(path)
