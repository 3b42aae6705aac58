"""News of a study while it runs: the cells that are done, the steps at work, the time that is left."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean

from fedpriv.pages.study_files import Cell as Row
from fedpriv.pages.study_files import CellAttack
from fedpriv.util.escape import duration
from fedpriv.util.listener import Listener

Watch = Callable[[Sequence[Row], Mapping[str, str]], None]
"""Called with (all rows, cell -> what is being done with it) whenever something changed."""

_Step = tuple[str, ...]
"""The kind of a step, from the general to the particular."""


@contextlib.contextmanager
def following(listener: Listener, n_workers: int) -> Iterator[Watch]:
    """Tell a listener how a study goes on, and of every cell that ends in a line."""
    ended: set[str] | None = None
    with listener.progress("cells") as report:

        def watch(rows: Sequence[Row], doing: Mapping[str, str]) -> None:
            nonlocal ended
            over = [row for row in rows if row.status != "pending"]
            seconds = seconds_left(rows, n_workers)
            left = [f"about {duration(seconds)} left"] if seconds else []
            report(len(over), len(rows), "; ".join([*(f"{cell}: {step}" for cell, step in doing.items()), *left]))
            for row in over:
                if ended is not None and row.cell not in ended:
                    listener.say("; ".join([f"[{len(over)}/{len(rows)}] {outcome(row)}", *left]))
            ended = {row.cell for row in over}

        yield watch


def seconds_left(rows: Sequence[Row], n_workers: int) -> float | None:
    """Return the seconds that the pending steps of a study may take, from those that were done; None before the first.

    A step that has not been seen yet (a training of a method, an attack on it) takes as long as the same step of other
    cells, else as long as the mean of its kind.
    """
    seen: dict[_Step, list[float]] = {}
    waiting: list[_Step] = []
    trained: set[str] = set()
    for row in rows:
        steps: list[tuple[_Step, float | None]] = []
        if row.run not in trained:
            steps.append((("train", str(row.method_label)), row.seconds.train))
        steps += [(_step(row, entry), entry.seconds) for entry in row.attacks]
        trained.add(row.run)
        for step, seconds in steps:
            if seconds is not None:
                for length in range(1, len(step) + 1):
                    seen.setdefault(step[:length], []).append(seconds)
            elif row.status == "pending":
                waiting.append(step)
    left = 0.0
    for step in waiting:
        known = next((step[:length] for length in range(len(step), 0, -1) if step[:length] in seen), None)
        if known is None:
            return None
        left += fmean(seen[known])
    return left / max(1, min(n_workers, len(waiting)))


def _step(row: Row, entry: CellAttack) -> _Step:
    return ("attack", entry.path.rpartition("/")[2], str(row.method_label))


def outcome(row: Row) -> str:
    """Return the outcome of a cell in one line."""
    if row.status == "failed":
        return f"{row.cell}: failed: {row.error}"
    parts = [f"{name} {duration(value)}" for name, value in row.seconds if value is not None]
    return f"{row.cell}: done" + (f" ({', '.join(parts)})" if parts else "")
