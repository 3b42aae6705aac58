"""Mutants, drawn uniformly from those that mutmut's operators make of some files."""

from __future__ import annotations

import ast
import contextlib
import difflib
import random
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

HOME = Path(__file__).resolve().parents[2]

LEFT_ALONE = ("storage.py", "tensor_files.py", "schema.py")
"""Of the scoring room, what reads and writes files: the mutations of stored files are another program's."""

MOVED = 12
"""Lines by which a mutant of a log may have moved since."""

EVIDENCE = ("grants.py", "server_view.py", "guesses.py")
"""Of the evidence room, what decides what an attacker and a guess are given."""


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
        """Note the mutants of a node."""
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


def draw(number: int, seed: int, at: Mapping[Path, Collection[int]] | None = None) -> list[Mutant]:
    """Draw mutants uniformly from those of all files, or of lines near some; fewer where there are not as many."""
    sites, paths = [], [path for path in files() if at is None or path in at]
    for path in paths:
        before = (HOME / path).read_text(encoding="utf-8")
        wrapper, visitor = MetadataWrapper(cst.parse_module(before)), Sites()
        wrapper.visit(visitor)
        for place, site in enumerate(visitor.found):
            if at is None or any(abs(site[2] - line) <= MOVED for line in at[path]):
                sites.append((path, wrapper.module, before, place, site))
    random.Random(seed).shuffle(sites)
    found: list[Mutant] = []
    for path, module, before, place, (node, changed, line) in sites:
        if len(found) == number:
            break
        after = module.deep_replace(node, changed).code
        if _differs(before, after):
            found.append(Mutant(path, place, line, before, after))
    print(f"{len(found)} of {len(sites)} mutants of {len(paths)} files, seed {seed}", flush=True)
    return found


def _differs(before: str, after: str) -> bool:
    with contextlib.suppress(SyntaxError):
        return ast.dump(ast.parse(before)) != ast.dump(ast.parse(after))
    return False
