"""What a person sees of a study while it runs: how many cells are done, what is going on, how long it may take."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from fedpriv.experiment.study.execution import Watch
from fedpriv.experiment.study.folder import Row

_Step = tuple[str, ...]
"""What kind of step it is, from the general to the particular."""


def seconds_left(rows: Sequence[Row], n_workers: int) -> float | None:
    """Return how long the pending steps of a study may take, from those that were done; None before the first.

    A step that has not been seen yet (a training of a method, an attack on it) takes as long as the same step of other
    cells, else as long as the mean of its kind.
    """
    seen: dict[_Step, list[float]] = {}
    waiting: list[_Step] = []
    trained: set[str] = set()
    for row in rows:
        steps: list[tuple[_Step, float | None]] = []
        if row["run"] not in trained:
            steps.append((("train", row["method_label"]), row["seconds"]["train"]))
        steps += [(_step(row, entry), entry["seconds"]) for entry in row["attacks"]]
        trained.add(row["run"])
        for step, seconds in steps:
            if seconds is not None:
                for length in range(1, len(step) + 1):
                    seen.setdefault(step[:length], []).append(seconds)
            elif row["status"] == "pending":
                waiting.append(step)
    left = 0.0
    for step in waiting:
        known = next((step[:length] for length in range(len(step), 0, -1) if step[:length] in seen), None)
        if known is None:
            return None
        left += fmean(seen[known])
    return left / max(1, min(n_workers, len(waiting)))


def _step(row: Row, entry: Mapping[str, Any]) -> _Step:
    return ("attack", entry["path"].rpartition("/")[2], row["method_label"])


def duration(seconds: float) -> str:
    """Return a time as people say it.

    >>> [duration(seconds) for seconds in (7.2, 200, 9000)]
    ['7 s', '3 min', '2.5 h']
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextlib.contextmanager
def shown(title: str, n_workers: int, *, quiet: bool) -> Iterator[Watch]:
    """Show progress on standard error: a bar where that is a terminal, else a line for each cell that ends."""
    if quiet:
        yield lambda rows, doing: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(file=sys.stderr)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        TextColumn("[dim]{task.fields[what]}"),
    )
    ended: set[str] | None = None
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None, left="", what="")

        def watch(rows: Sequence[Row], doing: Mapping[str, str]) -> None:
            nonlocal ended
            over = [row for row in rows if row["status"] != "pending"]
            left = _left(rows, n_workers)
            what = "; ".join(f"{cell}: {step}" for cell, step in doing.items())
            bar.update(task, completed=len(over), total=len(rows), left=left, what=what)
            for row in over if ended is not None else ():
                if row["cell"] not in ended:  # type: ignore[operator]
                    text = f"[{len(over)}/{len(rows)}] {line(row)}" + (f"; {left}" if left else "")
                    console.print(text, markup=False, highlight=False, soft_wrap=True)
            ended = {row["cell"] for row in over}

        yield watch


def _left(rows: Sequence[Row], n_workers: int) -> str:
    left = seconds_left(rows, n_workers)
    return "" if left is None or not left else f"about {duration(left)} left"


def line(row: Mapping[str, Any]) -> str:
    """Return what became of a cell in one line."""
    if row["status"] == "failed":
        return f"{row['cell']}: failed: {row['error']}"
    parts = [f"{name} {duration(value)}" for name, value in row["seconds"].items() if value is not None]
    return f"{row['cell']}: done" + (f" ({', '.join(parts)})" if parts else "")
