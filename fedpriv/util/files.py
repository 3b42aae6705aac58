"""Files that are whole or not there, in folders that say who made them and who may read them.

A folder that fedpriv made has a marker, which lists the files there that fedpriv reads again, below marked folders apart::

    {"made_by": "fedpriv", "format": 3, "kind": "run", "id": ...}
    {"file": "config.json", "sha256": ...}       holds what was written there
    {"file": "metrics.jsonl", "sha256": null}    is about to be another, or to go

The last line about a file counts. A file is written under a temporary name, forced to the disk, renamed, then listed: a
crash leaves the old file or the new one, without a digest until the work is done again. What is not listed is not checked.

What holds private images is its owner's alone, whatever the umask: folders 0700, files 0600. A folder that fedpriv made may
be shared with the owner's group (0750, files 0640) or be made to be passed on (0755, files 0644); its own mode says which.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any, cast

from fedpriv.util import foreign
from fedpriv.util.errors import UserError

MARKER = ".fedpriv.jsonl"
LOCK = ".fedpriv.lock"
PARTIAL = ".fedpriv-partial"  # end of temporary names
FORMAT = 3
PRIVATE, GROUP, PUBLIC = 0o700, 0o750, 0o755  # modes of folders; their files have the same without the right to execute
READ_AGAIN = (".json", ".jsonl", ".safetensors", ".png")  # ends of the names of files that markers list
_seen: dict[str, tuple[int, ...]] = {}
"""Files that hold what was written there: device, inode, size and time of change."""
_lists: dict[Path, tuple[tuple[str, int, int, int], dict[str, str]]] = {}
"""Of a folder the identity, its marker's inode, size and time of change, and what that lists."""

_group: ContextVar[bool] = ContextVar("share_group", default=False)


@contextlib.contextmanager
def sharing(group: bool) -> Iterator[None]:
    """Let the owner's group read the folders that are made, or gone on with, in the block."""
    token = _group.set(group)
    try:
        yield
    finally:
        _group.reset(token)


def shared() -> bool:
    """True where the owner's group is to read what is made."""
    return _group.get()


def open_own(path: Path, flags: int, mode: int | None) -> int:
    """Open a file that is written where it stands, and is no link; made with the files' mode of a folder of ``mode``."""
    try:
        number = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666 if mode is None else 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR):
            raise UserError(
                f"{path}: is a link or no file; fedpriv writes here and follows no link: remove it"
            ) from error
        raise
    if flags & os.O_APPEND and os.fstat(number).st_nlink > 1:  # its other names may be somebody's
        os.close(number)
        content = path.read_bytes()
        with _placing({path: mode_of(path.parent)}) as temporary:
            temporary[path].write_bytes(content)
        return open_own(path, flags, mode)
    if mode is not None and flags & os.O_CREAT and os.fstat(number).st_size == 0:
        set_mode(number, mode & 0o666)
    return number


def set_mode(file: int | Path, mode: int) -> None:
    """Give a file or folder its mode where it has another; bits of a folder that go on to what is made in it stay."""
    before = os.stat(file).st_mode
    if before & 0o777 != mode:
        os.chmod(file, before & 0o7000 | mode)


