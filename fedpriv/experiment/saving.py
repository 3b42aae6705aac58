"""Behaviour that all results share: they are copied to a folder that stays, and become a pandas frame where pandas is."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpriv.util import folders
from fedpriv.util.errors import UserError
from fedpriv.util.files import LOCK, MARKER, PARTIAL, placing


def copy_folder(source: Path, out: Path, kind: str, *, force: bool) -> None:
    """Copy a folder of results, file by file, to one that is ours."""
    folders.refuse_overlap(out, {"results": source})
    with folders.output(out, kind, force=force):
        for path in sorted(source.rglob("*")):
            if path.is_file() and path.name not in (MARKER, LOCK) and not path.name.endswith(PARTIAL):
                position = out / path.relative_to(source)
                with placing([position]) as temporary:
                    shutil.copyfile(path, temporary[position])


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
