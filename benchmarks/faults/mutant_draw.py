"""Mutants, drawn uniformly from those that mutmut's operators make of some files."""

from __future__ import annotations

import ast
import contextlib
import difflib
import random
import re
from dataclasses import dataclass
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

HOME = Path(__file__).resolve().parents[2]

LEFT_ALONE = ("storage.py", "tensor_files.py", "schema.py")
"""Of the scoring room, what reads and writes files: the mutations of stored files are another program's."""

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


def again(file: str, line: int, diff: str) -> Mutant | None:
    """Make a mutant of a log once more; None where the changed lines are not there any more."""
    before = (HOME / file).read_text(encoding="utf-8")
    old, new = ("".join(f"{one[1:]}\n" for one in diff.splitlines()[1:] if one[0] == sign) for sign in "-+")
    places = [found.start() for found in re.finditer(rf"^{re.escape(old)}", before, re.MULTILINE)]
    if not places:
        return None
    start = min(places, key=lambda place: abs(before.count("\n", 0, place) - line))
    after = before[:start] + new + before[start + len(old) :]
    return Mutant(Path(file), 0, before.count("\n", 0, start) + 1, before, after)


def draw(number: int, seed: int) -> list[Mutant]:
    """Draw mutants uniformly from those of all files; fewer where there are not as many."""
    sites, paths = [], files()
    for path in paths:
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
    print(f"{len(found)} of {len(sites)} mutants of {len(paths)} files, seed {seed}", flush=True)
    return found


def _differs(before: str, after: str) -> bool:
    with contextlib.suppress(SyntaxError):
        return ast.dump(ast.parse(before)) != ast.dump(ast.parse(after))
    return False
