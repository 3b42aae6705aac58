"""The marker of a folder that fedpriv made: who made it, its identity, and every file written there, with its contents.

::

    {"made_by": "fedpriv", "format": 2, "kind": "run", "id": ...}             the first line
    {"file": "metrics.jsonl"}                                                 ours, before it is made
    {"file": "config.json", "sha256": ..., "bytes": 812}                      what it holds, before it takes its place
    {"file": "config.json", "sha256": ..., "bytes": 812, "placed": true}      it has; said only where it replaced another

A file is ours when the nearest marked folder above it lists it. It is listed before it is there, so a crash leaves no file
of ours that is not listed; until a file that replaces another is known to stand there, it may be either of the two.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fedpriv.util import access
from fedpriv.util.errors import UserError
from fedpriv.util.foreign import json_value

MARKER = ".fedpriv.jsonl"
PARTIAL = ".fedpriv-partial"
FORMAT = 2
PASSED_ON = ("comparison", "index", "report")
"""Kinds of folders that may be public; earlier versions left the mode of every folder to the umask."""


@dataclass(frozen=True)
class Contents:
    """Contents of a file, by which it is known again.

    Attributes:
        sha256: of its first ``size`` bytes.
        size: in bytes; what stands beyond, a crash left there.
    """

    sha256: str
    size: int


@dataclass
class _Listing:
    """A marker, as far as it was read.

    Attributes:
        read: the part of the marker that was read, whole lines.
        files: by name relative to the marked folder, the contents that a file may have; empty where none is known.
        placed: names of files that are known to have taken their place.
    """

    read: bytes = b""
    files: dict[str, tuple[Contents, ...]] = field(default_factory=dict)
    placed: set[str] = field(default_factory=set)


_listings: dict[Path, _Listing] = {}
"""Markers that were read before; every use compares them with the file."""


def mode_of(folder: Path) -> int | None:
    """Return the mode of folders within one that fedpriv made, by that one's own; None outside of such folders."""
    home = home_of(folder)
    if home is None:
        return None
    mode = home.stat().st_mode
    if mode & access.PUBLIC == access.PUBLIC:
        return access.PUBLIC if kind(home) in PASSED_ON else access.PRIVATE
    return access.GROUP if mode & access.GROUP == access.GROUP else access.PRIVATE


def new_mode(folder: Path, *, public: bool = False) -> int:
    """Return the mode of a folder that is made ours: public or shared where that is asked for, else as the one around it."""
    if public or access.shared():
        return access.PUBLIC if public else access.GROUP
    return mode_of(folder.parent) or access.PRIVATE


def make(folder: Path, mode: int | None = None) -> None:
    """Make a folder that is not there, and those above it: in a folder of ours as private as that, else by the umask.

    Args:
        folder: where.
        mode: of itself; those above it that are made outside of a folder of ours are no less open.
    """
    places = [place for place in (folder, *folder.parents) if not place.is_dir()]
    around = mode_of(places[-1].parent) if places else None
    for place in reversed(places):
        place.mkdir(exist_ok=True)
        own = mode if place == folder and mode else around
        if own or mode:
            access.set_mode(place, own or place.stat().st_mode & 0o777 | (mode or 0))


