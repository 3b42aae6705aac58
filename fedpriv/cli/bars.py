"""Progress bars on standard error, several at a time; each leaves a line. Imports nothing heavy."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedpriv.util.escape import one_line
from fedpriv.util.listener import Report

if TYPE_CHECKING:
    from rich.progress import Progress

EVERY = 30.0
"""Seconds between two lines about a piece of work outside a terminal, where no bar moves."""


class Bars:
    """Bars of what is going on, with the time left; outside a terminal a line now and then, and the one that each leaves."""

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
        said = began

        def report(done: int, planned: int, what: str) -> None:
            nonlocal said
            shown.update(task, completed=done, total=planned, what=one_line(what))
            if shown.disable and time.monotonic() - said >= EVERY:
                said = time.monotonic()
                _print(shown, f"{title}: {done} of {planned}, {one_line(what)}, after {said - began:.0f} s")

        done = False
        try:
            yield report
            done = True
        finally:
            with self._lock:
                shown.remove_task(task)
                self._number -= 1
                if done:
                    _print(shown, f"{title}: done in {time.monotonic() - began:.0f} s")
                if not self._number:
                    shown.stop()
                    self._shown = None


def _print(shown: Progress, line: str) -> None:
    shown.console.print(line, markup=False, highlight=False, soft_wrap=True)


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
