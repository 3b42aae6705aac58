"""Hand the cells of a study to processes, run after run, and keep account of what becomes of each."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from fedpriv.experiment.processes import OVER_TO_YOU, Process, cause, start
from fedpriv.experiment.study.cells import Execution
from fedpriv.experiment.study.folder import save_rows
from fedpriv.experiment.study.progress import Watch
from fedpriv.pages.study_files import Cell as Row

WORKER = "fedpriv.experiment.study.worker"


def carry_out(path: Path, rows: list[Row], execution: Execution, watch: Watch, account: Path | None = None) -> None:
    """Work off what is pending by so many processes, each of which takes run after run.

    One that dies fails the cell that it was at, and another takes its place.

    Args:
        path: the study's folder.
        rows: a line a cell; brought up to date here and saved with every change.
        execution: how.
        watch: told of every change.
        account: folder of the shard whose rows these are; None for the whole study, which keeps its own list.
    """
    board = _Board(path, path if account is None else account, rows, watch)
    runs = dict.fromkeys(row.run for row in rows if row.status == "pending")
    if not execution.apart:
        for run in runs:
            board.work_off_here(run, execution)
        return
    with ThreadPoolExecutor(execution.workers) as pool:
        try:
            for ended in as_completed([pool.submit(board.work_off, run, execution) for run in runs]):
                ended.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            board.stop()
            raise
    board.dismiss()


class _Board:
    """Rows of all cells, and the processes that are at work; each thread attends to one of them at a time."""

    def __init__(self, path: Path, account: Path, rows: list[Row], watch: Watch) -> None:
        self._path, self._account, self._rows, self._watch = path, account, rows, watch
        self._doing: dict[str, str] = {}
        self._processes: set[Process] = set()
        self._idle: list[Process] = []
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._began = time.monotonic()
        self._changed()

    def work_off(self, run: str, execution: Execution) -> None:
        """Hand a run to a process until none of its cells is pending: once, unless the process dies."""
        while cells := [row.cell for row in self._rows if row.run == run and row.status == "pending"]:
            process = self._take(execution)
            if process is None:
                return
            survived = self._hand_over(process, cells)
            with self._lock:
                if survived:
                    self._idle.append(process)
                else:
                    self._processes.discard(process)
                self._news.notify()
                if self._stopped.is_set():
                    return
            code = None if survived else _end(process)
            pending = [row for row in self._rows if row.cell in cells and row.status == "pending"]
            if pending:
                at = next((row for row in pending if row.cell in self._doing), pending[0])
                why = f"the worker process ended: {cause(code)}" if code is not None else "the worker left it out"
                self._enter(at.model_copy(update={"status": "failed", "error": why}), None)

    def _take(self, execution: Execution) -> Process | None:
        """Return a process that waits for work, or a new one in due time; None once all is stopped."""
        with self._lock:
            while not self._stopped.is_set():
                if self._idle:
                    return self._idle.pop()
                patience = self._began + execution.patience - time.monotonic()
                if not self._processes or patience <= 0:
                    process = _start(self._path, self._account, execution)
                    self._processes.add(process)
                    return process
                self._news.wait(patience)
            return None

    def _hand_over(self, process: Process, cells: Sequence[str]) -> bool:
        """Have a process perform cells, and enter what it says; False when it died of it."""
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(cells).encode() + b"\n")
            process.stdin.flush()
            for line in process.stdout:
                said = json.loads(line)
                if said == OVER_TO_YOU:
                    return True
                self._enter(Row.model_validate(said["row"]), said["doing"])
        return False

    def work_off_here(self, run: str, execution: Execution) -> None:
        """Perform the pending cells of a run in this process."""
        from fedpriv.experiment.study.worker import perform

        perform(
            self._path,
            [row.cell for row in self._rows if row.run == run and row.status == "pending"],
            execution,
            self._enter,
            self._account,
        )

    def dismiss(self) -> None:
        """End the processes, none of which is at work."""
        for process in self._idle:
            _end(process)

    def stop(self) -> None:
        """End every process, whatever it is doing."""
        with self._lock:
            self._stopped.set()
            self._news.notify_all()
            for process in self._processes:
                process.terminate()

    def _enter(self, row: Row, doing: str | None) -> None:
        with self._lock:
            if self._stopped.is_set():
                return
            place = next(place for place, own in enumerate(self._rows) if own.cell == row.cell)
            self._rows[place] = row
            self._doing.pop(row.cell, None)
            if doing is not None:
                self._doing[row.cell] = doing
            self._changed()

    def _changed(self) -> None:
        save_rows(self._account, self._rows)
        self._watch(self._rows, self._doing)


def _start(path: Path, account: Path, execution: Execution) -> Process:
    flags = ["--device", execution.device, "--attended"]
    flags += [] if account == path else ["--account", str(account)]
    flags += ["--download"] if execution.download else []
    flags += [] if execution.chunk_rows is None else ["--chunk-rows", str(execution.chunk_rows)]
    return start(WORKER, [str(path), *flags])


def _end(process: Process) -> int:
    """Let a process end, and return its exit code."""
    with contextlib.suppress(BrokenPipeError), process:
        pass
    return process.wait()
