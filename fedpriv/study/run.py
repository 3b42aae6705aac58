"""A study from its description to its report: carried out in a folder, run after run, or gone on with. Prints nothing.

Whatever ends it, the same command goes on: every step takes up what is on disk.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpriv.pipeline.execute import open_run, run_plan
from fedpriv.pipeline.result_folders import is_result
from fedpriv.reports.runs_report import PAGE, write_runs_report
from fedpriv.reports.study_files import SHARDS, accounts, read_cells, read_study
from fedpriv.reports.study_files import Cell as Row
from fedpriv.reports.study_report import write_study_report
from fedpriv.study import folder as study_folder
from fedpriv.study import training
from fedpriv.study.cells import Cell, Execution, lay_out
from fedpriv.study.folder import Shard
from fedpriv.study.grid import Study
from fedpriv.study.saving import Scratch, Tabular
from fedpriv.util import files, folders
from fedpriv.util.compute import pick_device
from fedpriv.util.errors import UserError
from fedpriv.util.escape import duration
from fedpriv.util.parallel import SILENT, Listener, Pool, Relay, WorkerKilled

MERGING = 10.0  # seconds for which the last shard waits for others that are just letting go of the folder


@dataclass(frozen=True)
class StudyResult(Tabular):
    """The outcome of a study.

    Attributes:
        folder: of the study.
        rows: a line a cell, as ``cells.jsonl`` has them.
        report: the page over what is done, or None where nothing is.
        shard: which part of the study was done, as ``1/4``, whose cells alone are in ``rows``; None for all of it.
        pending: cells of the whole study that no shard has brought to an end.
        lifetime: what keeps a temporary folder; None for a folder that stays.
    """

    folder: Path
    rows: tuple[Row, ...]
    report: Path | None
    shard: str | None = None
    pending: int = 0
    lifetime: Scratch | None = field(default=None, repr=False, compare=False)

    @property
    def failed(self) -> tuple[Row, ...]:
        """Cells whose training or some attack failed."""
        return tuple(row for row in self.rows if row.status == "failed")

    @property
    def failures(self) -> tuple[str, ...]:
        """Failed cells in words, a line each: the cell and the error."""
        return tuple(outcome(row) for row in self.failed)

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return one row a result of a cell."""
        names = ("cell", "method_label", "defense_label", "seed", "target")
        return [
            {name: getattr(row, name) for name in names} | entry.model_dump() | dict(row.varied)
            for row in self.rows
            for entry in row.attacks
        ]

    @property
    def results(self) -> tuple[Path, ...]:
        """Folders of the results that came to their end."""
        return tuple(self.folder / entry.path for row in self.rows for entry in row.attacks if entry.status == "done")


def outcome(row: Row) -> str:
    """Return the outcome of a cell in one line."""
    if row.status == "failed":
        return f"{row.cell}: failed: {row.error}"
    parts = [f"{name} {duration(value)}" for name, value in row.seconds if value is not None]
    return f"{row.cell}: done" + (f" ({', '.join(parts)})" if parts else "")


def run_study(
    study: Study,
    out: Path,
    execution: Execution,
    *,
    shard: Shard | None = None,
    force: bool = False,
    command: str = "",
    listener: Listener = SILENT,
) -> StudyResult:
    """Train every cell's run, attack it, and report on all; or go on with the same study in its folder.

    Everything is checked before anything runs. A cell that fails is told of in its row, and the others go on.
    """
    pick_device(execution.device)  # refuses one that is not there
    cells, notes = lay_out(study, execution)
    for note in notes:
        listener.say(note)
    if shard is not None:
        study_folder.join(out, study, cells, command=command)
        return _run_shard(out, cells, execution, shard, listener)
    study_folder.claim(out, study, command=command, force=force)
    with folders.held(out):
        files.make(out / "runs")
        study_folder.merge(out, cells)
        rows = study_folder.standing(out, cells)
        listener.resumable()
        _carry_out(out, cells, rows, execution, listener, out)
        report = _reported(out, rows)
    return StudyResult(out, tuple(rows), report)


def _run_shard(out: Path, cells: Sequence[Cell], execution: Execution, shard: Shard, listener: Listener) -> StudyResult:
    """Work off the cells of one shard, and where that was the last of all, merge the shards and report."""
    mine = shard.own(cells)
    with study_folder.at_work(out, shard, mine) as account:
        besides = [item for item in accounts(out) if item != account and item.name.endswith(f"-of-{shard.of}")]
        rows = study_folder.standing(out, mine, besides)  # those may be at work
        listener.resumable()
        _carry_out(out, mine, rows, execution, listener, account)
        pending = sum(row.status == "pending" for row in read_cells(out))  # while nobody can merge them

    def merged() -> Path | None:
        with folders.held(out):  # another process may have been faster
            return _reported(out, study_folder.merge(out, cells)) if (out / SHARDS).is_dir() else None

    report = None
    if not pending:
        with contextlib.suppress(folders.Busy):  # the last of those that hold it merges
            report = study_folder.patiently(merged, MERGING)
    return StudyResult(out, tuple(rows), report, shard=str(shard), pending=pending)


def _reported(out: Path, rows: Sequence[Row]) -> Path | None:
    """Write the page over the results of a study, or over its runs where nothing is attacked; None where nothing is done."""
    if any(entry.status == "done" for row in rows for entry in row.attacks):
        write_study_report(out)
        return out / "report.html"
    runs = dict.fromkeys(out / row.run for row in rows if row.status == "done")
    if not runs or any(row.attacks for row in rows):
        return None
    write_runs_report(list(runs), out)
    return out / PAGE


