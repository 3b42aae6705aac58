"""Ownership of files: a marker in every folder that fedpriv makes, with a list of what was written there.

::

    .fedpriv.jsonl     first line: who made the folder, what kind it is, its identity; then one line for each file
    .fedpriv.lock      held while somebody writes
    .NAME.PID.fedpriv-partial      a file or folder that is not finished; a crash may leave it behind

A file is ours when the nearest marked folder above it lists it. Nothing else is ever removed: not by ``--force``, not
by clearing up after a crash. A file is listed before it is made, so a crash leaves no file of ours that is not listed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from fedpriv.util.errors import UserError

MARKER = ".fedpriv.jsonl"
LOCK = ".fedpriv.lock"
PARTIAL = ".fedpriv-partial"
FORMAT = 1


def mark(folder: Path, kind: str) -> str:
    """Make a folder ours, to hold a kind of thing, unless it is; return its identity, which no other folder has."""
    folder.mkdir(parents=True, exist_ok=True)
    known = identity(folder)
    if known is not None:
        return known
    made = uuid.uuid4().hex
    head = json.dumps({"made_by": "fedpriv", "format": FORMAT, "kind": kind, "id": made})
    (folder / MARKER).write_text(head + "\n", encoding="utf-8")
    return made


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


def note(path: Path) -> None:
    """List a file in the nearest marked folder above it, before it is made; one that is there keeps its standing.

    A file that is there already is either listed, or a stranger's, which overwriting does not make ours.
    """
    if os.path.lexists(path):
        return
    home = _home(path.parent)
    if home is not None:
        with (home / MARKER).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"file": path.relative_to(home).as_posix()}) + "\n")


def strangers(folder: Path) -> list[Path]:
    """Return the files and links at any depth below a folder that we did not write, and empty folders, sorted."""
    found: list[Path] = []
    listed: dict[Path, set[str]] = {}
    for top, folders, files in os.walk(folder):
        here = Path(top)
        home = _home(here)
        if home is not None and any(part.endswith(PARTIAL) for part in here.relative_to(home).parts):
            continue  # unfinished: ours by its name
        if home is not None and home not in listed:
            listed[home] = written(home)
        links = [name for name in folders if (here / name).is_symlink()]
        for name in (*files, *links):
            path = here / name
            ours = home is not None and (
                (here == home and name in (MARKER, LOCK))
                or name.endswith(PARTIAL)
                or path.relative_to(home).as_posix() in listed[home]
            )
            if not ours:
                found.append(path)
        if not folders and not files and home is None and here != folder:
            found.append(here)
    return sorted(found)


def remove(path: Path) -> None:
    """Remove what is ours at or below a path, then the folders that this leaves empty. A stranger's file stays."""
    if path.is_symlink() or path.is_file():
        if _home(path.parent) is not None and path not in strangers(path.parent):
            path.unlink()
        return
    if not path.is_dir():
        return
    foreign = set(strangers(path))
    for top, folders, files in os.walk(path, topdown=False):
        here = Path(top)
        for name in (*files, *(one for one in folders if (here / one).is_symlink())):
            # The marker goes last of its folder: until then a crash leaves the rest known as ours.
            if here / name not in foreign and name != MARKER:
                (here / name).unlink()
        left = os.listdir(here)
        if left == [MARKER] and here / MARKER not in foreign:
            (here / MARKER).unlink()
            left = []
        if not left and here not in foreign:
            here.rmdir()


def sweep(folder: Path) -> None:
    """Remove what a crash left unfinished in a folder of ours, at any depth; whoever calls this holds the folder."""
    for top, folders, files in os.walk(folder):
        here = Path(top)
        left = [name for name in (*folders, *files) if name.endswith(PARTIAL)]
        if left and _home(here) is not None:
            folders[:] = [name for name in folders if name not in left]
            for name in left:
                _take_away(here / name)


def _take_away(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def written(home: Path) -> set[str]:
    """Return the files that a marked folder lists, relative to it; some may be gone."""
    try:
        lines = (home / MARKER).read_text(encoding="utf-8").split("\n")[1:-1]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{home / MARKER}: not readable ({error}); fedpriv cannot tell its own files here") from error
    found: set[str] = set()
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, KeyError):  # half a line, where a crash cut it
            found.add(str(json.loads(line)["file"]))
    return found


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a folder for writing. The lock ends with the process, however that ends."""
    with contextlib.ExitStack() as opened:
        # Opened for appending: whoever fails to get the lock must not wipe out who has it.
        file = opened.enter_context((folder / LOCK).open("a+", encoding="utf-8"))
        if not _locked(file.fileno()):
            file.seek(0)
            who = file.read().strip()
            raise UserError(
                f"{folder}: another fedpriv{f' (process {who})' if who else ''} is at work in this folder; "
                "wait for it, or choose another folder"
            )
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def _locked(file: int) -> bool:
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _head(marker: Path) -> dict[str, object] | None:
    try:
        with marker.open(encoding="utf-8") as file:
            head = json.loads(file.readline())
    except (OSError, ValueError):
        return None
    return head if isinstance(head, dict) else None


def _home(folder: Path) -> Path | None:
    """Return the nearest marked folder, this one or one above it."""
    return next((place for place in (folder, *folder.parents) if identity(place) is not None), None)
