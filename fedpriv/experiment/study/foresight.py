"""A study's time told beforehand: from the first rounds of its first run, as they end, and a probe of its attacks."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from fedpriv.experiment.probe import ALTOGETHER, Probed
from fedpriv.experiment.rehearsal import rehearsed
from fedpriv.experiment.study.cells import Cell, Execution
from fedpriv.pages.study_files import Cell as Row
from fedpriv.util.code import carried
from fedpriv.util.listener import Listener

PATIENCE = 5.0
"""Seconds of work before anything is estimated, so that what takes less is left alone."""
AT_MOST = 10.0
"""Seconds after which one round of a run has to do, and none at all for a study that trains nothing any more."""


@contextlib.contextmanager
def foretold(
    folder: Path, cells: Sequence[Cell], rows: Sequence[Row], execution: Execution, listener: Listener
) -> Iterator[None]:
    """Tell a listener once, from a thread of its own, how long the pending cells of a study will take.

    Args:
        folder: of the study.
        cells: among them those that are pending.
        rows: how far each has come.
        execution: how; a study whose runs are no processes of their own takes seconds, and nothing is told.
        listener: hears of it.
    """
    pending = {row.cell for row in rows if row.status == "pending"}
    left = [cell for cell in cells if cell.name in pending]
    if not (listener.asks and execution.apart and left):
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=carried(_tell), args=(folder, left, execution, listener, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()  # what it is at ends with its next step


def _tell(folder: Path, cells: Sequence[Cell], execution: Execution, listener: Listener, over: threading.Event) -> None:
    began = time.monotonic()
    runs = {cell.run: cell for cell in cells if not (folder / "runs" / cell.run / "summary.json").is_file()}
    if over.wait(PATIENCE):
        return
    timed = _first_rounds(folder, runs, began, over)
    if timed is None:
        return
    a_round, before = timed
    training = sum(before + cell.config.rounds * a_round for cell in runs.values())
    attacks = _attacks(cells, execution, over)
    seconds = training + sum(one.seconds for one in attacks.values())
    share = max(
        max((one.longest for one in attacks.values()), default=0.0), seconds / min(execution.workers, len(cells))
    )
    if over.is_set():
        return
    probed = Probed(timed=sum(one.timed for one in attacks.values()), of=sum(one.of for one in attacks.values()))
    basis = [*(["the first rounds of one run here"] if runs else []), *([probed.basis] if probed.of else [])]
    listener.expect(
        max(0.0, share - (time.monotonic() - began)), f"estimated from {' and '.join(basis)}", execution.workers
    )


def _first_rounds(
    folder: Path, runs: Mapping[str, Cell], began: float, over: threading.Event
) -> tuple[float, float] | None:
    """Return the seconds of a round, and those that a process takes before its first; None where the study ends first."""
    while runs:
        spent = time.monotonic() - began
        for run in runs:
            seconds = _timings(folder / "runs" / run / "timings.jsonl")
            if len(seconds) > 1 or (seconds and (spent > AT_MOST or runs[run].config.rounds == 1)):
                return fmean(seconds[1:] or seconds), max(0.0, spent - sum(seconds))
        if over.wait(0.5):
            return None
    return 0.0, 0.0


def _timings(path: Path) -> list[float]:
    """Return the seconds of the rounds that are done."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]  # the last one may be half written
        return [sum(json.loads(line)["seconds"].values()) for line in lines]
    except (OSError, ValueError):
        return []


def _attacks(cells: Sequence[Cell], execution: Execution, over: threading.Event) -> dict[str, Probed]:
    """Return the time of each cell's attacks; those of a method that came too late for a probe take as long as others."""
    began, known, found = time.monotonic(), {}, {}
    for cell in cells:
        key = (cell.method.label, cell.target)
        if cell.plans and key not in known and time.monotonic() - began < ALTOGETHER:
            known[key] = rehearsed(cell.config, cell.plans, download=execution.download, over=over.is_set)
    timed = [one for one in known.values() if one.timed]
    for cell in cells:
        own = known.get((cell.method.label, cell.target))
        if cell.plans and timed and (own is None or not own.timed):
            number = sum(len(plan.results()) for plan in cell.plans)
            own = Probed(fmean(one.seconds for one in timed), max(one.longest for one in timed), 0, number)
        if cell.plans and own is not None:
            found[cell.name] = own
    return found
