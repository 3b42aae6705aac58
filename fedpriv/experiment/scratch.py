"""A temporary folder that lasts as long as the object that stands for it."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path

from fedpriv.util.foreign import given_path


class Scratch:
    """A new folder; it is removed when nothing refers to this object any more, at the latest when Python ends.

    Attributes:
        path: the folder.
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="fedpriv-"))
        self._end = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def place(out: str | Path | None) -> tuple[Path, Scratch | None]:
    """Return the folder to write, and what keeps it where it is temporary."""
    if out is not None:
        return given_path("out", out), None
    scratch = Scratch()
    return scratch.path / "out", scratch
