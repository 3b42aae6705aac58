"""A study's folder: what the study is, how far each of its cells has come, and the shards that work on it side by side.

``study.json`` and ``cells.jsonl`` are made once, and with shards left alone until these are merged; ``shards/I-of-N/`` has
``cells.jsonl`` and ``logs/`` of one shard, and nobody else writes there; a run or a cell is written by one shard alone.

All shards that are at work lock the study's folder together, so that nobody replaces it, and each its own folder alone.
Cells that share a run are of one shard. Whoever ends last, or any later command on the whole study, locks the study's
folder alone, merges the lists, and drops the folders of shards.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeVar

from fedpriv.defenses import build_defenses
from fedpriv.federation.defense import defense_facts
from fedpriv.pipeline.result_folders import is_result
from fedpriv.reports.study_files import (
    CELLS,
    FORMAT,
    SHARDS,
    STUDY,
    CellAttack,
    Choice,
    Spent,
    StudyFile,
    read_cells,
    read_study,
)
from fedpriv.reports.study_files import Cell as Row
from fedpriv.study.cells import Cell
from fedpriv.study.grid import Study, parse_study
from fedpriv.util import files, folders
from fedpriv.util.config import plain
from fedpriv.util.errors import UserError, shown
from fedpriv.util.escape import command_line
from fedpriv.util.files import log, write_json, write_text
from fedpriv.util.folders import Busy

OVER = ("done", "left out")  # states of an attack that need not be run again
MOST = 100_000  # shards, at most; more than any queue takes
PATIENCE = 120.0  # seconds to wait for another shard that makes or merges the study

T = TypeVar("T")


def claim(path: Path, study: Study, *, command: str, force: bool) -> None:
    """Make a study's folder, or take up the one that is there with the same study."""
    with folders.writing(path):
        there = (path / STUDY).is_file()
    if there and not force:
        folders.refuse_unmarked(path)
        before, now = _determining(saved_study(path)), _determining(study)
        changed = [name for name in now if before[name] != now[name]]
        if changed:
            what = f"{', '.join(changed)} differ{'s' if len(changed) == 1 else ''}"
            raise UserError(f"{path}: holds another study ({what}); choose another out, or force to replace it")
        return
    source = None if study.source == "study" else study.source
    with folders.output(path, "study", force=force):
        about = {"format": FORMAT, "source": source, "command": command, "written": plain(study.written)}
        write_json(path / STUDY, StudyFile.model_validate(about).model_dump(mode="json"))


def _determining(study: Study) -> dict[str, object]:
    """Return all that determines a study's results, by name."""
    names = [spec.name for spec in fields(study) if spec.compare and spec.name != "settings"]
    return {name: getattr(study, name) for name in names} | dict(study.settings)


def saved_study(path: Path) -> Study:
    """Return the study that a folder holds, to go on with."""
    if not (path / STUDY).is_file():
        start = command_line("audit", "STUDY.toml", "--out", path)
        raise UserError(f"{path}: no study here ({STUDY} is missing); start one with: {start}")
    return parse_study(read_study(path).written, str(path / STUDY))


def save_rows(path: Path, rows: Sequence[Row]) -> None:
    """Replace all lines of a study, or of a shard's account, at once."""
    write_text(path / CELLS, "".join(row.model_dump_json() + "\n" for row in rows))


def standing(path: Path, cells: Sequence[Cell], besides: Collection[Path] = ()) -> list[Row]:
    """Return a line for each cell: what is on disk is done, everything else is pending, also what failed before."""
    before = {row.cell: row for row in read_cells(path, besides)}
    return [_row(path, cell, before.get(cell.name)) for cell in cells]


def _row(path: Path, cell: Cell, before: Row | None) -> Row:
    kept = {entry.path: entry for entry in (() if before is None else before.attacks) if entry.status in OVER}
    attacks = []
    for place in (place for places in results(cell) for place in places):
        entry = kept.get(place, CellAttack(attack=place.rpartition("/")[2], path=place, status="pending"))
        done = is_result(path / place)
        status = "done" if done else "left out" if entry.status == "left out" else "pending"
        attacks.append(entry.model_copy(update={"status": status}))
    defenses = [defense_facts(made) for made in build_defenses(cell.defense.choices)]
    over = (path / "runs" / cell.run / "summary.json").is_file() and all(entry.status in OVER for entry in attacks)
    return Row(
        cell=cell.name,
        method=cell.method.name,
        method_label=cell.method.label,
        defenses=tuple(Choice(name=facts.name, options=dict(facts.options), label=facts.label) for facts in defenses),
        defense_label=cell.defense.label,
        seed=cell.seed,
        varied=plain(cell.method.varied),
        target=cell.target,
        run=f"runs/{cell.run}",
        attack_folder=f"attacks/{cell.name}",
        attacks=tuple(attacks),
        status="done" if over else "pending",
        seconds=Spent() if before is None else before.seconds,
    )


def results(cell: Cell) -> list[list[str]]:
    """Return for each plan of a cell the folders, from the study's, of the results that it will have."""
    return [[f"{home}/{name}" for name in plan.results()] for plan, home in zip(cell.plans, cell.homes, strict=True)]


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
def at_work(path: Path, shard: Shard, mine: Sequence[Cell]) -> Iterator[Path]:
    """Take part in a study that is made: hold what this shard writes, and clear up what a crash of it left."""
    account = shard.account(path)
    with contextlib.ExitStack() as stack:
        patiently(lambda: stack.enter_context(folders.shared(path)))
        with folders.writing(path):
            for name in ("runs", SHARDS):  # there before several try at once whether they can be made
                files.make(path / name)
        stack.enter_context(folders.output(account, "shard", resume=files.identity(account) is not None))
        for other in sorted((path / SHARDS).iterdir()):
            if not other.name.endswith(f"-of-{shard.of}") and folders.busy(other):
                raise UserError(
                    f"{path}: shard {other.name.replace('-of-', '/')} is at work, of another division than "
                    f"shard={shown(str(shard))}; wait for it, or divide as it does"
                )
        for cell in mine:
            folders.sweep(path / "attacks" / cell.name)
        yield account


def merge(path: Path, cells: Sequence[Cell]) -> list[Row]:
    """Take the lists of all shards together into the study's own, drop theirs, and return it; who calls holds the folder.

    A shard that failed or was never started leaves its cells as they are. Where there are no shards, this does nothing.
    """
    before = {row.cell: row for row in read_cells(path)}
    rows = [before[cell.name] for cell in cells if cell.name in before]
    if (path / SHARDS).is_dir():
        save_rows(path, rows)
        for position in sorted((path / SHARDS).glob("*/logs/*.txt")):
            log(path / "logs" / position.name, position.read_text(encoding="utf-8"))
            files.remove(position)
        files.remove(path / SHARDS)
    return rows
