"""Shards of a study: several commands at once in one folder, each on cells of its own; between them is only the folder.

::

    study.json, cells.jsonl          made by the first shard, then left alone until the shards are merged
    shards/I-of-N/cells.jsonl        how far the cells of this shard have come; nobody else writes here
    shards/I-of-N/logs/
    runs/, attacks/                  as ever; every run and every cell lists its own files

The study's folder is held together by all that are at work (nobody replaces it meanwhile), the folder of a shard by one
process alone. Cells that share a run are of one shard. Whoever ends last, or any later command that goes on with the whole
study, holds the study's folder alone, takes the lists together into one, and drops the folders of shards.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fedpriv.experiment.study.cells import Cell
from fedpriv.experiment.study.folder import claim, save_rows, standing
from fedpriv.experiment.study.grid import Study
from fedpriv.pages.study_files import CELLS, SHARDS, STUDY, accounts, read_cells
from fedpriv.pages.study_files import Cell as Row
from fedpriv.util import files, folders
from fedpriv.util.errors import UserError, shown
from fedpriv.util.files import log
from fedpriv.util.folders import Busy
from fedpriv.util.parallel import Listener

MOST = 100_000
"""Shards, at most; more than any queue takes."""
PATIENCE = 120.0
"""Seconds to wait for another shard that makes or merges the study."""

T = TypeVar("T")


@dataclass(frozen=True)
class Shard:
    """One of several equal parts of a study's runs, from 1, each with the cells that attack it."""

    number: int
    of: int

    @classmethod
    def read(cls, text: object) -> Shard:
        """Return the shard that ``I/N`` names."""
        parts = text.split("/") if isinstance(text, str) else []
        numbers = [int(part) for part in parts if part.isascii() and part.isdecimal() and len(part) <= len(str(MOST))]
        if not len(parts) == len(numbers) == 2 or not 1 <= numbers[0] <= numbers[1] <= MOST:
            raise UserError(f"shard={shown(text)}: expected I/N, shard I of N, as 1/4 to 4/4")
        return cls(*numbers)

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def account(self, folder: Path) -> Path:
        """Return the folder, in a study's, where this shard says how far it has come."""
        return folder / SHARDS / f"{self.number}-of-{self.of}"

    def own(self, cells: Sequence[Cell]) -> list[Cell]:
        """Return the cells of this shard: every N-th run of the study, with all that attack it."""
        runs = list(dict.fromkeys(cell.run for cell in cells))
        mine = set(runs[self.number - 1 :: self.of])
        return [cell for cell in cells if cell.run in mine]


def join(path: Path, study: Study, cells: Sequence[Cell], *, command: str) -> None:
    """Make the folder of a study with its list of cells, or find what another shard made of the same study."""

    def made() -> bool:
        there = (path / STUDY).is_file()
        try:
            claim(path, study, command=command, force=False)
            if not (path / CELLS).is_file():
                with folders.held(path):
                    save_rows(path, standing(path, cells))
        except Busy:
            raise
        except UserError:
            if there or not (path / STUDY).is_file():
                raise
            return False  # another shard made it since
        return True

    while not patiently(made):
        pass


def patiently(attempt: Callable[[], T], seconds: float | None = None) -> T:
    """Return the outcome of an attempt that is made again while another process holds what it needs."""
    until = time.monotonic() + (PATIENCE if seconds is None else seconds)
    while True:
        try:
            return attempt()
        except Busy:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


@contextlib.contextmanager
def at_work(path: Path, shard: Shard, mine: Sequence[Cell], listener: Listener) -> Iterator[Path]:
    """Take part in a study that is made: hold what this shard writes, and clear up what a crash of it left."""
    account = shard.account(path)
    with contextlib.ExitStack() as stack:
        patiently(lambda: stack.enter_context(folders.shared(path)))
        with folders.writing(path):
            for name in ("runs", SHARDS):  # there before several try at once whether they can be made
                files.make(path / name)
        again = files.identity(account) is not None
        stack.enter_context(folders.output(account, "shard", resume=again))
        for other in sorted((path / SHARDS).iterdir()):
            if not other.name.endswith(f"-of-{shard.of}") and folders.busy(other):
                raise UserError(
                    f"{path}: shard {other.name.replace('-of-', '/')} is at work, of another division than "
                    f"shard={shown(str(shard))}; wait for it, or divide as it does"
                )
        for cell in mine:
            folders.sweep(path / "attacks" / cell.name)
        yield account


def others(path: Path, shard: Shard) -> list[Path]:
    """Return the accounts of the other shards of the same division, which may be at work."""
    mine = shard.account(path)
    return [item for item in accounts(path) if item != mine and item.name.endswith(f"-of-{shard.of}")]


def over(rows: Sequence[Row]) -> bool:
    """True where no cell is pending."""
    return all(row.status != "pending" for row in rows)


def merge(path: Path, cells: Sequence[Cell]) -> list[Row]:
    """Take the lists of all shards together into the study's own, drop theirs, and return it; who calls holds the folder.

    A shard that failed or was never started leaves its cells as they are. Where there are no shards, this does nothing.
    """
    results = {row.cell: row for row in read_cells(path)}
    rows = [results[cell.name] for cell in cells if cell.name in results]
    if not (path / SHARDS).is_dir():
        return rows
    save_rows(path, rows)
    for position in sorted((path / SHARDS).glob("*/logs/*.txt")):
        log(path / "logs" / position.name, position.read_text(encoding="utf-8"))
        files.remove(position)
    files.remove(path / SHARDS)
    return rows
