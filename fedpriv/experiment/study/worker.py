"""A process that works on the cells of a study, one run after another, and says what it does through a pipe."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.util import ownership
from fedpriv.util.errors import UserError

if TYPE_CHECKING:
    from fedpriv.experiment.plan import AttackPlan
    from fedpriv.federation.run_directory import RunConfig

Say = Callable[..., None]
"""Called with (event, cell, ...); the events are those of :func:`fedpriv.experiment.study.execution.carry_out`."""


@dataclass(frozen=True)
class Attacked:
    """A cell as a worker sees it.

    Attributes:
        name: the cell's.
        folder: of its results.
        plans: one an attack.
        named: whether the study names its attacks; what is unnamed is left out where a run has nothing for it.
    """

    name: str
    folder: Path
    plans: tuple[AttackPlan, ...]
    named: bool


@dataclass(frozen=True)
class Work:
    """One run, and the cells that attack it.

    Attributes:
        run: the run's folder.
        config: of the run.
        cells: that share the run.
        device: a name of ``--device``.
        download: fetch the data set where it is missing.
        command: of the study; goes into the records.
        logs: folder for tracebacks.
    """

    run: Path
    config: RunConfig
    cells: tuple[Attacked, ...]
    device: str
    download: bool
    command: str
    logs: Path


def main(pipe: Connection) -> None:
    """Take work from a pipe until there is no more. Interrupts from the keyboard are the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while (work := pipe.recv()) is not None:
        for cell in work.cells:
            perform(work, cell, lambda *event: pipe.send(event))
        pipe.send(("idle", ""))


def _end_with_parent() -> None:
    # An orphan must not go on writing into a folder that somebody resumes.
    from multiprocessing import parent_process

    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def perform(work: Work, cell: Attacked, say: Say) -> None:
    """Train a cell's run where that is not done yet, and attack it; nothing raises out of here."""
    say("training", cell.name)
    error = _guarded(work, cell, lambda: say("trained", cell.name, _train(work)))
    if error is not None:
        say("failed", cell.name, error)
        return
    for plan in cell.plans:
        error = _guarded(work, cell, functools.partial(_attack, work, cell, plan, say))
        if error is not None:
            say("attack failed", cell.name, plan.results(), error)
    say("finished", cell.name)


def _guarded(work: Work, cell: Attacked, action: Callable[[], None]) -> str | None:
    """Run an action; return what went wrong in one line, or None."""
    try:
        action()
    except UserError as error:
        return " ".join(str(error).split())
    except Exception as error:
        log = work.logs / f"{cell.name}.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        ownership.note(log)
        with log.open("a", encoding="utf-8") as file:
            file.write(traceback.format_exc() + "\n")
        return f"{type(error).__name__}: {' '.join(str(error).split())} (logs/{cell.name}.txt)"
    return None


def _train(work: Work) -> float:
    from fedpriv.experiment.training import train_run

    resume = (work.run / "config.json").is_file()
    summary = train_run(work.run, work.config, device=work.device, download=work.download, resume=resume)
    return float(summary["seconds"])


def _attack(work: Work, cell: Attacked, plan: AttackPlan, say: Say) -> None:
    from fedpriv.experiment.execution import attack_all, prepare_ground
    from fedpriv.experiment.inference import measure_all
    from fedpriv.experiment.study.folder import is_result

    folders = plan.results()
    if all(is_result(cell.folder / folder) for folder in folders):
        return
    say("attacking", cell.name, ", ".join(folders))
    began = time.perf_counter()
    ground = prepare_ground(work.run, plan)
    attack_all(cell.folder, ground, plan, command=work.command)
    measure_all(cell.folder, ground, plan, command=work.command, named=plan.inferences if cell.named else ())
    absent = [folder for folder in folders if not is_result(cell.folder / folder)]
    say("attacked", cell.name, folders, absent, time.perf_counter() - began)
