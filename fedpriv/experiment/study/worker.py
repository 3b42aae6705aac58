"""Runs of a study and their attacks, in a process of its own: ``python -m fedpriv.experiment.study.worker FOLDER CELL...``.

It takes up what is there, so after whatever ends it the same command goes on. What it does it says on standard output, a
line of JSON each: ``{"row": the cell's line of cells.jsonl, "doing": what, or null}``.

A process that is attended (``--attended``) is handed lists of cells that share a run by lines of JSON on standard input, one
after the other, says ``{"over": true}`` after each, and ends when standard input does, whatever it is doing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fedpriv.experiment.processes import OVER_TO_YOU, own_output
from fedpriv.experiment.study.cells import Cell, Execution
from fedpriv.experiment.study.folder import OVER, is_result, read_study, results, saved_cells, standing
from fedpriv.pages.study_files import Cell as Row
from fedpriv.pages.study_files import CellAttack, accounts
from fedpriv.util import folders
from fedpriv.util.errors import UserError
from fedpriv.util.files import log, mark
from fedpriv.util.folders import occupied

Tell = Callable[[Row, str | None], None]
"""Called with a cell's line and what is being done with it; None when it has come to its end."""


def perform(folder: Path, names: Sequence[str], execution: Execution, tell: Tell, account: Path | None = None) -> None:
    """Train the run of some cells where that is not done yet, and attack it; what goes wrong is told in the cell's line.

    Args:
        folder: of the study.
        names: of the cells; they share a run.
        execution: how.
        tell: told of every change.
        account: of the shard that has these cells, where no other shard writes; None for the study's folder.

    Raises:
        UserError: when the folder holds no such cells.
    """
    account = folder if account is None else account
    cells = {cell.name: cell for cell in saved_cells(folder, execution)}
    unknown = [name for name in names if name not in cells]
    if unknown:
        raise UserError(f"{folder}: no cell {unknown[0]!r} in this study; there are: {', '.join(cells)}")
    command = str(read_study(folder).command)
    chosen = [cells[name] for name in names]
    others = [one for one in accounts(folder) if one != account]
    for cell, row in zip(chosen, standing(folder, chosen, others), strict=True):
        errors: list[str] = []
        tell(row, "training")
        with _noting(account, cell, errors):
            seconds = _train(folder / "runs" / cell.run, cell, execution)
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
    summary = train_run(run, cell.config, device=execution.device, download=execution.download, resume=resume)
    return summary.seconds


def _attack_all(folder: Path, account: Path, cell: Cell, row: Row, command: str, tell: Tell) -> Row:
    """Carry out a cell's plans one by one, and return its line with what became of each."""
    if cell.plans:  # with a list of its own, so that whoever is at another cell never writes the same list
        mark(folder / "attacks" / cell.name, "cell")
    made_by = {one.path: one.plan for one in results(cell)}
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
    from fedpriv.experiment.execution import attack_all, collected, open_ground, without_points
    from fedpriv.experiment.inference import measure_all

    plan, home = cell.plans[number], folder / cell.homes[number]
    ground, _ = without_points(open_ground(folder / "runs" / cell.run, plan), plan.attacks if cell.named else ())
    plan = collected(ground).plan
    attack_all(home, ground, plan, command=command)
    measure_all(home, ground, plan, command=command, named=plan.inferences if cell.named else ())


# ---------------------------------------------------------------- the process


def main(arguments: Sequence[str] | None = None) -> None:
    """Perform cells and say what becomes of them."""
    parser = argparse.ArgumentParser(prog="python -m fedpriv.experiment.study.worker", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of the study")
    parser.add_argument("cells", nargs="*", help="names of cells that share a run")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--download", action="store_true")
    parser.add_argument("--chunk-rows", type=int)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--account", type=Path, help="folder of the shard that has the cells")
    parser.add_argument("--attended", action="store_true", help="take cells from standard input, and end when it does")
    given = parser.parse_args(arguments)
    if bool(given.cells) == given.attended:
        parser.error("name cells, or give --attended")
    said = own_output()

    def tell(row: Row, doing: str | None) -> None:
        print(json.dumps({"row": row.model_dump(mode="json"), "doing": doing}), file=said, flush=True)

    execution = Execution(given.device, given.download, given.chunk_rows, given.compile)
    try:
        for cells in _handed() if given.attended else (given.cells,):
            perform(given.folder, cells, execution, tell, given.account)
            if given.attended:
                print(json.dumps(OVER_TO_YOU), file=said, flush=True)
    except UserError as error:
        sys.exit(f"fedpriv: {error}")


def _handed() -> Iterator[list[str]]:
    """Yield the lists that come by standard input, and end the process with it."""
    lists: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(lists,), daemon=True).start()
    while True:
        yield lists.get()


def _receive(lists: queue.SimpleQueue[list[str]]) -> None:
    # By a file of its own, not by sys.stdin, whose lock Python wants when it ends.
    with os.fdopen(os.dup(0), "rb") as given:
        for line in given:
            lists.put(json.loads(line))
    # An orphan must not go on writing into a folder that somebody resumes.
    os._exit(0)


if __name__ == "__main__":
    main()
