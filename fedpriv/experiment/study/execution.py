"""Hand the cells of a study to worker processes, and keep account of what becomes of each."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fedpriv.experiment.study.cells import Cell, Execution
from fedpriv.experiment.study.folder import Row, is_result, save_rows
from fedpriv.experiment.study.progress import Watch
from fedpriv.experiment.study.worker import Attacked, Work, main

_DONE = {"status": "done", "error": None}


@dataclass
class _Worker:
    """A process, and what it has still to do: the first cell of its work is the one that it is at."""

    process: BaseProcess
    pipe: Connection
    work: Work | None = None


def works(path: Path, cells: Sequence[Cell], rows: Sequence[Row], execution: Execution, command: str) -> list[Work]:
    """Return what is left to do: a piece of work a run, in the order of the study."""
    pending = {row["cell"] for row in rows if row["status"] != "done"}
    found: dict[str, Work] = {}
    for cell in cells:
        if cell.name not in pending:
            continue
        attacked = Attacked(cell.name, path / "attacks" / cell.name, cell.plans, cell.named)
        if cell.run in found:
            found[cell.run] = replace(found[cell.run], cells=(*found[cell.run].cells, attacked))
        else:
            run, logs = path / "runs" / cell.run, path / "logs"
            found[cell.run] = Work(run, cell.config, (attacked,), execution.device, execution.download, command, logs)
    return list(found.values())


def carry_out(path: Path, rows: list[Row], queue: list[Work], n_workers: int, watch: Watch) -> None:
    """Work a queue off with processes of one thread each.

    Workers say ``training``, ``trained``, ``attacking``, ``attacked``, ``attack failed``, ``failed``, ``finished`` (of a
    cell) and ``idle``. A worker that dies fails the cell that it was at, and another takes its place.

    Args:
        path: the study's folder.
        rows: a line a cell; brought up to date here and saved with every change.
        queue: what to do; emptied here.
        n_workers: processes at a time.
        watch: told of every change.
    """
    by_name = {row["cell"]: row for row in rows}
    doing: dict[str, str] = {}
    workers: list[_Worker] = []
    save_rows(path, rows)
    watch(rows, doing)
    try:
        while queue or any(worker.work for worker in workers):
            while queue and len(workers) < n_workers and all(worker.work for worker in workers):
                workers.append(_start())
                _give(workers[-1], queue)
            for worker in workers:
                if worker.work is None and queue:
                    _give(worker, queue)
            for worker in _with_news(workers):
                event = _listen(worker)
                if event is None:
                    workers.remove(worker)
                    queue[:0] = _bury(worker, by_name, doing)
                else:
                    _account(worker, event, by_name, doing)
                save_rows(path, rows)
                watch(rows, doing)
    finally:
        for worker in workers:
            _end(worker)


# ---------------------------------------------------------------- processes


def _start() -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=main, args=(theirs,), daemon=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with _interrupts_held():
        process.start()
    theirs.close()
    return _Worker(process, ours)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Keep Ctrl-C from a process that is starting, which inherits what is held; it is ours alone to handle."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _give(worker: _Worker, queue: list[Work]) -> None:
    worker.work = queue.pop(0)
    with contextlib.suppress(OSError):  # it is dead already; its end of the pipe tells
        worker.pipe.send(worker.work)


def _with_news(workers: Sequence[_Worker]) -> list[_Worker]:
    ready = wait([worker.pipe for worker in workers])
    return [worker for worker in workers if worker.pipe in ready]


def _listen(worker: _Worker) -> tuple[Any, ...] | None:
    """Return what a worker says, or None where it died."""
    try:
        event: tuple[Any, ...] = worker.pipe.recv()
    except (EOFError, OSError):
        return None
    return event


def _bury(worker: _Worker, rows: Mapping[str, Row], doing: dict[str, str]) -> list[Work]:
    """Fail the cell that a dead worker was at; return what is left of its work."""
    worker.process.join()
    work = worker.work
    if work is None:
        return []
    cell, *others = work.cells
    doing.pop(cell.name, None)
    row = rows[cell.name]
    row |= {"status": "failed", "error": f"the worker process ended: {_cause(worker.process.exitcode)}"}
    return [replace(work, cells=tuple(others))] if others else []


def _cause(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return name + (", perhaps for want of memory" if name == "SIGKILL" else "")


def _end(worker: _Worker) -> None:
    worker.process.terminate()
    worker.process.join()
    worker.pipe.close()


# ---------------------------------------------------------------- account


def _account(worker: _Worker, event: tuple[Any, ...], rows: Mapping[str, Row], doing: dict[str, str]) -> None:
    """Enter what a worker said into the line of its cell."""
    what, name, *more = event
    if what == "idle":
        worker.work = None
        return
    row = rows[name]
    if what in ("training", "attacking"):
        doing[name] = " ".join([what, *more])
    elif what == "trained":
        row["seconds"]["train"] = more[0]
    elif what == "attacked":
        folders, absent, seconds = more
        row["seconds"]["attack"] = (row["seconds"]["attack"] or 0.0) + seconds
        for entry in _entries(row, folders):
            left_out = Path(entry["path"]).name in absent
            entry |= {"status": "left out", "error": "the run has nothing for it"} if left_out else _DONE
            entry["seconds"] = seconds / len(folders)
    elif what == "attack failed":
        folders, error = more
        for entry in _entries(row, folders):
            there = is_result(_folder(worker, name) / Path(entry["path"]).name)
            entry |= _DONE if there else {"status": "failed", "error": error}
    elif what in ("finished", "failed"):
        doing.pop(name, None)
        errors = more or [entry["error"] for entry in row["attacks"] if entry["status"] == "failed"]
        row |= {"status": "failed", "error": errors[0]} if errors else _DONE
        assert worker.work is not None
        worker.work = replace(worker.work, cells=tuple(cell for cell in worker.work.cells if cell.name != name))


def _entries(row: Row, folders: Sequence[str]) -> list[dict[str, Any]]:
    return [entry for entry in row["attacks"] if Path(entry["path"]).name in folders]


def _folder(worker: _Worker, cell: str) -> Path:
    assert worker.work is not None
    return next(one.folder for one in worker.work.cells if one.name == cell)
