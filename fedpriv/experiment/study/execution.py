"""Hand the cells of a study to processes, run after run, and keep account of what becomes of each."""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from fedpriv.experiment.processes import OVER_TO_YOU, Process, cause, start
from fedpriv.experiment.study.cells import Execution
from fedpriv.experiment.study.folder import save_rows
from fedpriv.experiment.study.progress import Watch
from fedpriv.pages.study_files import Cell as Row
from fedpriv.util.code import carried

WORKER = "fedpriv.experiment.study.worker"


def carry_out(path: Path, rows: list[Row], execution: Execution, watch: Watch, account: Path | None = None) -> None:
    """Work off what is pending by so many processes, each of which takes run after run.

    One that dies fails the cell that it was at, and another takes its place. While ``execution.patience`` lasts, this
    process takes runs itself, so that a study of seconds starts no other; the run that it is at by then, it ends.

    Args:
        path: the study's folder.
        rows: a line a cell; brought up to date here and saved with every change.
        execution: how.
        watch: told of every change.
        account: folder of the shard whose rows these are; None for the whole study, which keeps its own list.
    """
    board = _Board(path, path if account is None else account, rows, watch, execution)
    if not execution.apart:
        board.work_here()
        return
    with ThreadPoolExecutor(execution.workers) as pool:
        try:
            own = 1 if execution.patience else 0
            attending = [pool.submit(carried(board.attend)) for _ in range(own, execution.workers)]
            if own:
                board.work_here(execution.patience)
                attending.append(pool.submit(carried(board.attend)))
            for ended in as_completed(attending):
                ended.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            board.stop()
            raise


class _Board:
    """Rows of all cells, and the processes that are at work; each thread attends to one of them at a time."""

    def __init__(self, path: Path, account: Path, rows: list[Row], watch: Watch, execution: Execution) -> None:
        self._path, self._account, self._rows, self._watch, self._execution = path, account, rows, watch, execution
        self._runs = deque(dict.fromkeys(row.run for row in rows if row.status == "pending"))
        self._doing: dict[str, str] = {}
        self._processes: set[Process] = set()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._began = time.monotonic()
        self._changed()

    def work_here(self, seconds: float = math.inf) -> None:
        """Perform the pending cells of run after run in this process, and begin none after so many seconds."""
        from fedpriv.experiment.study.worker import perform

        while time.monotonic() < self._began + seconds and (run := self._next()) is not None:
            perform(self._path, self._pending(run), self._execution, self._enter, self._account)

    def attend(self) -> None:
        """Hand run after run to a process of its own, after the patience if there is any; another where one dies."""
        if not self._waited():
            return
        process: Process | None = None
        try:
            while (run := self._next()) is not None:
                while cells := self._pending(run):
                    if process is None:
                        process = self._start()
                    if process is None:  # all is stopped
                        return
                    code = None
                    if not self._hand_over(process, cells):
                        code, process = self._end(process), None
                    if self._stopped.is_set():
                        return
                    self._account_for(cells, code)
        finally:
            if process is not None:
                self._end(process)

    def _waited(self) -> bool:
        """Wait for the patience to be over; return False where nothing is left to do by then."""
        with self._lock:
            until = self._began + self._execution.patience
            while self._runs and not self._stopped.is_set() and (left := until - time.monotonic()) > 0:
                self._news.wait(left)
            return bool(self._runs) and not self._stopped.is_set()

    def _next(self) -> str | None:
        """Return a run that nobody has taken; None where there is none, or all is stopped."""
        with self._lock:
            run = self._runs.popleft() if self._runs and not self._stopped.is_set() else None
            self._news.notify_all()
            return run

    def _pending(self, run: str) -> list[str]:
        return [row.cell for row in self._rows if row.run == run and row.status == "pending"]

    def _account_for(self, cells: Sequence[str], code: int | None) -> None:
        """Fail the cell at which a process ended, by its exit code, or which it left out (no code)."""
        pending = [row for row in self._rows if row.cell in cells and row.status == "pending"]
        if pending:
            at = next((row for row in pending if row.cell in self._doing), pending[0])
            why = f"the worker process ended: {cause(code)}" if code is not None else "the worker left it out"
            self._enter(at.model_copy(update={"status": "failed", "error": why}), None)

    def _start(self) -> Process | None:
        """Start a process that waits for cells; None once all is stopped."""
        own = [] if self._account == self._path else ["--account", str(self._account)]
        with self._lock:
            if self._stopped.is_set():
                return None
            process = start(WORKER, [str(self._path), "--attended", *own, *_flags(self._execution)])
            self._processes.add(process)
            return process

    def _end(self, process: Process) -> int:
        """Let a process end, and return its exit code."""
        with contextlib.suppress(BrokenPipeError), process:
            pass
        with self._lock:
            self._processes.discard(process)
        return process.wait()

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


def _flags(execution: Execution) -> list[str]:
    flags = ["--device", execution.device]
    flags += ["--download"] if execution.download else []
    flags += ["--compile"] if execution.compiled else []
    flags += [] if execution.chunk_rows is None else ["--chunk-rows", str(execution.chunk_rows)]
    return flags