def identity(folder: Path | str) -> str | None:
    """Return the identity of a folder that fedpriv made, or None for any other; UserError for another version's format."""
    try:
        number = os.open(os.path.join(folder, MARKER), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            head = foreign.json_value(os.read(number, 4096).partition(b"\n")[0])
        finally:
            os.close(number)
    except (OSError, ValueError):
        return None
    if not isinstance(head, dict) or head.get("made_by") != "fedpriv" or not head.get("id"):
        return None
    if head.get("format") != FORMAT:
        raise UserError(
            f"{Path(folder) / MARKER}: format {head.get('format')!r}, but this version reads format {FORMAT}; "
            "use fedpriv 0.1.0, which made the folder, or another folder"
        )
    return str(head["id"])


def homes_of(folder: Path) -> list[Path]:
    """Return the marked folders among this one and those above it, the innermost first."""
    position = Path(os.path.abspath(folder))
    return [home for home in (position, *position.parents) if identity(home)]


def mode_of(folder: Path) -> int | None:
    """Return the mode of folders within a marked one, by that one's own mode; None outside of marked folders."""
    return _mode_in(homes_of(folder))


def _mode_in(homes: list[Path]) -> int | None:
    if not homes:
        return None
    mode = homes[0].stat().st_mode
    return next((known for known in (PUBLIC, GROUP) if mode & known == known), PRIVATE)


def make(folder: Path, least: int = 0) -> None:
    """Make a folder and those above it: within a marked folder with its mode, else by the umask or as ``least`` has it."""
    for index in reversed([position for position in (folder, *folder.parents) if not position.is_dir()]):
        mode = mode_of(index.parent)
        index.mkdir(exist_ok=True)
        set_mode(index, index.stat().st_mode & 0o777 | least if mode is None else mode)


def new_mode(folder: Path, *, public: bool = False) -> int:
    """Return the mode of a folder to mark: public or the group's where asked, else that of the marked one around it."""
    requested = PUBLIC if public else GROUP if shared() else None
    return requested or mode_of(folder.parent) or PRIVATE


def mark(folder: Path, kind: str, *, public: bool = False) -> None:
    """Make and mark a folder, to hold a kind of thing, unless it is marked."""
    if identity(folder) is None:
        mode = new_mode(folder, public=public)
        make(folder, mode)
        set_mode(folder, mode)
        row = {"made_by": "fedpriv", "format": FORMAT, "kind": kind, "id": uuid.uuid4().hex}
        with _placing({folder / MARKER: mode}) as temporary:
            temporary[folder / MARKER].write_bytes(_lines([row]))


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with foreign.open_file(path, foreign.TENSORS) as file:
        return hashlib.file_digest(cast(io.BufferedReader, file), "sha256").hexdigest()


def listed(home: Path) -> dict[str, str]:
    """Return the digests that a folder's marker lists, by the names of the files from there; none without a marker."""
    known = identity(home)
    if known is None:
        return {}
    about, (before, rows) = os.stat(home / MARKER), _lists.get(home, (("", 0, 0, 0), {}))
    now = known, about.st_ino, about.st_size, about.st_mtime_ns
    if before == now:
        return rows
    read = before[2] if before[:2] == now[:2] and before[2] < now[2] else 0  # where lines were added since
    rows = rows if read else {}
    with foreign.open_file(home / MARKER, foreign.RECORDS) as file:
        file.seek(read)
        for line in file.read(now[2] - read).split(b"\n"):
            with contextlib.suppress(ValueError, KeyError, TypeError):  # the first, an empty line, or half of one
                row = foreign.json_value(line)
                if row["sha256"] is None:
                    rows.pop(row["file"], None)
                else:
                    rows[str(row["file"])] = row["sha256"]
    _lists[home] = now, rows
    return rows


def checked(path: Path) -> Path:
    """Return the path of a file; UserError where it is gone, or is not what was written there. Looks once in a process."""
    key, stamp = os.fspath(path), _stamp(path)
    if stamp and _seen.get(key) == stamp:
        return path
    home, name = _place(path)
    expected = None if home is None else listed(home).get(name)
    if expected is not None and not (path.is_file() and digest(path) == expected):
        what = "altered: it is not what fedpriv wrote there" if os.path.lexists(path) else "missing"
        advice = f"restore it from a copy, or remove {home} and repeat the command that made it"
        raise UserError(f"{path}: {what} (SHA-256 in {MARKER}); {advice}")
    _seen[key] = stamp
    return path


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        about = os.stat(path)
    except OSError:
        return ()
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns


def check_present(home: Path) -> None:
    """Check that every file is there that a folder's marker lists, but the private truth, which may be taken away.

    What they hold is checked when they are read.
    """
    for name in list(listed(home)):
        if not name.startswith("truth") and not os.path.lexists(home / name):
            checked(home / name)


def forget(home: Path) -> None:
    """Drop from a marker the digests of what files held before: they confirm a guess at what was redacted since."""
    head, rows = (home / MARKER).read_bytes().partition(b"\n")[0], listed(home)
    with _placing({home / MARKER: _mode_in([home])}) as temporary:
        temporary[home / MARKER].write_bytes(head + b"\n" + _listing(rows))


def _place(path: Path) -> tuple[Path | None, str]:
    """Return the marked folder around a file, None where there is none, and the file's name from there."""
    whole = os.path.abspath(path)
    home = os.path.dirname(whole)
    while identity(home) is None:
        home, below = os.path.dirname(home), home
        if home == below:
            return None, ""
    return Path(home), whole[len(home) :].lstrip(os.sep)


def _listing(rows: Mapping[str, str | None]) -> bytes:
    return _lines({"file": name, "sha256": value} for name, value in rows.items())


def _list(home: Path, rows: Mapping[str, str | None]) -> None:
    """Add lines to a marker; None for what is about to be another file, or to go."""
    number = open_own(home / MARKER, os.O_WRONLY | os.O_APPEND, None)
    with naming(home / MARKER), os.fdopen(number, "ab") as file:
        file.write(b"\n" + _listing(rows))  # in one piece, apart from a line that a crash cut
        file.flush()
        if None in rows.values():
            os.fsync(file.fileno())


@contextlib.contextmanager
def placing(paths: Iterable[Path]) -> Iterator[dict[Path, Path]]:
    """Yield temporary names to write files under; when the block ends they take their places, the last one last.

    UserError where a folder is in the way, or a link leads out of the marked folder.
    """
    files = list(paths)
    modes = {folder: _folder_for(folder) for folder in dict.fromkeys(path.parent for path in files)}
    for path in files:
        if path.is_dir():
            raise UserError(f"{path}: is a folder, where fedpriv writes a file; move it away")
    with _placing({path: modes[path.parent] for path in files}) as temporary:
        yield temporary
        rows: dict[Path, dict[str, str]] = {}
        for path in files:
            home, name = _place(path)
            if home is not None and path.suffix in READ_AGAIN:
                rows.setdefault(home, {})[name] = digest(temporary[path])
        for home, lines in rows.items():
            if before := [name for name in lines if os.path.lexists(home / name)]:
                _list(home, dict.fromkeys(before))
    for home, lines in rows.items():
        _list(home, lines)
    _seen.update({os.fspath(path): _stamp(path) for path in files})


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let errors of the system in the block name a file where they name none: a full disk, say."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or os.fspath(path)
        raise


@contextlib.contextmanager
def _placing(modes: Mapping[Path, int | None]) -> Iterator[dict[Path, Path]]:
    temporary = {path: path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}") for path in modes}
    try:
        for path, mode in modes.items():
            temporary[path].unlink(missing_ok=True)
            os.close(open_own(temporary[path], os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        yield temporary
        for path, mode in modes.items():
            if mode is not None:  # a library may have made the file anew
                set_mode(temporary[path], mode & 0o666)
        with ThreadPoolExecutor(8, "force") as threads:  # the system then writes its own records once for many
            list(threads.map(_force, temporary.values()))
        for path, position in temporary.items():
            os.replace(position, path)
        for folder in dict.fromkeys(path.parent for path in temporary):
            with contextlib.suppress(OSError):  # not every system can do that for folders
                _force(folder)
    except BaseException:
        for position in temporary.values():
            position.unlink(missing_ok=True)
        raise


def write_all(files: Mapping[Path, bytes]) -> None:
    """Write files, each whole or not at all; they are forced to the disk together."""
    with placing(files) as temporary:
        for path, content in files.items():
            with naming(path):
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
    write_all({path: _lines_there(path) + _lines(rows) for path, rows in lines.items()})


def log(path: Path, text: str) -> None:
    """Append text for people, which nothing reads back."""
    number = open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, _folder_for(path.parent))
    with os.fdopen(number, "a", encoding="utf-8") as file:
        file.write(text)


def remove(path: Path) -> None:
    """Remove a file, a folder with all that is in it, or a link alone; what is not there is no fault."""
    folder, (home, name) = path.is_dir() and not path.is_symlink(), _place(path)
    if home is not None and os.path.lexists(path):
        below = (file.relative_to(path) for file in path.rglob("*")) if folder else [Path()]
        _list(home, {(name / file).as_posix(): None for file in below})
    if folder:
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _folder_for(folder: Path) -> int | None:
    """Make a folder for files and return its mode, None outside of marked folders."""
    homes = homes_of(folder)
    if homes and not folder.resolve().is_relative_to(homes[-1].resolve()):
        raise UserError(f"{folder}: a link leads out of {homes[-1]}, and nothing is written through it; remove it")
    make(folder)
    return _mode_in(homes)


def _force(path: Path) -> None:
    """Force a file, or the names in a folder, to the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def read_bytes(path: Path) -> bytes:
    """Return the contents of a file, checked; UserError also where it is missing or not readable."""
    content = foreign.read_bytes(path, foreign.RECORDS)
    checked(path)
    return content


def tensor_file(path: Path) -> Path:
    """Return the path of a safetensors file, checked."""
    return checked(foreign.tensor_file(path))


def read_json(path: Path) -> Any:
    """Read a file of JSON; errors as :func:`read_bytes`, and where it is no JSON."""
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
    return read_bytes(path) if os.path.lexists(path) else b""
