"""Files that are whole or not there, with the SHA-256 digests of a folder's files in its marker, checked when read.

::

    {"made_by": "fedpriv", "format": 3, "kind": "run", "id": ...}     the first line of .fedpriv.jsonl
    {"file": "config.json", "sha256": ...}                            of a file, before it takes its place
    {"file": "config.json", "placed": true}                           it has

A marker lists the files of its folder, and of folders below it that have no marker. A file is written under a temporary
name, forced to the disk, listed, then renamed, so a crash leaves the old file or the new one. Outside of marked folders
nothing is listed or checked.

What holds private images is its owner's alone, whatever the umask: folders 0700, files 0600. A folder that fedpriv made may
be shared with the owner's group (0750, files 0640) or be made to be passed on (0755, files 0644); its own mode says which.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO

from fedpriv.util import foreign
from fedpriv.util.errors import UserError

MARKER = ".fedpriv.jsonl"
LOCK = ".fedpriv.lock"
PARTIAL = ".fedpriv-partial"
"""End of temporary names."""
FORMAT = 3
PRIVATE, GROUP, PUBLIC = 0o700, 0o750, 0o755
"""Modes of folders; their files have the same without the right to execute."""

Listing = dict[str, tuple[str | None, ...]]
"""Names relative to a marked folder -> digests that the file may have; None where it may be missing."""

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


def in_place(path: Path, flags: int = os.O_RDWR | os.O_CREAT, mode: int | None = None) -> BinaryIO:
    """Open a file to be written where it stands, without emptying it: no link, a regular file, under one name alone.

    ``mode`` is that of a folder, from which the mode of a file that is made follows (None: the user's umask). A file that is
    only read may have other names.
    """
    refusal = UserError(
        f"{path}: is a link, has another name (hard link), or is no regular file; fedpriv writes here and follows no link: "
        "put a copy of the file in its place, or choose another folder"
    )
    try:
        number = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666 if mode is None else 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR) or path.is_symlink():
            raise refusal from error
        raise
    about, read_only = os.fstat(number), flags & (os.O_WRONLY | os.O_RDWR) == 0
    if not stat.S_ISREG(about.st_mode) or not (about.st_nlink == 1 or read_only):
        os.close(number)
        raise refusal
    if mode is not None and flags & os.O_CREAT and about.st_size == 0:
        set_mode(number, mode & 0o666)
    return os.fdopen(number, "rb" if read_only else "r+b")


def set_mode(file: int | Path, mode: int) -> None:
    """Give a file or folder its mode where it has another; bits of a folder that go on to what is made in it stay."""
    before = os.stat(file).st_mode
    if before & 0o777 != mode:
        os.chmod(file, before & 0o7000 | mode)


def _head(folder: Path) -> dict[str, Any]:
    """Return the first line of a folder's marker, empty for any folder that fedpriv did not make."""
    try:
        with (folder / MARKER).open(encoding="utf-8") as file:
            head = foreign.json_value(file.readline(4096))
    except (OSError, ValueError):
        return {}
    if not isinstance(head, dict) or head.get("made_by") != "fedpriv" or not head.get("id"):
        return {}
    if head.get("format") != FORMAT:
        raise UserError(
            f"{folder / MARKER}: format {head.get('format')!r}, but this version reads format {FORMAT}; "
            "use fedpriv 0.1.0, which made the folder, or another folder"
        )
    return head


def identity(folder: Path) -> str | None:
    """Return the identity of a folder that fedpriv made, or None for any other; UserError for another version's format."""
    return _head(folder).get("id")


def homes_of(folder: Path) -> list[Path]:
    """Return the marked folders among this one and those above it, the innermost first."""
    position = Path(os.path.abspath(folder))
    return [home for home in (position, *position.parents) if _head(home)]


def mode_of(folder: Path) -> int | None:
    """Return the mode of folders within a marked one, by that one's own mode; None outside of marked folders."""
    homes = homes_of(folder)
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


def mark(folder: Path, kind: str, *, public: bool = False) -> str:
    """Make and mark a folder, to hold a kind of thing, unless it is marked; return its identity, which is its alone."""
    known = identity(folder)
    if known is not None:
        return known
    made, mode = uuid.uuid4().hex, new_mode(folder, public=public)
    make(folder, mode)
    set_mode(folder, mode)
    _write_marker(folder, [{"made_by": "fedpriv", "format": FORMAT, "kind": kind, "id": made}])
    return made


def _write_marker(home: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    temporary = _temporary(home / MARKER)
    temporary.unlink(missing_ok=True)
    with in_place(temporary, mode=home.stat().st_mode & 0o777) as file:
        file.write(_lines(rows))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, home / MARKER)
    _force(home)


_listings: dict[Path, tuple[bytes, Listing]] = {}
"""Markers that were read before, with their bytes; every use compares them with the file."""


def written(home: Path) -> Listing:
    """Return the files that a marked folder lists; UserError where its marker cannot be read."""
    try:
        result = (home / MARKER).read_bytes()
    except OSError as error:
        raise UserError(f"{home / MARKER}: not readable ({error}); nothing here can be checked without it") from error
    before, listing = _listings.get(home, (b"", {}))
    if not result.startswith(before):
        before, listing = b"", {}
    end = result.rfind(b"\n") + 1
    for line in result[len(before) : end].split(b"\n"):
        with contextlib.suppress(ValueError, TypeError, KeyError):  # the head, or a line that a crash cut
            row = foreign.json_value(line)
            known = listing.get(row["file"], (None,))[-1:]
            listing[row["file"]] = known + (() if row.get("placed") else (str(row["sha256"]),))
    _listings[home] = result[:end], listing
    return listing


def _note(rows: Mapping[Path, Mapping[str, Any]], *, force: bool) -> None:
    """Add rows about files to the markers that list these."""
    fresh: dict[Path, list[dict[str, Any]]] = {}
    for path, row in rows.items():
        home, name = _listed_as(path)
        if home is not None:
            fresh.setdefault(home, []).append({"file": name, **row})
    for home, lines in fresh.items():
        with in_place(home / MARKER, os.O_RDWR | os.O_APPEND) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
            # In one piece, since several processes may write into one folder; apart from a line that a crash cut.
            file.write(_lines(lines) if file.read(1) == b"\n" else b"\n" + _lines(lines))
            file.flush()
            if force:
                os.fsync(file.fileno())


def forget(home: Path) -> None:
    """Drop from a marked folder's list what its files held before, and files that are gone.

    A digest confirms a guess at what was redacted since. Nobody else may write the folder meanwhile.
    """
    rows: list[dict[str, Any]] = [_head(home)]
    for name, known in written(home).items():
        now = digest(home / name) if (home / name).is_file() else None
        if now is not None and now in known:
            rows += [{"file": name, "sha256": now}, {"file": name, "placed": True}]
    _write_marker(home, rows)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _listed_as(path: Path) -> tuple[Path | None, str]:
    """Return the marked folder that lists a file, or None (nowhere, or unfinished), and its name there."""
    homes = homes_of(path.parent)
    name = Path(os.path.abspath(path)).relative_to(homes[0]).as_posix() if homes else ""
    return (homes[0] if homes and PARTIAL not in name else None), name


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
            modes[path], temporary[path] = _folder_for(path), _temporary(path)
            temporary[path].unlink(missing_ok=True)
            in_place(temporary[path], os.O_RDWR | os.O_CREAT | os.O_EXCL, modes[path]).close()
        yield temporary
        for path, mode in modes.items():
            if mode is not None:  # a library may have made the file anew
                set_mode(temporary[path], mode & 0o666)
        with ThreadPoolExecutor(8, "force") as threads:  # the system then writes its own records once for many
            list(threads.map(_force, temporary.values()))
        _note({path: {"sha256": digest(index)} for path, index in temporary.items()}, force=True)
        for path, position in temporary.items():
            os.replace(position, path)
        for folder in dict.fromkeys(path.parent for path in temporary):
            _force(folder)
        _note({path: {"placed": True} for path in temporary}, force=False)
    except BaseException:
        for position in temporary.values():
            position.unlink(missing_ok=True)
        raise


def write_all(files: Mapping[Path, bytes]) -> None:
    """Write files, each whole or not at all; they are forced to the disk together, and listed together."""
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
    """Append JSON lines to files, which are written anew; errors as :func:`read_lines`, before any is written."""
    write_all({path: _lines_there(path) + _lines(rows) for path, rows in lines.items()})


def log(path: Path, text: str) -> None:
    """Append text for people, which nothing reads back and no marker lists."""
    with in_place(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, _folder_for(path)) as file:
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
    """Force a file, or the names in a folder, to the disk; not every system can do that for folders."""
    with contextlib.suppress(OSError) if path.is_dir() else contextlib.nullcontext():
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")


def _lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def checked(path: Path) -> Path:
    """Return the path of a file; UserError where it holds something else than was written there, or is not listed."""
    if path.is_file() and _listed_as(path)[0] is not None:
        _check(path, digest(path))
    return path


def checked_tensors(path: Path) -> Path:
    """Return the path of a safetensors file, as :func:`checked`; one of an impossible header is refused first."""
    if os.path.lexists(path):
        foreign.check_tensor_file(path)
    return checked(path)


def read_bytes(path: Path) -> bytes:
    """Return the contents of a file, checked; errors as :func:`checked`, and where it is missing or not readable."""
    result = foreign.read_bytes(path, foreign.RECORDS)
    _check(path, hashlib.sha256(result).hexdigest())
    return result


def read_json(path: Path) -> Any:
    """Read a file of JSON; errors as :func:`read_bytes`, and where it is no JSON."""
    try:
        return foreign.json_value(read_bytes(path))
    except ValueError as error:
        raise UserError(f"{path}: not readable as JSON ({error})") from error


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines, none where there is no file; half a line at the end is left out.

    Errors as :func:`checked`, and where a file that stood there is missing, or a line is no JSON object.
    """
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
    """Return the contents of a file of lines, checked; nothing where it never was."""
    if os.path.lexists(path):
        return read_bytes(path)
    home, name = _listed_as(path)
    if home is not None and None not in written(home).get(name, (None,)):
        raise UserError(f"{path}: missing, though {MARKER} lists it")
    return b""


def _check(path: Path, holds: str) -> None:
    home, name = _listed_as(path)
    if home is None:
        return
    known = written(home).get(name, ())
    if not known:
        raise UserError(f"{path}: not among the files that fedpriv wrote here (see {MARKER})")
    if holds not in known:
        raise UserError(
            f"{path}: its content was altered: it is not what fedpriv wrote there (SHA-256, see {MARKER}); "
            "restore it, or make the folder again"
        )
