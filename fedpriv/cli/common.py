"""Flags, configuration files, progress and output that commands share. Imports nothing heavy."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar, cast

import rich_click as click

from fedpriv.cli.bars import Bars
from fedpriv.util.arguments import Spelling
from fedpriv.util.errors import UserError, shown, unknown_name
from fedpriv.util.escape import one_line, shell_word, terminal_line
from fedpriv.util.folders import telling_name
from fedpriv.util.foreign import toml_file
from fedpriv.util.listener import Listener, Report

F = TypeVar("F", bound=Callable[..., Any])

hint: dict[str, str] = {}
"""Advice to somebody who interrupts: ``resume`` is the command that goes on."""


# ---------------------------------------------------------------- flags

_CONFIG, _ALLOWED = "fedpriv.config", "fedpriv.allow_code"
"""Keys of what a command's context keeps: the file of ``--config``, and the modules of ``--allow-code``."""


def _load_config(ctx: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    """Make a TOML file's keys the defaults of the command's flags; flags on the command line still win."""
    if value is None:
        return None
    ctx.meta[_CONFIG] = value
    values = toml_file(value, f"--config {value}", expected="flags in TOML, see docs/configuration.md")
    known = {name: p for p in ctx.command.params for name in _toml_names(p) if name not in ("config", "allow_code")}
    defaults: dict[str, Any] = {}
    for key, entry in values.items():
        name = key.replace("-", "_")
        if name == "allow_code":
            raise UserError(f"{value}: {key}: no file allows code; drop it, and type --allow-code MODULE")
        if name not in known:
            raise unknown_name(f"key in {value}:", key, (n.replace("_", "-") for n in known))
        found = known[name]
        defaults[str(found.name)] = _as_typed(ctx, found, f"{value}: {key}", entry)
    ctx.default_map = {**(ctx.default_map or {}), **defaults}
    return value


def _as_typed(ctx: click.Context, parameter: click.Parameter, where: str, entry: Any) -> Any:
    """Return an entry of a TOML file as the flag would have it, checked as the flag is.

    Raises:
        UserError: for a list or a table where the flag takes one value, and for another type.
    """
    if parameter.multiple or parameter.nargs == -1:
        if isinstance(entry, dict):
            entry = [f"{inner}={_toml_text(item)}" for inner, item in entry.items()]
        return [_one_typed(ctx, parameter, where, one) for one in (entry if isinstance(entry, list) else [entry])]
    return _one_typed(ctx, parameter, where, entry)


def _one_typed(ctx: click.Context, parameter: click.Parameter, where: str, entry: Any) -> Any:
    if isinstance(entry, (list, dict)):
        raise UserError(f"{where}: expected one value, got a {'list' if isinstance(entry, list) else 'table'}")
    wanted = {"boolean": (bool,), "path": (str,)}.get(parameter.type.name)
    if wanted and not isinstance(entry, wanted):
        raise UserError(f"{where}: expected {'true or false' if bool in wanted else 'a text'}, got {shown(entry)}")
    text = entry if wanted else str(entry)
    try:
        parameter.type.convert(text, parameter, ctx)
    except click.BadParameter as error:
        raise UserError(f"{where}: {error.message[0].lower()}{error.message[1:].rstrip('.')}") from error
    return text


def _toml_names(parameter: click.Parameter) -> set[str]:
    flags = {flag.lstrip("-").replace("-", "_") for flag in parameter.opts if flag.startswith("--")}
    return flags or {str(parameter.name)}


def _toml_text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, (bool, dict, list)) else str(value)


def common_options(command: F) -> F:
    """Add the flags that every command has."""
    for option in reversed(
        (
            click.option(
                "--config",
                type=click.Path(path_type=Path),
                is_eager=True,
                expose_value=False,
                callback=_load_config,
                help="TOML file whose keys are flag names; flags override it.",
            ),
            click.option(
                "--allow-code",
                multiple=True,
                metavar="MODULE",
                expose_value=False,
                callback=_allow,
                help="Import this module although only a file names it, as config.json or a study may (repeat for more).",
            ),
            click.option("--json", "as_json", is_flag=True, help="Machine-readable result on standard output."),
            click.option("--quiet", is_flag=True, help="No progress, no tables."),
        )
    ):
        command = option(command)
    return imports_what_is_typed(command)


