"""Trials of mutants: which tests execute them, and what these say with the mutant in the module's place.

Tests are collected once, then a process is forked for every mutant. In it the functions of the mutated module are given
their new code, and the new values of constants are put wherever the old ones were imported. What that cannot reach
(defaults, fields of classes) is tried in a process in which nothing of the package was imported yet.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import pytest
from mutant_draw import HOME, Mutant

ENOUGH = 6.0
"""Seconds of tests, the quickest, that are tried on a mutant that none of them kills; one test is tried in any case."""

SECONDS = 5.0
"""Of processor time that a mutant has beside three times what the tests take."""

MEMORY = 16 * 2**30
"""Bytes of addresses that a mutant has."""

COLD = "cold.txt"
"""What tests say that are tried in a process of their own."""

BROKEN = 70
"""Exit status of a child in which this program itself failed."""


@dataclass(frozen=True)
class Tests:
    """Which tests execute which lines.

    Attributes:
        lines: file -> line -> tests.
        seconds: test -> processor time.
    """

    lines: dict[str, dict[int, set[str]]]
    seconds: dict[str, float]

    @cached_property
    def sources(self) -> dict[str, list[str]]:
        """Lines of the files that tests execute."""
        return {path: (HOME / path).read_text(encoding="utf-8").splitlines() for path in self.lines}

    def of_line(self, mutant: Mutant) -> set[str]:
        """Return the tests that execute a mutant's statement, or, of what stands outside functions, whatever names it."""
        name, lines = _statement(mutant)
        if name is None:
            own = self.lines.get(str(mutant.path), {})
            return set().union(*(own.get(line, ()) for line in lines))
        word, found = re.compile(rf"\b{name}\b"), set()
        files = {test.partition("::")[0] for test in self.seconds}
        naming = {file for file in files if word.search((HOME / file).read_text(encoding="utf-8"))}
        found |= {test for test in self.seconds if test.partition("::")[0] in naming}
        for path, source in self.sources.items():
            for number, tests in self.lines[path].items():
                if number <= len(source) and word.search(source[number - 1]):
                    found |= tests
        return found

    def quickest(self, names: set[str]) -> list[str]:
        """Return the quickest tests, file by file, that fit into the time for one mutant."""
        chosen: dict[str, float] = {}
        for name in sorted(names, key=lambda name: (self.seconds[name], name)):
            if not chosen or sum(chosen.values()) + self.seconds[name] < ENOUGH:
                chosen[name] = self.seconds[name]
        whole: Counter[str] = Counter()
        for name, own in chosen.items():
            whole[name.partition("::")[0]] += own
        order = {name: place for place, name in enumerate(self.seconds)}
        return sorted(chosen, key=lambda name: (whole[name.partition("::")[0]], order[name]))

    def beside(self, names: set[str]) -> set[str]:
        """Return the other tests of the same files: what one of them prepares, another may look at."""
        near = {name.partition("::")[0] for name in names}
        return {name for name in self.seconds if name.partition("::")[0] in near} - names


def _statement(mutant: Mutant) -> tuple[str | None, range]:
    """Return the lines of a mutant's statement, and outside of the bodies of functions the name that it gives a value to."""
    found: tuple[str | None, range] = "", range(mutant.line, mutant.line + 1)
    nodes: list[tuple[ast.AST, bool]] = [(ast.parse(mutant.before), False)]
    while nodes:
        node, inside = nodes.pop()
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.stmt | ast.ExceptHandler):
                continue
            if child.lineno <= mutant.line <= (child.end_lineno or child.lineno):
                own = inside or (isinstance(child, ast.FunctionDef) and mutant.line >= child.body[0].lineno)
                last = mutant.line if hasattr(child, "body") else child.end_lineno or child.lineno
                first = mutant.line if hasattr(child, "body") else child.lineno
                found = (None if own else _given(child), range(first, last + 1))
                nodes.append((child, own))
    return found


def _given(statement: ast.stmt | ast.ExceptHandler) -> str:
    """Return what a statement outside of functions gives a value to, by which tests of it are found."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return statement.name
    targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    return targets[0].id if isinstance(targets[0], ast.Name) else ""


class Follow:
    """A plugin that notes which test executes what."""

    def __init__(self, coverage: object) -> None:
        self.coverage, self.seconds = coverage, {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Begin a test."""
        self.seconds[nodeid] = -time.process_time()
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """End a test."""
        self.seconds[nodeid] += time.process_time()


