"""Code from outside that may run: what the user named, and nothing that only a file names.

The modules stand in a context variable while a verb runs, and in an environment variable of processes that fedpriv starts.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from fedpriv.util.errors import UserError, shown

P = ParamSpec("P")
T = TypeVar("T")

VARIABLE: Final = "FEDPRIV_ALLOW_CODE"
"""Environment variable of child processes: modules with commas between."""

_allowed: ContextVar[frozenset[str] | None] = ContextVar("allowed", default=None)


def allowed() -> frozenset[str]:
    """Return the modules that may be imported."""
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
    """Return the modules, one or several, that a user passed as ``allow_code``."""
    names = (value,) if isinstance(value, (str, Path)) else value
    if not isinstance(names, (list, tuple, set, frozenset)):
        raise UserError(f"allow_code={shown(value)}: expected the name of a module, or several")
    for name in map(str, names):
        module, colon, rest = name.partition(":")
        if colon and all(step.isidentifier() for step in (*module.split("."), *rest.split("."))):
            raise UserError(f"allow_code={shown(name)}: expected a module alone: allow_code={shown(module)}")
    return tuple(map(str, names))


def check_modules(*references: str, file: Path | str | None = None) -> None:
    """Check that the modules of some texts ``package.module:NAME``, which a file names, may be imported."""
    modules = dict.fromkeys(text.partition(":")[0] for text in references)
    refused = [module for module in modules if module not in allowed()]
    if refused:
        raise UserError(
            f"module {', '.join(map(shown, refused))}: code that only {file or 'a file'} names is not run; if you trust it, "
            f"allow it with allow_code={shown(refused[0] if len(refused) == 1 else refused)}"
        )


def code_flags() -> list[str]:
    """Return the flags that allow what is allowed here, for a command that finds its names in a file."""
    return [word for module in sorted(allowed()) for word in ("--allow-code", module)]


@contextlib.contextmanager
def exported() -> Iterator[None]:
    """Hand the modules to the processes that a library starts within the block."""
    before = os.environ.get(VARIABLE)
    os.environ.update({VARIABLE: ",".join(sorted(allowed()))} if allowed() else {})
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)
        if before is not None:
            os.environ[VARIABLE] = before


def carried(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function to call once in another thread, with the modules that are allowed here."""
    return partial(contextvars.copy_context().run, function)
