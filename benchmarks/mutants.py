"""Mutants of a room: how many faults of one line do its tests let pass?

    python benchmarks/mutants.py defenses --mutants 20 --seed 0

Mutants are drawn uniformly from the changes of :func:`mutations` in the room's files, and tried one by one, each in a
process forked after libraries were imported: the mutated source takes the module's place when a test imports it. The
tests of a mutant are the files of ``--tests`` that import its module or name it, nearest first, as many as pass unmutated
in ``--seconds``; it is killed by the first failure, or where tests take five times as long. Prints the survivors, and
exits with 1 where more than ``--most`` survive. ``--log`` is a file of JSON lines; what stands there is not tried again.
"""

from __future__ import annotations

import argparse
import ast
import copy
import difflib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

HOME = Path(__file__).resolve().parents[1]
LIBRARIES = (
    "torch",
    "torchvision",
    "torchmetrics",
    "kornia",
    "sklearn",
    "scipy.stats",
    "scipy.optimize",
    "matplotlib.pyplot",
)
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    **{
        ast.Add: ast.Sub,
        ast.Sub: ast.Add,
        ast.Mult: ast.Div,
        ast.Div: ast.Mult,
        ast.FloorDiv: ast.Mult,
        ast.Pow: ast.Mult,
    },
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Mod: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.UAdd: ast.USub},
}
NAMES = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "floor": "ceil",
    "ceil": "floor",
    "sum": "mean",
    "mean": "sum",
}
NAMES |= {"argmin": "argmax", "argmax": "argmin", "zeros_like": "ones_like", "ones_like": "zeros_like", "sin": "cos"}


@dataclass(frozen=True)
class Mutant:
    """One change of one file: its path in the repository, and the whole source before and after."""

    path: Path
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
        return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


# ---------------------------------------------------------------- mutants


def mutations(tree: ast.Module) -> Iterator[ast.Module]:
    """Yield copies of a tree with one change each: an operator, a number, a truth, a name, a keyword, a condition."""
    skipped = {child for node in ast.walk(tree) for part in _not_run(node) for child in ast.walk(part)}
    for place, node in enumerate(ast.walk(tree)):
        if node in skipped:
            continue
        for number in range(_changes(node)):
            changed = copy.deepcopy(tree)
            target = next(one for index, one in enumerate(ast.walk(changed)) if index == place)
            _change(target, number)
            yield changed


def _not_run(node: ast.AST) -> list[ast.AST]:
    """Return the parts of a node that mutants leave alone: types, decorators, docstrings, messages."""
    parts: list[Any] = [getattr(node, "annotation", None), getattr(node, "returns", None)]
    parts += getattr(node, "decorator_list", [])
    parts += [node.value] if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) else []
    parts += [node] if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Assert) else []
    return [part for part in parts if part is not None]


def _changes(node: ast.AST) -> int:
    """Return the number of changes of one node."""
    if isinstance(node, ast.Compare):
        return sum(type(op) in SWAPS for op in node.ops[:1])
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign):
        return int(type(node.op) in SWAPS)
    if isinstance(node, ast.UnaryOp):
        return int(isinstance(node.op, ast.Not | ast.USub))
    if isinstance(node, ast.Constant):
        return int(isinstance(node.value, bool | int | float))
    if isinstance(node, ast.Name | ast.Attribute):
        return int(isinstance(node.ctx, ast.Load) and (node.id if isinstance(node, ast.Name) else node.attr) in NAMES)
    if isinstance(node, ast.Call):
        return len(node.keywords)
    return int(isinstance(node, ast.If | ast.IfExp)) + int(isinstance(node, ast.Return) and node.value is not None)


def _change(node: Any, number: int) -> None:
    if isinstance(node, ast.Compare):
        node.ops[0] = SWAPS[type(node.ops[0])]()  # type: ignore[call-overload]
    elif isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign):
        node.op = SWAPS[type(node.op)]()  # type: ignore[assignment]
    elif isinstance(node, ast.UnaryOp):
        node.op = ast.UAdd() if isinstance(node.op, ast.USub) else ast.Not()
        if isinstance(node.op, ast.Not):
            node.operand = ast.UnaryOp(ast.Not(), node.operand)
    elif isinstance(node, ast.Constant):
        node.value = (not node.value) if isinstance(node.value, bool) else node.value + 1
    elif isinstance(node, ast.Name):
        node.id = NAMES[node.id]
    elif isinstance(node, ast.Attribute):
        node.attr = NAMES[node.attr]
    elif isinstance(node, ast.Call):
        del node.keywords[number]
    elif isinstance(node, ast.If | ast.IfExp):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Return):
        node.value = ast.Constant(None)


def draw(room: str, number: int, seed: int) -> list[Mutant]:
    """Return mutants drawn uniformly from those of all files of a room."""
    sources = [
        (path.relative_to(HOME), path.read_text("utf-8")) for path in sorted((HOME / "fedpriv" / room).rglob("*.py"))
    ]
    found = []
    for path, text in sources:
        before = ast.unparse(ast.parse(text))
        after = {ast.unparse(ast.fix_missing_locations(tree)) for tree in mutations(ast.parse(text))}
        found += [Mutant(path, before, one) for one in sorted(after - {before})]
    print(f"{number} of {len(found)} mutants of {len(sources)} files, seed {seed}", flush=True)
    return random.Random(seed).sample(found, min(number, len(found)))


