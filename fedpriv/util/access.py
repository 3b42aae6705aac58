"""Access to files: those that are written where they stand are opened safely, and modes say who may read what is made.

What holds private images is its owner's alone, whatever the umask: folders 0700, files 0600. A folder that fedpriv made may
be shared with the owner's group (0750, files 0640) or be made to be passed on (0755, files 0644); its own mode says which.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO

from fedpriv.util.errors import UserError

PRIVATE, GROUP, PUBLIC = 0o700, 0o750, 0o755
"""Modes of folders; their files have the same without the right to execute."""

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
    more = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        number = os.open(path, flags | more, 0o666 if mode is None else 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR) or path.is_symlink():
            raise _refusal(path) from error
        raise
    about, read_only = os.fstat(number), flags & (os.O_WRONLY | os.O_RDWR) == 0
    if not stat.S_ISREG(about.st_mode) or not (about.st_nlink == 1 or read_only):
        os.close(number)
        raise _refusal(path)
    if mode is not None and flags & os.O_CREAT and about.st_size == 0:
        set_mode(number, mode & 0o666)
    return os.fdopen(number, "rb" if read_only else "r+b")


def _refusal(path: Path) -> UserError:
    return UserError(
        f"{path}: is a link, has another name (hard link), or is no regular file; fedpriv writes here and follows no link: "
        "put a copy of the file in its place, or choose another folder"
    )


def set_mode(file: int | Path, mode: int) -> None:
    """Give a file or folder its mode where it has another; bits of a folder that go on to what is made in it stay."""
    before = os.stat(file).st_mode
    if before & 0o777 != mode:
        os.chmod(file, before & 0o7000 | mode)
