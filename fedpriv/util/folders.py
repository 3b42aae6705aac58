"""Folders that a command writes: free or emptied first, made once, held while they are written, apart from the inputs."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from fedpriv.util import access, manifest, ownership
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.util.listener import SILENT, Listener


@contextlib.contextmanager
def output(
    path: Path,
    kind: str,
    *,
    force: bool = False,
    resume: bool = False,
    public: bool = False,
    listener: Listener = SILENT,
) -> Iterator[None]:
    """Take a folder for writing and hold it: free, or ours and emptied with ``force``, or there with ``resume``.

    It is the user's alone, shared with the group (:func:`fedpriv.util.access.sharing`), or ``public``. What is there keeps
    its modes, unless it is to be shared.
    """
    if not resume:
        check_free(path, force=force)
    with contextlib.ExitStack() as taken:
        with writing(path):
            if resume and not path.is_dir():
                raise UserError(f"{path}: no such folder to go on with")
            if resume:
                refuse_unmarked(path)
            manifest.make(path, manifest.new_mode(path, public=public))
            taken.enter_context(held(path, listener) if resume else held(path, SILENT, keep=False))
            if not (resume or force):
                _refuse_occupied(path)  # by another process that was done before this one held it
            if not resume:
                _empty(path, kind, public=public)
        yield


@contextlib.contextmanager
def held(path: Path, listener: Listener, *, keep: bool = True) -> Iterator[None]:
    """Hold a folder that is there and clear up what a crash left; say so where whoever held it before was killed.

    What ``keep`` leaves in it is shared where that is asked for.
    """
    with ownership.held(path) as before:
        ownership.sweep(path)
        if keep and access.shared():
            ownership.open_to(path, access.GROUP)
        if before is not None:
            listener.say(f"{path}: process {before} ended here without finishing; going on from what it left")
        yield


def part(path: Path, kind: str) -> None:
    """Make a folder within one of ours that lists its own files, unless it is there already."""
    if not occupied(path):
        manifest.mark(path, kind)


def refuse_unmarked(path: Path) -> None:
    """Check that a folder to go on with says which files are ours, and what they held."""
    if manifest.identity(path) is None:
        raise UserError(
            f"{path / manifest.MARKER}: missing or damaged, so nothing here can be checked; choose another {argument('out')}"
        )


def check_free(path: Path, *, force: bool) -> None:
    """Check that an output folder is free, or with ``force`` may be emptied, and can be made. Changes nothing."""
    with writing(path):
        if path.is_symlink() and not path.exists():
            raise UserError(f"{path}: is a link to nothing; {argument('out')} takes a folder")
        if path.exists() and not path.is_dir():
            raise UserError(f"{path}: is a file; {argument('out')} takes a folder")
        _refuse_busy(path)  # before files are counted that somebody is just writing
        if not force:
            _refuse_occupied(path)
        elif occupied(path):
            foreign = ownership.strangers(path)
            if foreign:
                more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
                raise UserError(
                    f"{path}: holds files that fedpriv did not make ({foreign[0].relative_to(path)}{more}); "
                    f"{argument('force')} removes only what fedpriv made: choose another {argument('out')}"
                )
        _try_to_make(path)


def _refuse_occupied(path: Path) -> None:
    if occupied(path):
        raise UserError(
            f"{path}: already exists; choose another {argument('out')}, or {argument('force')} to replace it"
        )


def _refuse_busy(path: Path) -> None:
    for name in (manifest.MARKER, ownership.LOCK):
        access.refuse_link(path / name)
    if manifest.identity(path) is not None:
        ownership.refuse_busy(path)


def occupied(path: Path) -> bool:
    """True if a folder holds anything beyond our marker, our lock, and what a crash left unfinished."""
    if not path.is_dir():
        return False
    names = set(os.listdir(path)) - {ownership.LOCK}
    if manifest.identity(path) is None:
        return bool(names - {manifest.MARKER}) or (manifest.MARKER in names and not manifest.unfinished(path))
    return any(name != manifest.MARKER and not name.endswith(manifest.PARTIAL) for name in names)


def _empty(path: Path, kind: str, *, public: bool) -> None:
    """Remove everything of ours but the lock, which is held, and mark the folder anew."""
    names = set(os.listdir(path)) - {manifest.MARKER, ownership.LOCK}
    for name in sorted(names):
        ownership.remove(path / name)
    if manifest.identity(path) is not None and (names or manifest.written(path)):
        (path / manifest.MARKER).unlink()
    manifest.mark(path, kind, public=public)
    ownership.open_to(path, manifest.new_mode(path, public=public))


def refuse_overlap(
    out: Path, inputs: Mapping[str, Path | None], *, around: Mapping[str, Path | None] | None = None
) -> None:
    """Check by resolved path that a command does not write into, over or around what it reads.

    Args:
        out: the folder to write.
        inputs: name -> folder or file that is read; no part of either may lie in the other.
        around: name -> folder that is read, and that may have the output below it, as a folder of data sets has.
    """
    target = out.resolve()
    for name, given in (*inputs.items(), *(around or {}).items()):
        if given is None:
            continue
        source = given.resolve()
        below = name in inputs and source in target.parents
        if source == target or target in source.parents or below:
            raise UserError(
                f"{argument('out')} {out}: overlaps {name} {given}, which is read; choose another {argument('out')}"
            )


def give_back(path: Path) -> None:
    """Remove a folder that was made for nothing, as far as it is ours."""
    ownership.remove(path)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say in one line that an output folder cannot be made or written."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path}: this folder cannot be made or written ({error.strerror or error}); choose another {argument('out')}"
        ) from error


def numbered(path: Path) -> Path:
    """Return ``path``, or the first of ``path-2``, ``path-3``, ... that is free."""
    candidates = (path if number == 1 else path.with_name(f"{path.name}-{number}") for number in range(1, 10**6))
    return next(candidate for candidate in candidates if not os.path.lexists(candidate))


def _try_to_make(path: Path) -> None:
    """Make a folder as a trial, and leave none behind that was not there."""
    missing = [place for place in (path, *path.parents) if not place.exists()]
    made: list[Path] = []
    try:
        for place in reversed(missing):
            place.mkdir(exist_ok=True)
            made.append(place)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    finally:
        for place in reversed(made):
            with contextlib.suppress(OSError):  # somebody else put something there
                place.rmdir()


_PARTS = ("train", "test", "val", "valid", "validation", "images", "data")


def telling_name(path: Path) -> tuple[str, ...]:
    """Return a folder's name, after that of the folder around it where it says nothing alone; none for the root.

    >>> telling_name(Path("data/birds")), telling_name(Path("data/birds/train"))
    (('birds',), ('birds', 'train'))
    """
    place = Path(os.path.abspath(path))
    named = (place.parent.name, place.name) if place.name in _PARTS else (place.name,)
    return tuple(filter(None, named))
