"""Which code from outside may run: what the user named, and nothing that only a file names.

The modules stand in a context variable while a verb runs. Processes that fedpriv starts get them by an environment
variable. No file stores them.
"""

from __future__ import annotations

import contextlib
import contextvars
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Final, NoReturn, ParamSpec, TypeVar

from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError, shown
from fedpriv.util.foreign import TENSOR_HEADER, recently_read

P = ParamSpec("P")
T = TypeVar("T")

VARIABLE: Final = "FEDPRIV_ALLOW_CODE"
"""Environment variable of child processes: modules with commas between."""

_allowed: ContextVar[frozenset[str] | None] = ContextVar("allowed", default=None)


def allowed() -> frozenset[str]:
    """Return the modules that may be imported, and the paths of TorchScript files that may be loaded."""
    now = _allowed.get()
    return frozenset(os.environ.get(VARIABLE, "").split(",")) - {""} if now is None else now


@contextlib.contextmanager
def allowing(names: Iterable[str]) -> Iterator[None]:
    """Allow more modules within the block."""
    before = _allowed.set(allowed() | frozenset(names))
    try:
        yield
    finally:
        _allowed.reset(before)


def module_names(value: object) -> tuple[str, ...]:
    """Return the modules, one or several, that a user passed as ``allow_code``.

    Raises:
        UserError: for anything else, such as ``module:NAME``.
    """
    names = (value,) if isinstance(value, (str, Path)) else value
    if not isinstance(names, (list, tuple, set, frozenset)):
        raise UserError(f"{argument('allow_code', value)}: expected the name of a module, or several")
    for name in names:
        module, colon, rest = str(name).partition(":")
        if colon and all(step.isidentifier() for step in (*module.split("."), *rest.split("."))):
            raise UserError(
                f"{argument('allow_code', str(name))}: expected a module alone: {argument('allow_code', module)}"
            )
    return tuple(map(str, names))


def check_modules(*references: str, file: Path | str | None = None) -> None:
    """Check that the modules of some texts ``package.module:NAME`` may be imported.

    Args:
        references: the texts.
        file: that names them; None for the last file read in which they stand.

    Raises:
        UserError: naming the modules and the file.
    """
    refused = list(dict.fromkeys(one for one in references if one.partition(":")[0] not in allowed()))
    modules = list(dict.fromkeys(one.partition(":")[0] for one in refused))
    if modules:
        _refuse(modules, f"module {', '.join(map(repr, modules))}", refused[0], file)


def check_script(path: str) -> None:
    """Check that a file of TorchScript, which is a program too, may be loaded.

    Raises:
        UserError: naming it and the file that names it.
    """
    if path not in allowed():
        _refuse([path], f"program {shown(path)}", path, None)


def _refuse(names: list[str], what: str, text: str, file: Path | str | None) -> NoReturn:
    place = file or _file_with(text)
    why = f"{place} alone, and code that only a file names" if place else "no argument of a verb, and other code"
    advice = f"{argument('allow_code', names[0] if len(names) == 1 else names)}, or {VARIABLE} in the environment"
    raise UserError(f"{what}: named by {why} is not run; if you trust it, allow it with {advice}")


def _file_with(text: str) -> Path | None:
    """Return the last of the files read that a text stands in."""
    forms = {text.encode(), json.dumps(text)[1:-1].encode()}
    for path in reversed(recently_read()):
        with contextlib.suppress(OSError), path.open("rb") as file:
            content = file.read(TENSOR_HEADER)
            if any(form in content for form in forms):
                return path
    return None


def for_children() -> Mapping[str, str]:
    """Return the environment variable that hands the modules to a child process; nothing where there are none."""
    return {VARIABLE: ",".join(sorted(allowed()))} if allowed() else {}


def code_flags() -> list[str]:
    """Return the flags that allow what is allowed here, for a command that finds its names in a file."""
    return [word for module in sorted(allowed()) for word in ("--allow-code", module)]


@contextlib.contextmanager
def exported() -> Iterator[None]:
    """Hand the modules to the processes that a library starts within the block."""
    before = os.environ.get(VARIABLE)
    os.environ.update(for_children())
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before


def carried(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function to call once in another thread, with the modules that are allowed here."""
    return partial(contextvars.copy_context().run, function)
