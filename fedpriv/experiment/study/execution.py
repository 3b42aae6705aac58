"""Hand the cells of a study to processes, one a run, and keep account of what becomes of each."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from fedpriv.experiment.processes import Process, cause, start
from fedpriv.experiment.study.cells import Execution
from fedpriv.experiment.study.folder import save_rows
from fedpriv.experiment.study.progress import Watch
from fedpriv.pages.study_files import Cell as Row

WORKER = "fedpriv.experiment.study.worker"


def carry_out(path: Path, rows: list[Row], execution: Execution, watch: Watch, account: Path | None = None) -> None:
    """Work off what is pending, a process a run, so many at a time; one that dies fails the cell that it was at.

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


class _Board:
    """Rows of all cells, and the processes that are at work; each thread attends to one of them."""

    def __init__(self, path: Path, account: Path, rows: list[Row], watch: Watch) -> None:
        self._path, self._account, self._rows, self._watch = path, account, rows, watch
        self._doing: dict[str, str] = {}
        self._processes: set[Process] = set()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._changed()

    def work_off(self, run: str, execution: Execution) -> None:
        """Start processes for a run until none of its cells is pending: one, unless it dies."""
        while cells := [row.cell for row in self._rows if row.run == run and row.status == "pending"]:
            with self._lock:
                if self._stopped.is_set():
                    return
                process = _start(self._path, self._account, cells, execution)
                self._processes.add(process)
            assert process.stdin is not None
            assert process.stdout is not None
            with process.stdin, process.stdout:
                for line in process.stdout:
                    said = json.loads(line)
                    self._enter(Row.model_validate(said["row"]), said["doing"])
                code = process.wait()
            with self._lock:
                self._processes.discard(process)
                if self._stopped.is_set():
                    return
            pending = [row for row in self._rows if row.cell in cells and row.status == "pending"]
            if pending:
                at = next((row for row in pending if row.cell in self._doing), pending[0])
                failed = {"status": "failed", "error": f"the worker process ended: {cause(code)}"}
                self._enter(at.model_copy(update=failed), None)

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

    def stop(self) -> None:
        """End every process."""
        with self._lock:
            self._stopped.set()
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


def _start(path: Path, account: Path, cells: Sequence[str], execution: Execution) -> Process:
    flags = ["--device", execution.device, "--attended"]
    flags += [] if account == path else ["--account", str(account)]
    flags += ["--download"] if execution.download else []
    flags += [] if execution.chunk_rows is None else ["--chunk-rows", str(execution.chunk_rows)]
    return start(WORKER, [str(path), *cells, *flags])
