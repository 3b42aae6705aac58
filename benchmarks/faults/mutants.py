"""Mutants of what makes figures and sentences: how many faults of one line does the suite let pass?

    python benchmarks/faults/mutants.py --mutants 400 --seed 0 --log mutants.jsonl

Mutants are made by mutmut's operators (``pip install mutmut``), of functions, methods, properties and constants alike, and
drawn uniformly. Each is tried in a process of its own, on the tests that execute its line, then on those that execute
anything of its module: libraries are imported once and forked, and the mutated source takes the module's place when a test
imports it. Types, decorators, docstrings, and calls of ``len`` and ``isinstance`` are left alone.

Exits with 1 where more than a tenth survives.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import hashlib
import importlib.util
import json
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

HOME = Path(__file__).resolve().parents[2]

LEFT_ALONE = ("storage.py", "tensor_files.py", "schema.py")
"""Of the scoring room, what reads and writes files: the mutations of stored files are another program's."""

EVIDENCE = ("grants.py", "server_view.py", "guesses.py")
"""Of the evidence room, what decides what an attacker and a guess are given."""

PAGES = ("claims", "defense_answers", "findings", "frontier", "guarantees", "labels", "score_section", "weighty")
TESTS = ("tests/scoring", "tests/evidence", "tests/test_doctests.py", *(f"tests/pages/test_{name}.py" for name in PAGES))
"""Whole reports, studies and attacks are left out: they take long, and have the figures from here."""

ENOUGH = 10.0
"""Seconds of tests, the quickest, that are tried on a mutant that none of them kills; one test is tried in any case."""

LIBRARIES = ("torch", "torchvision", "torchmetrics", "kornia", "sklearn", "scipy.special", "scipy.optimize", "scipy.stats")
LIBRARIES += ("numpy.testing", "matplotlib.pyplot", "pydantic", "safetensors.torch", "rich", "rich_click", "jinja2", "PIL")
LIBRARIES += ("hypothesis.strategies", "pytest")

SECONDS = 10.0
"""Of processor time that a mutant has beside five times what the tests take."""

BROKEN = 70
"""Exit status of a child in which this program itself failed."""

SURVIVORS = 0.1
"""The largest share that may survive."""


def files() -> list[Path]:
    """Return the mutated files, relative to the repository."""
    scoring = sorted((HOME / "fedpriv" / "scoring").rglob("*.py"))
    found = [path for path in scoring if path.name not in (*LEFT_ALONE, "__init__.py")]
    found += [HOME / "fedpriv" / "evidence" / name for name in EVIDENCE]
    return [path.relative_to(HOME) for path in found]


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Attributes:
        path: of the file.
        number: its place among the mutants of the file.
        line: the first line of what is changed.
        before, after: the whole source.
    """

    path: Path
    number: int
    line: int
    before: str
    after: str

    @property
    def module(self) -> str:
        """Dotted name."""
        return ".".join(self.path.with_suffix("").parts)

    @property
    def diff(self) -> str:
        """Changed lines, and nothing around them."""
        lines = difflib.unified_diff(self.before.splitlines(), self.after.splitlines(), lineterm="", n=0)
        return "\n".join(line for line in lines if not line.startswith(("---", "+++")))


class Sites(cst.CSTVisitor):
    """Collects what the operators make of every node that is no type."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        self.found: list[tuple[cst.CSTNode, cst.CSTNode, int]] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Annotation | cst.Decorator) or _names_a_type(node) or _always_fails(node):
            return False
        line = self.get_metadata(PositionProvider, node).start.line
        for kind, operator in mutation_operators:
            if isinstance(node, kind):
                self.found += [(node, changed, line) for changed in operator(node)]
        return True


def _names_a_type(node: cst.CSTNode) -> bool:
    """Tell aliases of types, such as ``Values = NDArray[np.float64]`` or ``T = TypeVar("T")``."""
    if not isinstance(node, cst.Assign) or not isinstance(name := node.targets[0].target, cst.Name):
        return False
    return re.fullmatch(r"[A-Z]|[A-Z]\w*[a-z]\w*", name.value) is not None


