"""Ownership of files: nothing is removed but what the marker of its folder lists, and who writes a folder holds it.

::

    .fedpriv.jsonl     what was written here (:mod:`fedpriv.util.manifest`)
    .fedpriv.lock      held while somebody writes
    .NAME.PID.fedpriv-partial      a file or folder that is not finished; a crash may leave it behind

Nothing else is ever removed: not by ``--force``, not by clearing up after a crash.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO

from fedpriv.util import access
from fedpriv.util.errors import UserError
from fedpriv.util.manifest import MARKER, PARTIAL, home_of, homes_of, identity, mode_of, written

LOCK = ".fedpriv.lock"


class Busy(UserError):
    """Another process is at work in a folder."""


def strangers(folder: Path) -> list[Path]:
    """Return the files and links at any depth below a folder that we did not write, and empty folders, sorted."""
    found: list[Path] = []
    listed: dict[Path, Collection[str]] = {}
    for top, folders, files in os.walk(folder):
        here = Path(top)
        home = home_of(here)
        if home is not None and any(part.endswith(PARTIAL) for part in here.relative_to(home).parts):
            continue  # unfinished: ours by its name
        if home is not None and home not in listed:
            listed[home] = written(home)
        links = [name for name in folders if (here / name).is_symlink()]
        for name in (*files, *links):
            path = here / name
            ours = home is not None and (
                name.endswith(PARTIAL)
                or (not path.is_symlink() and here == home and name in (MARKER, LOCK))
                or (not path.is_symlink() and path.relative_to(home).as_posix() in listed[home])
            )
            if not ours:
                found.append(path)
        if not folders and not files and home is None and here != folder:
            found.append(here)
    return sorted(found)


def remove(path: Path) -> None:
    """Remove what is ours at or below a path, then the folders that this leaves empty. A stranger's file stays."""
    if path.is_symlink() or path.is_file():
        if home_of(path.parent) is not None and path not in strangers(path.parent):
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
        if left and home_of(here) is not None:
            folders[:] = [name for name in folders if name not in left]
            for name in left:
                _take_away(here / name)


def refuse_links(folder: Path) -> None:
    """Check that no link stands where a file is written in place, at any depth of a folder. Changes nothing.

    Raises:
        UserError: naming the first.
    """
    for top, folders, files in os.walk(folder):
        here = Path(top)
        for name in sorted(files):
            if name == LOCK or name.endswith(".jsonl"):
                access.refuse_link(here / name)
        folders[:] = [name for name in folders if not name.endswith(PARTIAL)]


def open_to(folder: Path, mode: int) -> None:
    """Give a folder of ours its mode, and all that is ours in it the modes that follow from it."""
    foreign, ours = set(strangers(folder)), {folder}
    for top, folders, files in os.walk(folder, topdown=False):
        here, known = Path(top), [Path(top) / name for name in files if Path(top) / name not in foreign]
        for file in known:
            access.set_mode(file, mode & 0o666)
        if known or here in ours or any(here / name in ours for name in folders):
            ours.add(here)
            access.set_mode(here, mode)


def _take_away(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


@contextlib.contextmanager
def held(folder: Path) -> Iterator[int | None]:
    """Hold a folder for writing. The lock ends with the process, however that ends.

    Yields:
        The process that held the folder before and ended without letting go of it, or None.

    Raises:
        UserError: while another process writes or reads it.
    """
    with _locked(folder, alone=True) as file:
        refuse_links(folder)
        before = file.read().strip()
        file.seek(0)
        file.truncate()
        file.write(f"{os.getpid()}\n".encode())
        file.flush()
        try:
            yield int(before) if before.isdigit() else None
        finally:
            file.truncate(0)


@contextlib.contextmanager
def held_with_those_around(folder: Path, *, share: bool = False) -> Iterator[None]:
    """Hold every marked folder that a folder lies in, as whoever writes any of them does; clear up in all, or share all."""
    homes = homes_of(folder)
    with contextlib.ExitStack() as stack:
        for home in homes:
            stack.enter_context(held(home))
        for home in homes[:1]:
            sweep(home)
            if share:
                open_to(home, access.GROUP)
        yield


@contextlib.contextmanager
def read(folder: Path) -> Iterator[None]:
    """Keep others from writing a folder while it is read, where it is one of ours that was written before.

    Raises:
        UserError: while another process writes it.
    """
    with contextlib.ExitStack() as stack:
        if identity(folder) is not None:
            with contextlib.suppress(OSError):  # never written under a lock, or not ours to open
                stack.enter_context(_locked(folder, os.O_RDONLY))
        yield


@contextlib.contextmanager
def shared(folder: Path) -> Iterator[None]:
    """Hold a folder of ours together with others, each at work on its own part; nobody holds it alone meanwhile.

    Raises:
        Busy: while another process holds it alone.
    """
    with _locked(folder):
        refuse_links(folder)
        yield


def refuse_busy(folder: Path) -> None:
    """Check that nobody writes a folder. Changes nothing.

    Raises:
        Busy: while another process does.
    """
    with contextlib.suppress(FileNotFoundError), _locked(folder, os.O_RDONLY, alone=True):
        pass


def busy(folder: Path) -> bool:
    """True while another process writes a folder."""
    try:
        with contextlib.suppress(FileNotFoundError), _locked(folder, os.O_RDONLY):
            pass
    except Busy:
        return True
    return False


@contextlib.contextmanager
def _locked(folder: Path, flags: int = os.O_RDWR | os.O_CREAT, *, alone: bool = False) -> Iterator[BinaryIO]:
    """Lock a folder, alone or with others, and yield the file that is locked, as it is.

    Raises:
        Busy: while another process has a lock that does not go with this one.
        UserError: where nothing can be locked, so that nothing would keep two commands apart.
    """
    try:
        import fcntl
    except ImportError as error:
        raise UserError(
            f"{folder}: this system has no locks of files (fcntl); use fedpriv on Linux or macOS"
        ) from error
    with access.in_place(folder / LOCK, flags, mode_of(folder) or access.PRIVATE) as file:
        try:
            fcntl.flock(file, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            who = _holder(file) or file.read().decode(errors="replace").strip()
            raise Busy(
                f"{folder}: another fedpriv{f' (process {who})' if who else ''} is at work in this folder; "
                "wait for it, or choose another folder"
            ) from None
        except OSError as error:
            told = error.strerror or str(error)
            raise UserError(
                f"{folder}: its file system does not lock files ({told}); choose a folder on another"
            ) from error
        yield file


def _holder(file: BinaryIO) -> str:
    """Return the process that has a lock on a file, where the system tells; who only reads does not write it there."""
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return ""
    about = os.fstat(file.fileno())
    place = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
    held = [fields for line in lines if len(fields := line.split()) > 5 and "->" not in fields]
    found = [fields[4] for fields in held if fields[1] == "FLOCK" and fields[5] == place]
    return next((one for one in found if one.isdecimal() and one != "0"), "")  # of another container it tells none