def run_pytest(arguments: Sequence[str], *plugins: object) -> int:
    """Run tests in this process, the same examples each time."""
    os.chdir(HOME)
    own = ["-q", "-s", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    return int(pytest.main([*own, *arguments], plugins=[Examples(), *plugins]))


class Examples:
    """A plugin by which no example that failed once is tried again on another mutant."""

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        """Turn the store of failed examples off."""
        from hypothesis import settings

        settings.register_profile("mutants", settings.get_profile("quick"), database=None)
        settings.load_profile("mutants")


def forked(work: Callable[[], int], seconds: float, output: Path) -> int:
    """Do work in a child with so much processor time, and return its exit status; below 0 where a signal ended it."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = BROKEN
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 2))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            signal.alarm(int(20 * seconds) + 60)  # for one that waits for ever
            own = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(own, 1)
            os.dup2(own, 2)
            code = work()
        except BaseException:
            traceback.print_exc(file=sys.stdout)
        finally:
            sys.stdout.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def mapped(folder: Path, tests: Sequence[str]) -> Tests:
    """Return which test executes what, from a run of all of them; from the last run where nothing changed since."""
    digest = hashlib.sha256(" ".join(tests).encode())
    for path in sorted([*HOME.glob("fedpriv/**/*.py"), *HOME.glob("tests/**/*.py")]):
        digest.update(str(path).encode() + path.read_bytes())
    kept = folder / f"map-{digest.hexdigest()[:16]}.json"

    def follow() -> int:
        import coverage

        cover = coverage.Coverage(data_file=None, source=[str(HOME / "fedpriv")], config_file=False)
        plugin = Follow(cover)
        cover.start()
        code = run_pytest([*tests, "-x"], plugin)
        cover.stop()
        data, lines = cover.get_data(), {}
        for path in data.measured_files():
            by_line = data.contexts_by_lineno(path)
            lines[str(Path(path).relative_to(HOME))] = {n: sorted(filter(None, names)) for n, names in by_line.items()}
        if code == 0:
            kept.with_suffix(".new").write_text(json.dumps({"lines": lines, "seconds": plugin.seconds}))
            kept.with_suffix(".new").rename(kept)
        return code

    if not kept.exists() and (code := forked(follow, 7200, folder / "map.txt")):
        sys.exit(f"the tests fail without any mutant (exit {code}):\n{(folder / 'map.txt').read_text()[-3000:]}")
    found = json.loads(kept.read_text())
    lines = {path: {int(n): set(own) for n, own in table.items()} for path, table in found["lines"].items()}
    return Tests(lines, found["seconds"])


class Instead(SourceFileLoader):
    """Finds and loads other source in a module's place."""

    def __init__(self, mutant: Mutant) -> None:
        super().__init__(mutant.module, str(HOME / mutant.path))
        self.mutant = mutant

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Find the mutated module."""
        if name != self.mutant.module:
            return None
        return importlib.util.spec_from_file_location(name, HOME / self.mutant.path, loader=self)

    def get_code(self, fullname: str) -> CodeType:
        """Return the mutated code."""
        return compile(self.mutant.after, str(HOME / self.mutant.path), "exec", dont_inherit=True)


class Campaign:
    """A plugin that runs no test itself: in the place of the tests' run, mutants are tried on the tests that were collected.

    Args:
        mutants: to be tried.
        tests: which of them execute what.
        folder: for what tests write.
        cold: tries a mutant on tests in a process without the package.
        tell: called with each mutant, what became of it, and the first test that failed.
    """

    def __init__(
        self,
        mutants: Sequence[Mutant],
        tests: Tests,
        folder: Path,
        cold: Callable[[Mutant, Sequence[str], float], int],
        tell: Callable[[Mutant, str, str], None],
    ) -> None:
        self.mutants, self.tests, self.folder, self.cold, self.tell = mutants, tests, folder, cold, tell
        self.cold_output = folder / COLD

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try the mutants."""
        items = {item.nodeid: item for item in session.items}
        for mutant in self.mutants:
            name, _ = _statement(mutant)
            near = self.tests.of_line(mutant)
            outcome, failed = self.attempt(session, items, mutant, near, name)
            if outcome in ("survived", "no test"):
                again, failed = self.attempt(session, items, mutant, self.tests.beside(near), name)
                outcome = outcome if again == "no test" else again
            self.tell(mutant, outcome, failed)
        return True

    def attempt(
        self, session: pytest.Session, items: dict[str, pytest.Item], mutant: Mutant, names: set[str], name: str | None
    ) -> tuple[str, str]:
        """Return what became of a mutant, and the test that failed."""
        chosen = self.tests.quickest(names)
        if not chosen:
            return "no test", ""
        seconds = SECONDS + 3 * sum(self.tests.seconds[one] for one in chosen)
        output = self.folder / "test.txt"
        code = forked(lambda: _tried_warm(session, [items[one] for one in chosen], mutant, name), seconds, output)
        failed = re.search(r"^at (.+)$", output.read_text(errors="replace"), re.MULTILINE)
        shutil.rmtree(self.folder / "tmp", ignore_errors=True)
        (self.folder / "tmp").mkdir()
        if code == BROKEN:
            sys.exit(f"could not try {mutant.path}:{mutant.line}\n{output.read_text()}")
        if code == 0 and name is not None:
            code = self.cold(mutant, chosen, seconds + 30)
            failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", self.cold_output.read_text(), re.MULTILINE)
        if code in (-signal.SIGXCPU, -signal.SIGALRM, -signal.SIGKILL):
            return "timed out", ""
        return ("survived", "") if code == 0 else ("killed", failed[1] if failed else "")


def _tried_warm(session: pytest.Session, items: Sequence[pytest.Item], mutant: Mutant, name: str | None) -> int:
    try:
        put(mutant, constants=name is not None)
    except Exception:  # a mutant that cannot be imported is found out by whoever imports it
        if name is None:
            raise
        return 1
    for place, item in enumerate(items):
        print(f"at {item.nodeid}")
        following = items[place + 1] if place + 1 < len(items) else None
        item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return 1
        print("\r", end="")
    return 0


def put(mutant: Mutant, *, constants: bool) -> None:
    """Give the functions of an imported module their mutated code, and importers of its constants the new values."""
    module = sys.modules.get(mutant.module) or importlib.import_module(mutant.module)
    compiled = compile(mutant.after, str(HOME / mutant.path), "exec", dont_inherit=True)
    if constants:
        changed = {"__name__": mutant.module, "__file__": module.__file__}
        exec(compiled, changed)
        for name, old in list(vars(module).items()):
            new = changed.get(name)
            if isinstance(old, int | float | str | tuple | dict | list | None) and type(old) is not bool and new != old:
                _replace(name, old, new)
        return
    fresh = {code.co_qualname: code for code in _codes(compiled)}
    for function in _functions(module):
        function.__code__ = fresh[function.__code__.co_qualname]


def _replace(name: str, old: object, new: object) -> None:
    for module in list(sys.modules.values()):
        space = getattr(module, "__dict__", {})
        if space.get(name) is old:
            space[name] = new


def _codes(code: CodeType) -> Iterator[CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            yield from _codes(inner)


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """Yield the functions and methods that a module defines, whatever wraps them."""
    spaces = [vars(module)]
    spaces += [
        vars(one) for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__
    ]
    for value in [value for space in spaces for value in list(space.values())]:
        parts = [getattr(value, name, None) for name in ("fget", "func", "__func__")]
        for part in (value, *parts):
            while hasattr(part, "__wrapped__"):
                part = part.__wrapped__
            if isinstance(part, FunctionType) and part.__code__.co_filename == module.__file__:
                yield part


class Only:
    """A plugin that keeps some tests."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = set(names)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Drop the others."""
        items[:] = [item for item in items if item.nodeid in self.names]


def _tried_cold(mutant: Mutant, names: Sequence[str], folder: Path) -> int:
    sys.meta_path.insert(0, Instead(mutant))
    paths = sorted({name.partition("::")[0] for name in names})
    return run_pytest([*paths, "-x", f"--basetemp={folder / 'cold'}"], Only(names))


def cold_server(folder: Path) -> Callable[[Mutant, Sequence[str], float], int]:
    """Return what tries a mutant that is imported in its module's place: by a process that has not imported the package."""
    here, there = multiprocessing.Pipe()
    if os.fork() == 0:
        here.close()
        try:
            while True:
                mutant, names, seconds = there.recv()
                there.send(forked(lambda: _tried_cold(mutant, names, folder), seconds, folder / COLD))  # noqa: B023
        except EOFError:
            os._exit(0)
    there.close()

    def ask(mutant: Mutant, names: Sequence[str], seconds: float) -> int:
        here.send((mutant, names, seconds))
        return int(here.recv())

    return ask
