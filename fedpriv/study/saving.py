"""Behaviour that all results share: temporary folders, copies that stay, and tables as pandas frames."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpriv.util import folders
from fedpriv.util.errors import UserError
from fedpriv.util.files import LOCK, MARKER, PARTIAL, checked, placing
from fedpriv.util.foreign import given_path


class Scratch:
    """A new temporary folder; it is removed when nothing refers to this object any more, at the latest when Python ends."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="fedpriv-"))
        self._end = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def place(out: str | Path | None) -> tuple[Path, Scratch | None]:
    """Return the folder to write, and what keeps it where it is temporary."""
    if out is not None:
        return given_path("out", out), None
    scratch = Scratch()
    return scratch.path / "out", scratch


def copy_folder(source: Path, out: Path, kind: str, *, force: bool) -> None:
    """Copy a folder of results, file by file, to one that is ours."""
    folders.refuse_overlap(out, {"results": source})
    with folders.output(out, kind, force=force):
        for path in sorted(source.rglob("*")):
            if path.is_file() and path.name not in (MARKER, LOCK) and not path.name.endswith(PARTIAL):
                position = out / path.relative_to(source)
                with placing([position]) as temporary:
                    shutil.copyfile(checked(path), temporary[position])


class Tabular(ABC):
    """A result that is a table."""

    @abstractmethod
    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return the rows of the table by column."""

    def to_frame(self) -> Any:
        """Return the table as a pandas frame; columns and rows are those of :meth:`table`."""
        try:
            import pandas
        except ImportError as error:
            raise UserError("to_frame needs pandas, which is not installed: pip install 'fedpriv[frames]'") from error
        return pandas.DataFrame(list(self.table()))