# ---------------------------------------------------------------- trials


class Swap(importlib.abc.MetaPathFinder, importlib.machinery.SourceFileLoader):
    """Gives a module its mutated source when it is imported."""

    def __init__(self, mutant: Mutant) -> None:
        super().__init__(mutant.module, str(HOME / mutant.path))
        self.source = mutant.after

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        """Return a specification for the mutated module alone."""
        package = self.name.removesuffix(".__init__")
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if name == package else None

    def is_package(self, name: str) -> bool:
        """True for a mutated ``__init__``."""
        return self.path.endswith("__init__.py")

    def exec_module(self, module: ModuleType) -> None:
        """Run the mutated source as the module."""
        exec(compile(self.source, self.path, "exec"), vars(module))

    def get_filename(self, name: str | None = None) -> str:  # type: ignore[override]
        """Return the path of the file that is not read."""
        return self.path


def ended(files: Sequence[Path], limit: float, mutant: Mutant | None = None) -> str:
    """Return what tests say in a process of their own: passed, failed, or timed out."""

    def child() -> None:
        import pytest

        if mutant is not None:
            sys.meta_path.insert(0, Swap(mutant))
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        with tempfile.TemporaryDirectory() as folder:
            code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", f"--basetemp={folder}/t", *map(str, files)])
        os._exit(int(code))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(limit)
    if process.is_alive():
        process.kill()
        process.join()
        return "timed out"
    return "passed" if process.exitcode == 0 else "failed"


def nearest(mutant: Mutant, tests: Sequence[Path], texts: dict[Path, str]) -> list[Path]:
    """Return the test files that name a module or its public names, those that name most of them first."""
    names = [node.name for node in ast.parse(mutant.before).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    package = mutant.module.removesuffix(".__init__")
    told = {}
    for path in tests:
        text = texts[path]
        told[path] = 3 * (package in text) + (package.rpartition(".")[2] in text) + sum(name in text for name in names)
    return sorted((path for path in tests if told[path]), key=lambda path: (-told[path], str(path))) or list(tests)


def main() -> int:
    """Try mutants, print the survivors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("room", help="folder in fedpriv, such as attacks, methods or defenses")
    parser.add_argument("--mutants", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tests", nargs="+", type=Path, help="folders or files (default: tests/ROOM)")
    parser.add_argument("--seconds", type=float, default=30, help="of tests for one mutant")
    parser.add_argument("--most", type=float, default=0.2, help="largest share that may survive")
    parser.add_argument("--log", type=Path)
    options = parser.parse_args()
    for name in (*LIBRARIES, "pydantic", "pytest"):
        importlib.import_module(name)
    places = options.tests or [HOME / "tests" / options.room]
    tests = sorted(file for place in places for file in ([place] if place.is_file() else place.rglob("test_*.py")))
    texts = {path: path.read_text("utf-8") for path in tests}
    took: dict[Path, float] = {}
    known: dict[tuple[str, str], str] = {}
    if options.log and options.log.exists():
        lines = [json.loads(line) for line in options.log.read_text("utf-8").splitlines()]
        known = {(line["file"], line["diff"]): line["outcome"] for line in lines}
    outcomes: Counter[str] = Counter()
    for mutant in draw(options.room, options.mutants, options.seed):
        key = (str(mutant.path), mutant.diff)
        outcome = known.get(key) or _tried(mutant, nearest(mutant, tests, texts), took, options.seconds)
        outcomes[outcome] += 1
        if options.log and key not in known:
            with options.log.open("a", encoding="utf-8") as log:
                print(json.dumps({"file": key[0], "diff": key[1], "outcome": outcome}), file=log)
        print(f"{outcome}: {mutant.path}" + (f"\n{mutant.diff}" if outcome == "survived" else ""), flush=True)
    print("\n" + ", ".join(f"{number} {outcome}" for outcome, number in outcomes.items()))
    return int(outcomes["survived"] > options.most * outcomes.total())


def _tried(mutant: Mutant, files: Sequence[Path], took: dict[Path, float], seconds: float) -> str:
    """Return what becomes of a mutant; ``took`` keeps the seconds of test files that pass unmutated."""
    chosen: list[Path] = []
    for path in files:
        if path not in took:
            began = time.monotonic()
            took[path] = time.monotonic() - began if ended([path], 10 * seconds) == "passed" else float("inf")
        if sum(took[one] for one in chosen) + took[path] <= seconds:
            chosen.append(path)
        if sum(took[one] for one in chosen) > 0.8 * seconds:
            break
    if not chosen:
        return "no test"
    outcome = ended(chosen, 5 * sum(took[one] for one in chosen) + 10, mutant)
    return "survived" if outcome == "passed" else "killed" if outcome == "failed" else outcome


if __name__ == "__main__":
    sys.exit(main())