def imports_what_is_typed(command: F) -> F:
    """Let a command import the modules that stand on the command line, and none that only its ``--config`` names."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        from click import get_current_context
        from click.core import ParameterSource

        from fedpriv.experiment.named_code import named_code
        from fedpriv.util.code import allowing, check_modules

        context = get_current_context()
        of_config = {
            name: value
            for name, value in context.params.items()
            if context.get_parameter_source(name) is ParameterSource.DEFAULT_MAP
        }
        typed = {name: value for name, value in context.params.items() if name not in of_config}
        with allowing((*context.meta.get(_ALLOWED, ()), *named_code(typed))):
            check_modules(*sorted(named_code(of_config)), file=context.meta.get(_CONFIG))
            return command(*args, **kwargs)

    return cast(F, run)


def _allow(ctx: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> None:
    from fedpriv.util.code import module_names

    ctx.meta[_ALLOWED] = module_names(value)


def device_option(command: F) -> F:
    """Add ``--device``."""
    option = click.option(
        "--device",
        default="auto",
        show_default=True,
        help="auto, cpu, cuda, or cuda:N. auto takes a GPU if there is one.",
    )
    return option(command)


def workers_option(command: F) -> F:
    """Add ``--workers``."""
    option = click.option(
        "--workers",
        default="auto",
        show_default=True,
        metavar="N",
        help="Processes, one thread each. auto takes one a core, and eight a GPU at most; changes no result.",
    )
    return option(command)


def arithmetic_options(command: F) -> F:
    """Add ``--precision`` and ``--compile``."""
    options = (
        click.option(
            "--precision",
            default="float32",
            show_default=True,
            metavar="float32|tf32|bfloat16",
            help="Of searches by Adam (dip, pixels, joint, class-inversion); what they find is judged in float32.",
        ),
        click.option(
            "--compile",
            is_flag=True,
            help="Compile the networks of such searches first; moves the last digits at most.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def redact_option(command: F) -> F:
    """Add ``--redact``."""
    option = click.option(
        "--redact",
        metavar="blur|omit|none",
        help="Blur or omit pictures of people, so that it can be passed on (docs/redaction.md).",
    )
    return option(command)


def share_option(command: F) -> F:
    """Add ``--share-group``."""
    text = "Let your group read what is written, and so attack a run (default: yours alone; docs/folders.md)."
    return click.option("--share-group", is_flag=True, help=text)(command)


_COMMANDS = {"catalogue": "list", "plan": "audit --dry-run"}
"""Verbs whose commands are called otherwise."""


class Flags(Spelling):
    """Spells verbs as commands, and arguments as the flags of the command that runs."""

    def argument(self, name: str, *value: Any) -> str:
        """Return the flag of an argument, once for each value where it takes several.

        >>> Flags().argument("rounds_seen", 3), Flags().argument("knowledge", {"labels": "given"})
        ('--rounds-seen 3', '--knowledge labels=given')
        """
        context = click.get_current_context(silent=True)
        known = {} if context is None else {str(own.name): own for own in context.command.params}
        own = known.get(name)
        spelled = "--" + name.replace("_", "-")
        if own is not None and spelled not in (*own.opts, *own.secondary_opts):
            spelled = own.opts[0] if isinstance(own, click.Option) else str(own.metavar or own.name).strip("[]")
        if own is not None and own.multiple and value and isinstance(value[0], (list, tuple, Mapping)):
            several = value[0].items() if isinstance(value[0], Mapping) else value[0]
            return " ".join(f"{spelled} {_typed(dict([one]) if isinstance(one, tuple) else one)}" for one in several)
        return " ".join([spelled, *map(_typed, value)])

    def call(self, verb: str, *given: Any, **named: Any) -> str:
        """Return a command.

        >>> Flags().call("train", resume=True, out="runs/a"), Flags().call("catalogue", "targets")
        ('fedpriv train --resume --out runs/a', 'fedpriv list targets')
        """
        flags = [
            "--" + name.replace("_", "-") + ("" if one is True else f" {_typed(one)}")
            for name, value in named.items()
            for one in (value if isinstance(value, tuple) else (value,))
        ]
        return " ".join(["fedpriv", _COMMANDS.get(verb, verb), *map(_typed, given), *flags])


def _typed(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key}={_typed(entry)}" for key, entry in value.items())
    return ",".join(map(_typed, value)) if isinstance(value, (list, tuple)) else str(value)


def called(flags: Mapping[str, Any]) -> str:
    """Return the name of the data set as a part of a folder's name: a folder of images goes by its own."""
    own = flags["dataset"] == "folder" and flags["data_dir"]
    return "-".join(telling_name(Path(flags["data_dir"]))) if own else str(flags["dataset"])


_HOW = ("--shard", "--submit", "--shards", "--job")
"""Flags with a value that say which part of the work a process does, and nothing of what results."""


