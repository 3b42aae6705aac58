"""Flags, progress and output that commands share. Imports nothing heavy."""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

import rich_click as click
from click import get_current_context
from click.core import ParameterSource

from fedpriv.api.named_code import named_code
from fedpriv.util.escape import command_line, one_line, terminal_line
from fedpriv.util.parallel import Listener, Report
from fedpriv.util.registry import allowing, module_names

if TYPE_CHECKING:
    from rich.progress import Progress

F = TypeVar("F", bound=Callable[..., Any])

hint: dict[str, str] = {}
"""Advice to somebody who interrupts: ``resume`` is the command that goes on."""


def common_options(command: F) -> F:
    """Add the flags that every command has, and let it import the modules that are typed."""
    words = "Import this module although only a file names it, as config.json or a study may (repeat for more)."
    allow = click.option("--allow-code", multiple=True, metavar="MODULE", help=words, panel="Output")
    machine = click.option("--json", "as_json", is_flag=True, help="Machine-readable result on standard output.")
    quiet = click.option("--quiet", is_flag=True, help="No progress, no tables.", panel="Output")

    @functools.wraps(command)
    def run(*args: Any, allow_code: tuple[str, ...], **kwargs: Any) -> Any:
        with allowing((*module_names(allow_code), *named_code(get_current_context().params))):
            return command(*args, **kwargs)

    return cast(F, click.option_panel("Options")(allow(machine(quiet(run)))))


def given_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that the user set, by name: what is left out takes the verb's own default."""
    source, left_out = get_current_context().get_parameter_source, (ParameterSource.DEFAULT, None)
    return {name: value for name, value in values.items() if source(name) not in left_out}


_SWITCHES = ("--force", "--resume", "--share-group")


def typed(*, without: Sequence[str] = ()) -> list[str]:
    """Return the arguments of whoever makes the same anew: nothing to go on with, nothing to replace, the whole of it."""
    valued = ("--shard", *without)
    given = [word for word in sys.argv[1:] if word not in _SWITCHES]
    kept = [word for word, before in zip(given, ["", *given], strict=False) if not {word, before} & set(valued)]
    return [word for word in kept if not word.startswith(tuple(f"{flag}=" for flag in valued))]


class Terminal(Listener):
    """Shows on standard error what long work tells, and keeps the command that goes on after an interrupt."""

    def __init__(self, *, quiet: bool, as_json: bool = False, resume: str | None = None) -> None:
        self.quiet, self.as_json, self.resume = quiet, as_json, resume
        self.command = command_line(*typed(without=("--allow-code",)))
        self._lock, self._going = threading.Lock(), 0
        self._bars: Progress | None = None

    @contextmanager
    def progress(self, title: str) -> Iterator[Report]:
        """Show a progress bar, among others where several things go on; one that ends well leaves its title and time."""
        if self.quiet:
            yield lambda done, planned, what: None
            return
        began, title = time.monotonic(), one_line(title)
        with self._lock:
            self._bars = shown = self._bars or _bars()
            self._going += 1
            shown.start()
            task = shown.add_task(title, total=None, what="")
        ended = ""
        try:
            yield lambda done, planned, what: shown.update(task, completed=done, total=planned, what=one_line(what))
            ended = f"{title}: done in {time.monotonic() - began:.0f} s"
        finally:
            with self._lock:
                shown.remove_task(task)
                self._going -= 1
                if ended:
                    shown.console.print(ended, markup=False, highlight=False, soft_wrap=True)
                if not self._going:
                    shown.stop()
                    self._bars = None

    def say(self, line: str) -> None:
        """Print a notice."""
        say(line, quiet=self.quiet, as_json=self.as_json)

    def warn(self, line: str) -> None:
        """Print a warning on standard error, quiet or not: what is left out must not go unnoticed."""
        tell(f"warning: {line}", err=True)

    def resumable(self) -> None:
        """From now on an interrupt prints how to go on."""
        if self.resume is not None:
            hint["resume"] = self.resume


def _bars() -> Progress:
    from rich import progress
    from rich.console import Console

    console = Console(file=sys.stderr)
    title = progress.TextColumn("{task.description}", markup=False)
    times = progress.TimeElapsedColumn(), progress.TextColumn("left"), progress.TimeRemainingColumn()
    what = progress.TextColumn("{task.fields[what]}", style="dim", markup=False)
    columns = (title, progress.BarColumn(), progress.MofNCompleteColumn(), *times, what)
    return progress.Progress(*columns, console=console, disable=not console.is_terminal, transient=True)


def say(text: str, *, quiet: bool, as_json: bool = False) -> None:
    """Print a line for people: to standard error where standard output is for machines."""
    if not quiet:
        tell(text, err=as_json)


def tell(*lines: str, err: bool = False) -> None:
    """Print lines for people, as everything does that is no JSON: control characters in them reach no terminal."""
    for line in lines:
        click.echo(terminal_line(line), err=err)


def filled(text: str) -> list[str]:
    """Return a text in lines as wide as the terminal, 120 at most, broken between words alone."""
    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def print_json(value: Any) -> None:
    """Print the machine-readable result."""
    click.echo(json.dumps(value, indent=2))


def print_table(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows as a table whose columns are the keys of the first row; where that would break words, as lists."""
    if not rows:
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 160
    title, columns = one_line(title), [one_line(str(name)) for name in rows[0]]
    cells = [["" if value is None else one_line(str(value)) for value in row.values()] for row in rows]
    widths = [
        max(len(word) for text in column for word in [*text.split(), ""])
        for column in zip(columns, *cells, strict=True)
    ]
    if sum(widths) + 3 * len(widths) + 1 <= console.width:
        table = Table(title=Text(title), title_justify="left")
        for name, width in zip(columns, widths, strict=True):
            table.add_column(Text(name), min_width=width)
        for row in cells:
            table.add_row(*map(Text, row))
        console.print(table)
        return
    console.print(title, style="italic", markup=False)
    for row in cells:
        console.print(row[0], style="bold", markup=False)
        for name, cell in zip(columns[1:], row[1:], strict=True):
            line = textwrap.fill(f"{name}: {cell}", console.width, initial_indent="  ", subsequent_indent="    ")
            console.print(line, markup=False)
