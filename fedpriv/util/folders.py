"""Folders that a command writes: free or emptied first, made once, locked while they are written, apart from the inputs."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from fedpriv.util import files
from fedpriv.util.errors import UserError
from fedpriv.util.files import LOCK, MARKER, PARTIAL


class Busy(UserError):
    """Another process is at work in a folder."""


@contextlib.contextmanager
def _locked(folder: Path, flags: int = os.O_RDWR | os.O_CREAT, *, alone: bool) -> Iterator[None]:
    """Lock a folder, alone or with others; the lock ends with the process, however that ends."""
    try:
        import fcntl
    except ImportError as error:
        raise UserError(f"{folder}: this system has no file locks (fcntl); use fedpriv on Linux or macOS") from error
    file = files.open_own(folder / LOCK, flags, files.mode_of(folder) or files.PRIVATE)
    try:
        try:
            fcntl.flock(file, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            message = "another fedpriv is at work in this folder; wait for it, or choose another folder"
            raise Busy(f"{folder}: {message}") from None
        except OSError as error:
            message = f"{folder}: its file system does not lock files ({error.strerror}); choose a folder on another"
            raise UserError(message) from error
        yield
    finally:
        os.close(file)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock a folder for writing, and clear up what a crash left."""
    with _locked(folder, alone=True):
        sweep(folder)
        if files.shared():
            for top, _, names in os.walk(folder):
                files.set_mode(Path(top), files.GROUP)
                for path in (Path(top) / name for name in names if not (Path(top) / name).is_symlink()):
                    files.set_mode(path, files.GROUP & 0o666)
        yield


@contextlib.contextmanager
def held_with_those_around(folder: Path) -> Iterator[None]:
    """Lock every marked folder that a folder lies in, the outermost first."""
    with contextlib.ExitStack() as stack:
        for home in reversed(files.homes_of(folder)):
            stack.enter_context(held(home))
        yield


def shared(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Lock a folder together with others, each at work on its own part; nobody locks it alone meanwhile."""
    return _locked(folder, alone=False)


@contextlib.contextmanager
def read(folder: Path) -> Iterator[None]:
    """Keep others from writing a marked folder while it is read, where it was ever locked and may be."""
    with contextlib.ExitStack() as stack:
        if files.identity(folder) is not None:
            with contextlib.suppress(OSError):
                stack.enter_context(_locked(folder, os.O_RDONLY, alone=False))
        yield


def busy(folder: Path) -> bool:
    """True while another process writes a folder."""
    try:
        with read(folder):
            return False
    except Busy:
        return True


def sweep(folder: Path) -> None:
    """Remove what a crash left unfinished in a locked folder, at any depth."""
    for top, names, others in os.walk(folder):
        for name in [name for name in (*names, *others) if name.endswith(PARTIAL)]:
            files.remove(Path(top) / name)
        names[:] = [name for name in names if not name.endswith(PARTIAL)]


@contextlib.contextmanager
def output(path: Path, kind: str, *, force: bool = False, resume: bool = False, public: bool = False) -> Iterator[None]:
    """Take a folder for writing and lock it: free, or fedpriv's and emptied with ``force``, or there with ``resume``.

    Modes are those of :func:`fedpriv.util.files.new_mode`.
    """
    if not resume:
        check_free(path, force=force)
    with contextlib.ExitStack() as taken:
        with writing(path):
            if resume:
                refuse_unmarked(path)
            files.make(path, files.new_mode(path, public=public))
            taken.enter_context(held(path))
            if not (resume or force):
                _refuse_occupied(path)  # by another process that was done before this one had the lock
            if not resume:
                for name in sorted(set(os.listdir(path)) - {MARKER, LOCK}):
                    files.remove(path / name)
                files.remove(path / MARKER)  # last: until then the rest is known as fedpriv's
                files.mark(path, kind, public=public)
                files.set_mode(path / LOCK, path.stat().st_mode & 0o666)
        yield


def refuse_unmarked(path: Path) -> None:
    """Check that a folder to go on with has a marker."""
    if files.identity(path) is None:
        raise UserError(f"{path / MARKER}: missing or damaged, so this is no folder of fedpriv's; choose another out")


def check_free(path: Path, *, force: bool) -> None:
    """Check that an output folder is free, or with ``force`` may be emptied, and can be made. Changes nothing."""
    if any("\udc80" <= character <= "\udcff" for character in str(path.absolute())):
        raise UserError(f"{path.absolute()}: not UTF-8, which files of tensors need in their paths; choose another out")
    with writing(path):
        if os.path.lexists(path) and not path.is_dir():
            raise UserError(f"{path}: is {'a file' if path.exists() else 'a link to nothing'}; out takes a folder")
        if files.identity(path) is not None:
            with contextlib.suppress(FileNotFoundError), _locked(path, os.O_RDONLY, alone=True):
                pass
        if not force:
            _refuse_occupied(path)
        elif occupied(path) and files.identity(path) is None:
            raise UserError(
                f"{path}: holds files that fedpriv did not make; force replaces only a folder that fedpriv "
                f"made (with {MARKER} in it): choose another out"
            )
        above = next(position for position in (path, *path.absolute().parents) if position.exists())
        if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
            raise OSError(0, f"{above} is {'not to be written' if above.is_dir() else 'a file'}")


def _refuse_occupied(path: Path) -> None:
    if occupied(path):
        raise UserError(f"{path}: already exists; choose another out, or force to replace it")


def occupied(path: Path) -> bool:
    """True if a folder holds anything beyond fedpriv's marker, its lock, and what a crash left unfinished."""
    if not path.is_dir():
        return False
    names = {name for name in os.listdir(path) if name != LOCK and not name.endswith(PARTIAL)}
    return bool(names - {MARKER}) or (MARKER in names and files.identity(path) is None)


def refuse_overlap(
    out: Path, inputs: Mapping[str, Path | None], *, around: Mapping[str, Path | None] | None = None
) -> None:
    """Check by resolved path that no input lies in the output or the other way round; ``around`` may have it below."""
    target = out.resolve()
    for name, given in (*inputs.items(), *(around or {}).items()):
        if given is None:
            continue
        source = given.resolve()
        below = name in inputs and source in target.parents
        if source == target or target in source.parents or below:
            raise UserError(f"out {out}: overlaps {name} {given}, which is read; choose another out")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say in one line that an output folder cannot be made or written."""
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise UserError(f"{path}: this folder cannot be made or written ({why}); choose another out") from error


def numbered(path: Path) -> Path:
    """Return ``path``, or the first of ``path-2``, ``path-3``, ... that is free."""
    candidates = itertools.chain([path], (path.with_name(f"{path.name}-{number}") for number in itertools.count(2)))
    return next(candidate for candidate in candidates if not os.path.lexists(candidate))


_PARTS = ("train", "test", "val", "valid", "validation", "images", "data")


def telling_name(path: Path) -> tuple[str, ...]:
    """Return a folder's name, after that of the folder around it where it says nothing alone; none for the root.

    >>> telling_name(Path("data/birds")), telling_name(Path("data/birds/train"))
    (('birds',), ('birds', 'train'))
    """
    position = Path(os.path.abspath(path))
    named = (position.parent.name, position.name) if position.name in _PARTS else (position.name,)
    return tuple(filter(None, named))