def _always_fails(node: cst.CSTNode) -> bool:
    """Tell calls of which every mutant raises: nobody need be praised for killing them."""
    return isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value in ("len", "isinstance")


def draw(number: int, seed: int) -> list[Mutant]:
    """Draw mutants uniformly from those of all files; fewer where there are not as many."""
    sites = []
    for path in files():
        before = (HOME / path).read_text(encoding="utf-8")
        wrapper, visitor = MetadataWrapper(cst.parse_module(before)), Sites()
        wrapper.visit(visitor)
        sites += [(path, wrapper.module, before, place, site) for place, site in enumerate(visitor.found)]
    random.Random(seed).shuffle(sites)
    found: list[Mutant] = []
    for path, module, before, place, (node, changed, line) in sites:
        if len(found) == number:
            break
        after = module.deep_replace(node, changed).code
        if _differs(before, after):
            found.append(Mutant(path, place, line, before, after))
    print(f"{len(found)} of {len(sites)} mutants of {len(files())} files, seed {seed}", flush=True)
    return found


def _differs(before: str, after: str) -> bool:
    with contextlib.suppress(SyntaxError):
        return ast.dump(ast.parse(before)) != ast.dump(ast.parse(after))
    return False


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
        for path, source in self.sources.items():
            for number, tests in self.lines[path].items():
                if number <= len(source) and word.search(source[number - 1]):
                    found |= tests
        return found

    def beside(self, names: set[str]) -> set[str]:
        """Return the other tests of the same files: what one of them prepares, another may look at."""
        near = {name.partition("::")[0] for name in names}
        return {name for name in self.seconds if name.partition("::")[0] in near} - names


def _statement(mutant: Mutant) -> tuple[str | None, range]:
    """Return the lines of a mutant's statement, and outside of functions the name that it gives a value to."""
    found: tuple[str | None, range] = "", range(mutant.line, mutant.line + 1)
    nodes: list[tuple[ast.AST, bool]] = [(ast.parse(mutant.before), False)]
    while nodes:
        node, inside = nodes.pop()
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.stmt | ast.ExceptHandler):
                continue
            if not child.lineno <= mutant.line <= (child.end_lineno or child.lineno):
                continue
            inside_it = inside or isinstance(child, ast.FunctionDef)
            simple = not hasattr(child, "body")
            lines = range(child.lineno, (child.end_lineno or child.lineno) + 1) if simple else range(mutant.line, mutant.line + 1)
            found = (None if inside_it else _given(child), lines)
            nodes.append((child, inside_it))
    return found


def _given(statement: ast.stmt) -> str:
    targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    return targets[0].id if isinstance(targets[0], ast.Name) else ""


class Follow:
    """A plugin that notes which test executes what."""

    def __init__(self, coverage: object) -> None:
        self.coverage, self.seconds = coverage, {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.seconds[nodeid] = -time.process_time()
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.seconds[nodeid] += time.process_time()


class Only:
    """A plugin that runs some tests alone, file by file, the quickest file first."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds

    def pytest_collection_modifyitems(self, items: list) -> None:
        items[:] = [item for item in items if item.nodeid in self.seconds]
        whole: Counter[str] = Counter()
        for item in items:
            whole[str(item.path)] += self.seconds[item.nodeid]
        items.sort(key=lambda item: whole[str(item.path)])


def run_pytest(arguments: Sequence[str], plugin: object) -> int:
    """Run tests in this process, the same examples each time."""
    import pytest

    os.chdir(HOME)
    return int(pytest.main([*arguments, "-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0"], plugins=[plugin]))


def forked(work: Callable[[], int], seconds: float, output: Path) -> int:
    """Do work in a child with so much processor time, and return its exit status; below 0 where a signal ended it."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = BROKEN
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 2))
            signal.alarm(int(10 * seconds) + 60)  # for one that waits for ever
            own = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
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
        code = run_pytest(tests, plugin)
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
        if name != self.mutant.module:
            return None
        return importlib.util.spec_from_file_location(name, HOME / self.mutant.path, loader=self)

    def get_code(self, fullname: str) -> object:
        return compile(self.mutant.after, str(HOME / self.mutant.path), "exec", dont_inherit=True)


