"""Registries: from a name to a member ``package.module:NAME``, imported only when it is looked up.

Members are those of this package, those that other distributions name under an entry-point group, and references
``package.module:NAME`` whose module the user named or allowed: code that only a file names is not run. Of two members of one
name, this package's own wins. What is allowed stands in a context variable while a verb runs, and in an environment variable
of processes that fedpriv starts.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from fedpriv.util.errors import UserError, shown, unknown_name

_LOG = logging.getLogger("fedpriv")


class Registry(Mapping[str, str]):
    """Names of one sort of member, and where each is, as ``package.module:NAME``.

    It lists this package's members, then those of an entry-point group; ``in`` and ``[]`` take references too, and names
    that these led to. ``contract`` is ``module:function`` of (name, member) that raises UserError for a member from outside
    that is none.
    """

    def __init__(self, noun: str, builtins: Mapping[str, str], *, group: str = "", contract: str = "") -> None:
        self.noun, self.builtins, self.group, self._contract = noun, dict(builtins), group, contract
        self._adopted: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        if not isinstance(name, str):  # whatever a file or a caller gave
            raise KeyError(name)
        if is_reference(name):
            return name
        known = self.builtins.get(name) or self._adopted.get(name)
        return known or self._outside()[name].value

    def __iter__(self) -> Iterator[str]:
        return iter([*self.builtins, *self._outside()])

    def __len__(self) -> int:
        return len(self.builtins) + len(self._outside())

    def load(self, name: str) -> Any:
        """Return the member of a name or of a reference."""
        self._outside()  # warns of clashes
        if name in self.builtins:
            return _imported(self.builtins[name], own=True)
        if name not in self:
            raise unknown_name(self.noun, name, self)
        try:
            self.check(name)
            result = _imported(self[name])
            if self._contract:
                _imported(self._contract, own=True)(name, result)
        except UserError as error:
            origin = f" of {self.origin(name)}" if self.origin(name) else ""
            raise UserError(f"{self.noun} {name!r}{origin}: {error}") from error
        return result

    def check(self, name: str) -> None:
        """Check that a reference may be imported: its module is named or allowed by the user, or it is an entry point."""
        if is_reference(name) and name not in {point.value for point in self._outside().values()}:
            check_modules(name)

    def own_name(self, name: str) -> str:
        """Return the name that the member of a reference gives itself, by which it is known from then on."""
        result = self.load(name)
        if not is_reference(name):
            return name
        if result.name not in self:
            self._adopted[result.name] = name
        elif self.load(result.name) is not result:
            raise UserError(f"{self.noun} {name!r}: there is another {self.noun} named {result.name!r}; rename it")
        return str(result.name)

    def load_all(self, *, own: bool = True) -> dict[str, Any]:
        """Return every member by name, this package's ``own`` too; one from outside that fails is left out with a line."""
        results = {}
        for name in self if own else self._outside():
            try:
                results[name] = self.load(name)
            except UserError as error:
                if name in self.builtins:
                    raise
                _warn(f"left out: {error}")
        return results

    def origin(self, name: str) -> str:
        """Return the distribution and version that a member is from; empty for this package's own and for references."""
        point = None if name in self.builtins else self._outside().get(name)
        return f"{point.dist.name} {point.dist.version}" if point is not None and point.dist is not None else ""

    def _outside(self) -> Mapping[str, metadata.EntryPoint]:
        entry_points: dict[str, metadata.EntryPoint] = {}
        for point in _entry_points(self.group, tuple(sys.path)) if self.group else ():
            if point.name in self.builtins or point.name in entry_points:
                owner = "fedpriv" if point.name in self.builtins else _distribution(entry_points[point.name])
                name = f"{self.noun} {point.name!r} of {_distribution(point)}"
                _warn(f"{name} is passed over: {owner} has one of that name")
            else:
                entry_points[point.name] = point
        return entry_points


@lru_cache(maxsize=256)
def _warn(line: str) -> None:
    """Write a warning line, each once."""
    _LOG.warning("warning: %s", line)


def refuse_no_callable(name: str, value: object) -> None:
    """Check what another package calls a function."""
    if not callable(value):
        raise UserError(f"expected a function, got {value!r}")


def is_reference(name: str) -> bool:
    """True if a name is written as ``package.module:NAME``.

    >>> is_reference("mine.methods:FEDMINE"), is_reference("fedavg"), is_reference("noise:scale=1")
    (True, False, False)
    """
    module, colon, attribute = name.partition(":")
    return bool(colon) and all(step.isidentifier() for step in (*module.split("."), *attribute.split(".")))


def split_reference(text: str, *known: Registry) -> tuple[str, str]:
    """Return NAME and REST of ``NAME[:REST]``; NAME may be a reference whose module no ``known`` registry has as a name.

    >>> split_reference("noise:scale=1"), split_reference("mine.defenses:Blur:radius=2")
    (('noise', 'scale=1'), ('mine.defenses:Blur', 'radius=2'))
    """
    name, _, rest = text.partition(":")
    second, _, later = rest.partition(":")
    if is_reference(f"{name}:{second}") and not any(name in table.builtins for table in known):
        return f"{name}:{second}", later
    return name, rest


def _distribution(point: metadata.EntryPoint) -> str:
    return "" if point.dist is None else point.dist.name


@lru_cache(maxsize=64)
def _entry_points(group: str, path: tuple[str, ...]) -> tuple[metadata.EntryPoint, ...]:
    """Return the entry points of a group, by distribution; ``path`` is there to look again when ``sys.path`` changes."""
    return tuple(sorted(metadata.entry_points(group=group), key=lambda point: (_distribution(point), point.name)))


def _imported(target: str, *, own: bool = False) -> Any:
    module, _, attribute = target.partition(":")
    try:
        value: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # another package may fail in any way
        if own:
            raise
        line = " ".join(str(error).split())
        absent = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        hint = _looked_in(module) if absent else ""
        raise UserError(f"module {module!r} cannot be imported: {type(error).__name__}: {line}{hint}") from error
    for step in attribute.split("."):
        if not hasattr(value, step):
            raise UserError(f"module {module!r} has no {attribute!r}")
        value = getattr(value, step)
    return value


def _looked_in(module: str) -> str:
    """Return where a module that was not found was looked for, and what would be right."""
    if module.endswith(".py"):
        return f"; name the module without .py: {module.removesuffix('.py')}:NAME"
    own = dict.fromkeys(str(Path(entry).absolute()) for entry in sys.path)
    homes = (sys.prefix, sys.base_prefix)
    folders = [each for each in own if Path(each).is_dir() and not any(map(Path(each).is_relative_to, homes))]
    return f"; looked in {', '.join([*folders, 'the installed packages'])}; PYTHONPATH=FOLDER adds a folder"


VARIABLE = "FEDPRIV_ALLOW_CODE"  # environment variable of child processes: modules with commas between
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
        if is_reference(name):
            module = shown(name.partition(":")[0])
            raise UserError(f"allow_code={shown(name)}: expected a module alone: allow_code={module}")
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
