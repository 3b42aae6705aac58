"""Results that cannot be read: left out of a page, and named on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fedpriv.util.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True)
class LeftOut:
    """A folder that was to be reported on and is not.

    Attributes:
        folder: as it was given or found.
        why: one line: the file in it, and what is wrong there.
    """

    folder: str
    why: str

    def __str__(self) -> str:
        return f"{self.folder}: {self.why}"


def readable(folders: Iterable[Path], read: Callable[[Path], T]) -> tuple[dict[Path, T], list[LeftOut]]:
    """Read folders, each in full; return what those hold that can be read, and the others with the reason.

    Args:
        folders: to read.
        read: checks and returns all that a page takes from a folder.
    """
    values: dict[Path, T] = {}
    damaged: list[LeftOut] = []
    for folder in folders:
        try:
            values[folder] = read(folder)
        except UserError as error:
            damaged.append(LeftOut(str(folder), _within(folder, str(error))))
    return values, damaged


def _within(folder: Path, line: str) -> str:
    """Return an error that begins with a path by what of that path lies in the folder."""
    for start in (f"{folder}/", f"{folder}: "):
        line = line.removeprefix(start)
    return line
