"""Carry out the cells of a study, run after run, by one process or several, and keep account of what becomes of each.

Whatever ends it, the same command goes on: every step takes up what is on disk.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedpriv.experiment.result_folders import is_result
from fedpriv.experiment.study.cells import Cell, Execution
from fedpriv.experiment.study.folder import OVER, read_study, results, save_rows, saved_cells, standing
from fedpriv.pages.study_files import Cell as Row
from fedpriv.pages.study_files import CellAttack, accounts
from fedpriv.util import folders
from fedpriv.util.errors import UserError
from fedpriv.util.escape import duration
from fedpriv.util.files import log, mark
from fedpriv.util.folders import occupied
from fedpriv.util.parallel import Listener, Pool, Relay, WorkerKilled

Tell = Callable[[Row, str | None], None]
"""Called with a cell's line and what is being done with it; None when it has come to its end."""


@dataclass(frozen=True)
class Part:
    """Cells that share a run, by name; their lines are in the folder ``account``, the study's or a shard's."""

    folder: Path
    account: Path
    cells: tuple[str, ...]
    execution: Execution


def carry_out(
    path: Path, rows: list[Row], execution: Execution, listener: Listener, account: Path | None = None
) -> None:
    """Work off what is pending. Where a process is killed, the cells at work fail, and others go on with the rest."""
    account = path if account is None else account
    doing: dict[str, str] = {}
    save_rows(account, rows)
    with listener.progress("cells") as report:

        def enter(row: Row, step: str | None) -> None:
            rows[next(index for index, current in enumerate(rows) if current.cell == row.cell)] = row
            doing.pop(row.cell, None)
            if step is not None:
                doing[row.cell] = step
            save_rows(account, rows)
            done = sum(selected.status != "pending" for selected in rows)
            report(done, len(rows), "; ".join(f"{cell}: {what}" for cell, what in doing.items()))
            if step is None:
                listener.say(f"[{done}/{len(rows)}] {outcome(row)}")

        _work_off(Part(path, account, (), execution), rows, doing, enter)


def outcome(row: Row) -> str:
    """Return the outcome of a cell in one line."""
    if row.status == "failed":
        return f"{row.cell}: failed: {row.error}"
    parts = [f"{name} {duration(value)}" for name, value in row.seconds if value is not None]
    return f"{row.cell}: done" + (f" ({', '.join(parts)})" if parts else "")


def _work_off(whole: Part, rows: list[Row], doing: Mapping[str, str], enter: Tell) -> None:
    execution = whole.execution
    while pending := [row for row in rows if row.status == "pending"]:
        parts = [
            replace(whole, cells=tuple(row.cell for row in pending if row.run == run))
            for run in dict.fromkeys(row.run for row in pending)
        ]
        try:
            with Pool(min(execution.workers, len(parts)), execution.patience, hear=enter) as pool:
                for _ in pool.map(perform, parts):
                    pass
        except WorkerKilled as error:
            for row in [row for row in rows if row.cell in doing] or pending[:1]:
                enter(row.model_copy(update={"status": "failed", "error": str(error)}), None)
        else:
            break


def perform(part: Part, relay: Relay) -> None:
    """Train a run where that is not done yet, and attack it; what goes wrong is told in the cell's line."""
    tell: Tell = relay.tell
    folder, account = part.folder, part.account
    cells = {cell.name: cell for cell in saved_cells(folder, part.execution)}
    command = str(read_study(folder).command)
    chosen = [cells[name] for name in part.cells]
    others = [item for item in accounts(folder) if item != account]
    for cell, row in zip(chosen, standing(folder, chosen, others), strict=True):
        errors: list[str] = []
        tell(row, "training")
        with _noting(account, cell, errors):
            seconds = _train(folder / "runs" / cell.run, cell, part.execution)
            row = row.model_copy(update={"seconds": row.seconds.model_copy(update={"train": seconds})})
        if not errors:
            row = _attack_all(folder, account, cell, row, command, tell)
            errors = [str(entry.error) for entry in row.attacks if entry.status == "failed"]
        ended = {"status": "failed", "error": errors[0]} if errors else {"status": "done", "error": None}
        tell(row.model_copy(update=ended), None)


@contextlib.contextmanager
def _noting(account: Path, cell: Cell, errors: list[str]) -> Iterator[None]:
    """Note what goes wrong in one line; what is not the user's to mend leaves its traceback in ``logs/``."""
    try:
        yield
    except UserError as error:
        errors.append(" ".join(str(error).split()))
    except Exception as error:
        log(account / "logs" / f"{cell.name}.txt", traceback.format_exc() + "\n")
        errors.append(f"{type(error).__name__}: {' '.join(str(error).split())} (logs/{cell.name}.txt)")


def _train(run: Path, cell: Cell, execution: Execution) -> float:
    from fedpriv.experiment.training import train_run

    resume = (run / "config.json").is_file()
    if not resume and occupied(run):
        raise UserError(f"{run / 'config.json'}: missing; remove {run} to train the run again")
    return train_run(run, cell.config, device=execution.device, download=execution.download, resume=resume).seconds


def _attack_all(folder: Path, account: Path, cell: Cell, row: Row, command: str, tell: Tell) -> Row:
    """Carry out a cell's plans one by one, and return its line with what became of each."""
    if cell.plans:  # with a list of its own, so that whoever is at another cell never writes the same list
        mark(folder / "attacks" / cell.name, "cell")
    made_by = {item.path: item.plan for item in results(cell)}
    for number in range(len(cell.plans)):
        entries = [entry for entry in row.attacks if made_by[entry.path] == number]
        if all(entry.status in OVER for entry in entries):
            continue
        tell(row, "attacking " + ", ".join(entry.path.partition(f"{cell.name}/")[2] for entry in entries))
        began = time.perf_counter()
        errors: list[str] = []
        # The run is held, so that no other process attacks it for the same cell.
        with _noting(account, cell, errors), folders.held(folder / "runs" / cell.run):
            _attack(folder, cell, number, command)
        seconds, spent = time.perf_counter() - began, row.seconds
        if not errors:
            spent = spent.model_copy(update={"attack": (spent.attack or 0.0) + seconds})
        ended = {entry.path: _ended(folder, entry, errors, seconds / len(entries)) for entry in entries}
        attacks = tuple(ended.get(entry.path, entry) for entry in row.attacks)
        row = row.model_copy(update={"attacks": attacks, "seconds": spent})
    return row


def _ended(folder: Path, entry: CellAttack, errors: Sequence[str], seconds: float) -> CellAttack:
    done = is_result(folder / entry.path)
    status = "done" if done else "failed" if errors else "left out"
    error = None if done else errors[0] if errors else "the run has nothing for it"
    return entry.model_copy(update={"status": status, "error": error, "seconds": entry.seconds if errors else seconds})


def _attack(folder: Path, cell: Cell, number: int, command: str) -> None:
    from fedpriv.pipeline.execute import open_run, run_plan

    plan, home = cell.plans[number], folder / cell.homes[number]
    ground, _ = open_run(folder / "runs" / cell.run, plan, plan.attacks if cell.named else ())
    run_plan(home, ground, command=command, named=plan.inferences if cell.named else ())
