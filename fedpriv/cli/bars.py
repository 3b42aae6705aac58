"""Progress bars on standard error, several at a time; each leaves a line. Imports nothing heavy."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedpriv.util.escape import one_line
from fedpriv.util.parallel import Report

if TYPE_CHECKING:
    from rich.progress import Progress


class Bars:
    """Bars of what is going on, with the time left; each leaves a line."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shown: Progress | None = None
        self._number = 0

    @contextlib.contextmanager
    def follow(self, title: str) -> Iterator[Report]:
        """Show a bar; a piece of work that ends well leaves its title and time."""
        began, title = time.monotonic(), one_line(title)
        with self._lock:
            self._shown = shown = self._shown or _bars()
            self._number += 1
            shown.start()
            task = shown.add_task(title, total=None, what="")

        def report(done: int, planned: int, what: str) -> None:
            shown.update(task, completed=done, total=planned, what=one_line(what))

        done = False
        try:
            yield report
            done = True
        finally:
            with self._lock:
                shown.remove_task(task)
                self._number -= 1
                if done:
                    line = f"{title}: done in {time.monotonic() - began:.0f} s"
                    shown.console.print(line, markup=False, highlight=False, soft_wrap=True)
                if not self._number:
                    shown.stop()
                    self._shown = None


def _bars() -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    left = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    what = TextColumn("{task.fields[what]}", style="dim", markup=False)
    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), *left, what)
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