def attempt(mutant: Mutant, tests: Tests, names: set[str], output: Path) -> str:
    """Run tests on a mutant: ``killed``, ``survived``, ``timed out``, or ``no test`` where there are none to run."""
    chosen: dict[str, float] = {}
    for name in sorted(names, key=lambda name: (tests.seconds[name], name)):
        if not chosen or sum(chosen.values()) + tests.seconds[name] < ENOUGH:
            chosen[name] = tests.seconds[name]
    if not chosen:
        return "no test"

    def work() -> int:
        sys.meta_path.insert(0, Instead(mutant))
        return run_pytest(sorted({name.partition("::")[0] for name in chosen}), Only(chosen))

    code = forked(work, SECONDS + 5 * sum(chosen.values()), output)
    if code in (BROKEN, 4):  # 4 is pytest's for what it was wrongly asked
        sys.exit(f"could not try {mutant.path}:{mutant.line}\n{output.read_text()}")
    if code in (-signal.SIGXCPU, -signal.SIGALRM, -signal.SIGKILL):
        return "timed out"
    return "survived" if code == 0 else "killed"


def tried(mutants: Sequence[Mutant], tests: Tests, folder: Path) -> Iterator[tuple[Mutant, str, str]]:
    """Yield each mutant with what became of it, and the first test that failed."""
    for mutant in mutants:
        near = tests.of_line(mutant)
        outcome = attempt(mutant, tests, near, folder / "test.txt")
        if outcome in ("survived", "no test"):
            outcome = attempt(mutant, tests, tests.beside(near), folder / "test.txt").replace("no test", outcome)
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", (folder / "test.txt").read_text(), re.MULTILINE)
        yield mutant, outcome, failed[1] if failed and outcome == "killed" else ""


def table(found: Sequence[tuple[Mutant, str]]) -> str:
    """Return what became of mutants, file by file, in Markdown."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant, outcome in found:
        for name in (str(mutant.path), "all"):
            rows[name][outcome] += 1
    order = [*sorted(rows.keys() - {"all"}), "all"]
    lines = ["| file | mutants | killed | timed out | survived |", "| --- | ---: | ---: | ---: | ---: |"]
    for name in order:
        own = rows[name]
        alive = own["survived"] + own["no test"]
        lines.append(f"| {name} | {own.total()} | {own['killed']} | {own['timed out']} | {alive} |")
    return "\n".join(lines)


def main() -> None:
    """Try mutants, print the table and the survivors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=400, help="how many are drawn")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--log", type=Path, help="JSON lines of what became of each")
    parser.add_argument("--again", type=Path, help="a log: only mutants that survived in it are tried, found by their diff")
    parser.add_argument("--tests", nargs="+", default=list(TESTS), help="what is run")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "fedpriv-mutants", help="for maps")
    given = parser.parse_args()
    mutants = draw(10**9 if given.again else given.mutants, given.seed)
    if given.again:
        logged = [json.loads(line) for line in given.again.read_text().splitlines()]
        alive = {(one["file"], one["diff"].partition("\n")[2]) for one in logged if one["outcome"] != "killed"}
        mutants = [one for one in mutants if (str(one.path), one.diff.partition("\n")[2]) in alive]
    given.folder.mkdir(exist_ok=True)
    for name in LIBRARIES:
        importlib.import_module(name)
    tests, found, begun = mapped(given.folder, given.tests), [], time.perf_counter()
    for mutant, outcome, failed in tried(mutants, tests, given.folder):
        found.append((mutant, outcome))
        if given.log:
            told = {"file": str(mutant.path), "line": mutant.line, "outcome": outcome, "test": failed, "diff": mutant.diff}
            with given.log.open("a", encoding="utf-8") as log:
                print(json.dumps(told | {"seconds": round(time.perf_counter() - begun, 1)}), file=log)
        begun = time.perf_counter()
    print("\n" + table(found))
    alive = [mutant for mutant, outcome in found if outcome in ("survived", "no test")]
    for mutant in alive:
        print(f"\n{mutant.path}\n{mutant.diff}")
    sys.exit(len(alive) > SURVIVORS * len(found))


if __name__ == "__main__":
    main()