def mark(folder: Path, kind: str, *, public: bool = False) -> str:
    """Make a folder ours, to hold a kind of thing, unless it is; return its identity, which no other folder has."""
    known = identity(folder)
    if known is not None:
        return known
    made, mode = uuid.uuid4().hex, new_mode(folder, public=public)
    make(folder, mode)
    access.set_mode(folder, mode)
    with access.in_place(folder / MARKER, mode=mode) as file:
        file.truncate()
        file.write((_head_of(kind, made) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())
    sync(folder)
    return made


def _head_of(kind: str, identity: str) -> str:
    return json.dumps({"made_by": "fedpriv", "format": FORMAT, "kind": kind, "id": identity})


def unfinished(folder: Path) -> bool:
    """True where a folder's marker is the beginning of a first line of ours, and no more: a crash cut it."""
    try:
        held = (folder / MARKER).read_bytes()[:4096]
    except OSError:
        return False
    start = _head_of("", "").partition('"kind"')[0].encode()
    return b"\n" not in held and (start.startswith(held) or held.startswith(start))


def identity(folder: Path) -> str | None:
    """Return the identity of a folder that we made, or None for any other."""
    head = _head(folder / MARKER)
    if head is None or head.get("made_by") != "fedpriv":
        return None
    if head.get("format") != FORMAT:
        raise UserError(
            f"{folder / MARKER}: format {head.get('format')!r}, but this version knows format {FORMAT}; "
            "use the version that made the folder, or another folder"
        )
    return str(head["id"]) if head.get("id") else None


def kind(folder: Path) -> str | None:
    """Return the kind of thing that a folder of ours was made to hold, or None for any other.

    Raises:
        UserError: as :func:`identity`.
    """
    head = None if identity(folder) is None else _head(folder / MARKER)
    return None if head is None else str(head.get("kind"))


def home_of(folder: Path) -> Path | None:
    """Return the nearest marked folder, this one or one above it."""
    return next((place for place in (folder, *folder.parents) if identity(place) is not None), None)


def homes_of(folder: Path) -> list[Path]:
    """Return the marked folders among this one and those above it, the outermost first."""
    places = (Path(os.path.abspath(folder)), *Path(os.path.abspath(folder)).parents)
    return [place for place in reversed(places) if identity(place) is not None]


def written(home: Path) -> dict[str, tuple[Contents, ...]]:
    """Return the files that a marked folder lists, by name relative to it, each with the contents that it may have.

    Some may be gone. Lines that a crash cut are passed over.

    Raises:
        UserError: when the marker cannot be read.
    """
    return _listing(home).files


def placed(home: Path, name: str) -> bool:
    """True for a file, relative to a marked folder, that stood there: a crash may have come before the first time."""
    return name in _listing(home).placed


def _listing(home: Path) -> _Listing:
    marker = home / MARKER
    try:
        found = marker.read_bytes()
    except OSError as error:
        raise UserError(f"{marker}: not readable ({error}); fedpriv cannot tell its own files here") from error
    known = _listings.get(marker)
    if known is None or not found.startswith(known.read):
        known = _listings[marker] = _Listing()
    fresh = found[len(known.read) : found.rfind(b"\n") + 1]
    for line in fresh.split(b"\n"):
        _enter(known, line)
    known.read += fresh
    return known


def _enter(listing: _Listing, line: bytes) -> None:
    try:
        row = json_value(line)
        name = row["file"]
        holds = (Contents(str(row["sha256"]), int(row["bytes"])),) if "sha256" in row else ()
    except (ValueError, TypeError, KeyError):  # the head, or half a line
        return
    stands = bool(row.get("placed"))
    listing.files[name] = holds if stands else (*listing.files.get(name, ()), *holds)
    listing.placed |= {name} if stands else set()


def note(home: Path, files: Iterable[tuple[Path, Contents | None]], *, placed: bool = False) -> None:
    """List files in a marked folder; the list is on the disk when this returns.

    Args:
        home: the marked folder.
        files: in it, each with what it holds, where that is known.
        placed: they hold that already, and nothing else.
    """
    rows: list[dict[str, object]] = []
    for path, holds in files:
        row: dict[str, object] = {"file": path.relative_to(home).as_posix()}
        if holds is not None:
            row |= {"sha256": holds.sha256, "bytes": holds.size}
        rows.append(row | {"placed": True} if placed else row)
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    with access.in_place(home / MARKER, os.O_RDWR | os.O_APPEND) as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        # In one piece, since several processes may write into one folder; apart from a line that a crash cut.
        file.write(lines if file.read(1) in (b"", b"\n") else b"\n" + lines)
        file.flush()
        os.fsync(file.fileno())


def forget(home: Path, gone: str = "") -> None:
    """Drop from a folder's list what its files held before, and files that are no more: a digest confirms a candidate.

    Args:
        home: the marked folder; nobody else writes there.
        gone: folder within it, whose missing files are dropped; by default all that are missing are.
    """
    head, files, before = (home / MARKER).read_bytes().partition(b"\n")[0], written(home), _listing(home).read
    lines = [head]
    for name, holds in files.items():
        row: dict[str, object] = {"file": name}
        there = (home / name).is_file()
        if not there and name.startswith(gone):
            continue
        if holds:
            now = contents(home / name) if there else holds[-1]
            last = now if now in holds else holds[-1]
            row |= {"sha256": last.sha256, "bytes": last.size}
        lines.append(json.dumps(row | ({"placed": True} if placed(home, name) else {})).encode())
    fresh = b"".join(line + b"\n" for line in lines)
    if fresh == before:
        return
    temporary = home / f".{MARKER}.{os.getpid()}{PARTIAL}"
    temporary.unlink(missing_ok=True)
    with access.in_place(temporary, mode=mode_of(home)) as file:
        file.write(fresh)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(home / MARKER)
    sync(home)


def contents(path: Path) -> Contents:
    """Return the contents of a file, by size and SHA-256."""
    with path.open("rb") as file:
        return Contents(hashlib.file_digest(file, "sha256").hexdigest(), file.tell())


def sync(folder: Path) -> None:
    """Force the names in a folder to the disk, where the system can."""
    if os.name != "posix":
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError:  # a file system that has no such thing
        pass
    finally:
        os.close(opened)


def _head(marker: Path) -> dict[str, object] | None:
    try:
        with marker.open(encoding="utf-8") as file:
            head = json_value(file.readline(4096))
    except (OSError, ValueError):
        return None
    return head if isinstance(head, dict) else None