def anew() -> list[str]:
    """Return the arguments of whoever makes the same anew: there is nothing to go on with then, and nothing to replace."""
    given = [argument for argument in sys.argv[1:] if argument not in ("--force", "--resume", "--share-group")]
    before = ["", *given]
    return [
        argument
        for argument, last in zip(given, before, strict=False)
        if argument not in _HOW and last not in _HOW and not argument.startswith(tuple(f"{flag}=" for flag in _HOW))
    ]


def without_code(arguments: Sequence[str]) -> list[str]:
    """Return arguments without ``--allow-code``, which no file keeps."""
    before = ["", *arguments]
    return [
        argument
        for argument, last in zip(arguments, before, strict=False)
        if last != "--allow-code" and argument != "--allow-code" and not argument.startswith("--allow-code=")
    ]


def code_flags() -> list[str]:
    """Return the flags that allow what is allowed here, for a command that finds its names in a file."""
    from fedpriv.util.code import allowed

    return [word for module in sorted(allowed()) for word in ("--allow-code", module)]


def command_line(*parts: str | Path) -> str:
    """Return a command that can be pasted into a shell."""
    return " ".join(["fedpriv", *(shell_word(str(part)) for part in parts)])


def completed(names: Callable[[], Iterable[str]]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return the completion of an argument in a shell: the names that begin as typed."""

    def complete(ctx: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
        return [name for name in names() if name.startswith(typed)]

    return complete


# ---------------------------------------------------------------- output


def say(text: str, *, quiet: bool, as_json: bool) -> None:
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


def filled_parts(parts: Sequence[str]) -> list[str]:
    """Return parts in lines as wide as the terminal, none of them broken."""
    whole = "   ".join(part.replace(" ", "\u00a0") for part in parts)
    return [line.replace("\u00a0", " ") for line in filled(whole)]


def print_json(value: Any) -> None:
    """Print the machine-readable result."""
    click.echo(json.dumps(value, indent=2))


def _unheard(done: int, planned: int, what: str) -> None:
    """Show nothing."""


class Terminal(Listener):
    """Shows on standard error what long work tells, and keeps the command that goes on after an interrupt."""

    def __init__(self, *, quiet: bool, as_json: bool = False, resume: str | None = None) -> None:
        self.quiet = quiet
        self.as_json = as_json
        self.resume = resume
        self.command = command_line(*without_code(anew()))
        self._bars = Bars()

    def progress(self, title: str) -> AbstractContextManager[Report]:
        """Show a progress bar, among others where several things go on at once."""
        return contextlib.nullcontext(_unheard) if self.quiet else self._bars.follow(title)

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


def print_table(title: str, rows: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print rows as a table whose columns are the keys of the first row, never breaking a word.

    Where the terminal is too narrow for that, rows become columns; where that is too wide as well, every row is a list.
    """
    if not rows:
        return
    from rich.console import Console

    console = Console(stderr=as_json, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 160
    title, columns = one_line(title), [one_line(str(name)) for name in rows[0]]
    cells = [["" if value is None else one_line(str(value)) for value in row.values()] for row in rows]
    turned = [[columns[place], *(row[place] for row in cells)] for place in range(1, len(columns))]
    head = [columns[0], *(row[0] for row in cells)]
    for names, lines in ((columns, cells), (head, turned)):
        widths = [max(_longest_word(cell) for cell in column) for column in zip(names, *lines, strict=True)]
        if sum(widths) + 3 * len(widths) + 1 <= console.width:
            console.print(_table(title, names, lines, widths))
            return
    console.print(title, style="italic", markup=False)
    for row in cells:
        console.print(row[0], style="bold", markup=False)
        for name, cell in zip(columns[1:], row[1:], strict=True):
            line = textwrap.fill(f"{name}: {cell}", console.width, initial_indent="  ", subsequent_indent="    ")
            console.print(line, markup=False)


def _table(title: str, names: Sequence[str], lines: Sequence[Sequence[str]], widths: Sequence[int]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left")
    for name, width in zip(names, widths, strict=True):
        table.add_column(Text(name), min_width=width)
    for line in lines:
        table.add_row(*(Text(cell) for cell in line))
    return table


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)


def given(ctx: click.Context) -> set[str]:
    """Return the names of the parameters that the user set, on the command line or in a file."""
    from click.core import ParameterSource

    chosen = (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP, ParameterSource.ENVIRONMENT)
    return {str(p.name) for p in ctx.command.params if p.name and ctx.get_parameter_source(p.name) in chosen}


def given_values(ctx: click.Context, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that the user set, by name: what is left out takes the verb's own default."""
    named = given(ctx)
    return {name: value for name, value in values.items() if name in named}
