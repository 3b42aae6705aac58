"""Points at which a command is killed: before and after every rename and every append, and before other changes to files."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

WIDTH = 160
"""Bytes of a line of the log; its length says how many points there were."""

Victim = Literal["command", "itself"]


@dataclass(frozen=True)
class Points:
    """Counts the points of a command and of the processes that it starts, and kills one of them at one.

    Attributes:
        log: file with a line for each point so far.
        below: folder; only what changes below it counts.
        fatal: number of the point, from 0, at which somebody is killed; None for nobody.
        victim: the command, or whichever of its processes is at that point.
        others: count the making and removal of files and folders too.
    """

    log: Path
    below: Path
    fatal: int | None = None
    victim: Victim = "command"
    others: bool = True

    def install(self) -> None:
        """Count from now on in this process, which is the command, and in those that are forked from it."""
        command, main = os.getpid(), self.below
        busy = threading.local()

        def at(kind: str, path: object, torn: int | None = None) -> None:
            if getattr(busy, "now", False) or not isinstance(path, (str, bytes, os.PathLike)):
                return
            place = os.path.abspath(os.fsdecode(path))
            if not place.startswith(str(main)):
                return
            busy.now = True
            try:
                number = self._count(f"{kind} {os.path.relpath(place, main)}")
                if self.fatal is not None and number >= self.fatal:
                    if torn is not None:
                        _tear(torn)
                    if self.victim == "command":
                        os.kill(command, signal.SIGKILL)
                    if self.victim == "itself" or torn is not None:  # whoever's line is torn does not go on
                        os.kill(os.getpid(), signal.SIGKILL)
            finally:
                busy.now = False

        for name in ("rename", "replace"):
            setattr(os, name, _watched_rename(getattr(os, name), at))
        os.fsync = _watched_sync(os.fsync, at)
        if self.others:
            sys.addaudithook(_watched_rest(at))

    def _count(self, line: str) -> int:
        file = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{line:<{WIDTH - 1}.{WIDTH - 1}}\n".encode())
        number = os.fstat(file).st_size // WIDTH - 1
        os.close(file)
        return number

    def counted(self) -> list[str]:
        """Return what there was at each point: ``kind path``."""
        return [line.rstrip() for line in self.log.read_text().splitlines()] if self.log.is_file() else []


At = Callable[..., None]


def _watched_rename(rename: Any, at: At) -> Any:
    def watched(source: Any, target: Any, **how: Any) -> None:
        at("rename:before", target)
        rename(source, target, **how)
        at("rename:after", target)

    return watched


def _watched_sync(sync: Any, at: At) -> Any:
    """What is appended is forced to disk at once: until then half of it may be there, from then on all of it."""

    def watched(file: Any) -> None:
        number = file if isinstance(file, int) else file.fileno()
        path = os.readlink(f"/proc/self/fd/{number}")
        appended = path.endswith(".jsonl")
        if appended:
            at("append:torn", path, number)
        sync(file)
        if appended:
            at("append:after", path)

    return watched


def _tear(file: int) -> None:
    """Cut a file in the midst of its last line, as a power failure does before it is forced to disk."""
    with contextlib.suppress(OSError):
        with open(f"/proc/self/fd/{file}", "rb") as read:
            text = read.read()
        start = text.rstrip(b"\n").rfind(b"\n") + 1
        os.ftruncate(file, (start + len(text)) // 2)


def _watched_rest(at: At) -> Callable[[str, tuple[Any, ...]], None]:
    """Files and folders that are made, opened for writing or removed."""

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, (str, bytes)) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                at("write", path)
        elif event in ("os.remove", "os.rmdir", "os.mkdir", "os.link", "os.truncate"):
            at(event.removeprefix("os."), arguments[1] if event == "os.link" else arguments[0])

    return heard