Part = tuple[Path, Path, tuple[Cell, ...], Execution]
"""Folders of the study and of the lines of its cells (the same, or a shard's), cells that share a run, and circumstances."""


def _carry_out(
    path: Path, cells: Sequence[Cell], rows: list[Row], execution: Execution, listener: Listener, account: Path
) -> None:
    """Work off what is pending of cells, ``rows``. Where a process is killed, its cells fail, and others do the rest."""
    places = {row.cell: index for index, row in enumerate(rows)}
    doing: dict[str, str] = {}
    study_folder.save_rows(account, rows)
    with listener.progress("cells") as report:

        def enter(row: Row, step: str | None) -> None:
            rows[places[row.cell]] = row
            doing.pop(row.cell, None)
            if step is not None:
                doing[row.cell] = step
            study_folder.save_rows(account, rows)
            done = sum(selected.status != "pending" for selected in rows)
            report(done, len(rows), "; ".join(f"{cell}: {what}" for cell, what in doing.items()))
            if step is None:
                listener.say(f"[{done}/{len(rows)}] {outcome(row)}")

        while pending := [cell for cell, row in zip(cells, rows, strict=True) if row.status == "pending"]:
            runs: dict[str, list[Cell]] = {}
            for cell in pending:
                runs.setdefault(cell.run, []).append(cell)
            parts: list[Part] = [(path, account, tuple(some), execution) for some in runs.values()]
            try:
                with Pool(min(execution.workers, len(parts)), execution.patience, hear=enter) as pool:
                    for _ in pool.map(perform, parts):
                        pass
                break
            except WorkerKilled as error:
                for name in [cell.name for cell in pending if cell.name in doing] or [pending[0].name]:
                    row = rows[places[name]]
                    enter(row.model_copy(update={"status": "failed", "error": str(error)}), None)


def perform(part: Part, relay: Relay) -> None:
    """Train a run where that is not done yet, and attack it; what goes wrong is told in the cell's line."""
    folder, account, cells, execution = part
    command = str(read_study(folder).command)
    besides = [item for item in accounts(folder) if item != account]
    for cell, row in zip(cells, study_folder.standing(folder, cells, besides), strict=True):
        errors: list[str] = []
        relay.tell(row, "training")
        with _noting(account, cell, errors):
            run, device, download = folder / "runs" / cell.run, execution.device, execution.download
            resume = (run / "config.json").is_file()
            if not resume and folders.occupied(run):
                raise UserError(f"{run / 'config.json'}: missing; remove {run} to train the run again")
            ended = training.train_run(run, cell.config, device=device, download=download, resume=resume)
            row = row.model_copy(update={"seconds": row.seconds.model_copy(update={"train": ended.seconds})})
        if not errors:
            row = _attack_all(folder, account, cell, row, command, relay)
            errors = [str(entry.error) for entry in row.attacks if entry.status == "failed"]
        status = {"status": "failed", "error": errors[0]} if errors else {"status": "done", "error": None}
        relay.tell(row.model_copy(update=status), None)


@contextlib.contextmanager
def _noting(account: Path, cell: Cell, errors: list[str]) -> Iterator[None]:
    """Note what goes wrong in one line; what is not the user's to mend leaves its traceback in ``logs/``."""
    try:
        yield
    except UserError as error:
        errors.append(" ".join(str(error).split()))
    except Exception as error:
        files.log(account / "logs" / f"{cell.name}.txt", traceback.format_exc() + "\n")
        errors.append(f"{type(error).__name__}: {' '.join(str(error).split())} (logs/{cell.name}.txt)")


def _attack_all(folder: Path, account: Path, cell: Cell, row: Row, command: str, relay: Relay) -> Row:
    """Carry out a cell's plans one by one, and return its line with what became of each."""
    run = folder / "runs" / cell.run
    for plan, home, paths in zip(cell.plans, cell.homes, study_folder.results(cell), strict=True):
        entries = [entry for entry in row.attacks if entry.path in paths]
        if all(entry.status in study_folder.OVER for entry in entries):
            continue
        relay.tell(row, "attacking " + ", ".join(entry.path.partition(f"{cell.name}/")[2] for entry in entries))
        began, errors = time.perf_counter(), list[str]()
        # The run is held, so that no other process attacks it for the same cell.
        with _noting(account, cell, errors), folders.held(run):
            named = (*plan.attacks, *plan.inferences) if cell.named else ()
            ground, _ = open_run(run, plan, named=named, command=command)
            run_plan(folder / home, ground)
        seconds, spent, ended = time.perf_counter() - began, row.seconds, {}
        for entry in entries:
            done = is_result(folder / entry.path)
            status = "done" if done else "failed" if errors else "left out"
            error = None if done else errors[0] if errors else "the run has nothing for it"
            taken = entry.seconds if errors else seconds / len(entries)
            ended[entry.path] = entry.model_copy(update={"status": status, "error": error, "seconds": taken})
        if not errors:
            spent = spent.model_copy(update={"attack": (spent.attack or 0.0) + seconds})
        attacks = tuple(ended.get(entry.path, entry) for entry in row.attacks)
        row = row.model_copy(update={"attacks": attacks, "seconds": spent})
    return row
