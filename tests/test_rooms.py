"""The walls of the house: who may import whom, that nothing private is reached for, and how large a room may grow."""

import ast
from functools import cache
from pathlib import Path

import pytest

import fedpriv

HOME = Path(fedpriv.__file__).parent

MAY_IMPORT: dict[str, set[str]] = {
    "util": set(),
    "claims": {"util"},
    "algebra": {"util"},
    "datasets": {"util", "algebra"},
    "models": {"util", "algebra"},
    "uploads": {"util", "algebra", "models"},
    "federation": {"util", "algebra", "datasets", "models", "uploads"},
    "methods": {"util", "algebra", "datasets", "models", "uploads", "federation"},
    "defenses": {"util", "algebra", "datasets", "models", "uploads", "federation"},
    "attacks": {"util", "algebra", "datasets", "models", "uploads"},
}
BELOW = {*MAY_IMPORT["attacks"], "federation", "attacks"}
MAY_IMPORT["integrations"] = {*MAY_IMPORT["federation"], "federation"}
MAY_IMPORT["sources"] = BELOW | {"methods", "defenses", "integrations"}
MAY_IMPORT["eval"] = BELOW | {"sources"}
MAY_IMPORT["dp"] = {*MAY_IMPORT["eval"], "eval", "defenses"}
MAY_IMPORT["reports"] = {*MAY_IMPORT["dp"], "dp", "claims"} - {"defenses"}
MAY_IMPORT["pipeline"] = {*MAY_IMPORT["reports"], "reports"}
MAY_IMPORT["study"] = {*MAY_IMPORT["pipeline"], "pipeline", "methods", "defenses", "integrations"}
MAY_IMPORT["api"] = {*MAY_IMPORT["study"], "study"}
MAY_IMPORT["cli"] = {*MAY_IMPORT["api"], "api"}
"""Rooms, each with the rooms that its modules may import besides its own. Imports within functions and for type checkers
count like any other."""

READS_TEXT: dict[str, str] = {
    "study.written": "what a user writes on the command line: A:x=1+B:y=2",
    "util.escape": "characters that mean something in Markdown",
    "util.compute": "sizes in what torch says when memory runs out",
}
"""Ends of modules that may import ``re`` -> the foreign text that they read. What this package writes is never read back
as text: it is kept as data, and sentences are made from that."""

BUDGET: dict[str, int] = {
    "util": 2_096,
    "algebra": 442,
    "datasets": 965,
    "models": 786,
    "uploads": 907,
    "integrations": 1_223,
    "dp": 578,
    "federation": 1_995,
    "methods": 2_940,
    "defenses": 1_816,
    "attacks": 9_816,
    "eval": 4_164,
    "claims": 213,
    "reports": 2_512,
    "cli": 1_011,
    "pipeline": 1_700,
    "sources": 3_211,
    "api": 2_352,
    "study": 2_386,
}
"""Room -> most lines of its ``.py`` files together; one that must grow takes from :data:`RESERVE`, with the reason."""

RESERVE = 222
"""Lines that no room has yet."""


def module_name(path: Path) -> str:
    parts = ("fedpriv", *path.relative_to(HOME).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def trees() -> dict[str, ast.Module]:
    return {module_name(path): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(HOME.rglob("*.py"))}


def room(module: str) -> str:
    """Return the folder of a module; nothing for the package itself, which offers what all rooms make."""
    name = (*module.split("."), "")[1]
    return name if name in MAY_IMPORT else ""


def imported(module: str) -> list[tuple[str, str, ast.stmt]]:
    """Return (module, name or nothing) of every import, in functions and under TYPE_CHECKING too."""
    found = []
    for node in ast.walk(trees()[module]):
        if isinstance(node, ast.Import):
            found += [(alias.name, "", node) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: a relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.append((whole, "", node) if whole in trees() else (str(node.module), alias.name, node))
    return found


def ours(module: str) -> set[str]:
    return {name for name, _, _ in imported(module) if room(name) and name.split(".")[0] == "fedpriv"}


def test_tensors_are_written_under_names_of_our_own():
    """A library that is given a path may leave a temporary file beside it, and its errors name no file."""
    writers = {module for module in trees() for _, name, _ in imported(module) if name == "save_file"}
    assert not writers


def test_every_room_is_in_the_table():
    there = {path.name for path in HOME.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert there == set(MAY_IMPORT)


def test_imports_point_one_way():
    wrong = [
        f"{module} imports {other}"
        for module in trees()
        for other in sorted(ours(module))
        if room(module) and room(other) not in {room(module), *MAY_IMPORT[room(module)]}
    ]
    assert wrong == []


def test_pages_read_records_alone():
    """What methods, attacks and defenses say of themselves today is not what they said when a result was made."""
    closed = (
        "fedpriv.methods",
        "fedpriv.attacks",
        "fedpriv.defenses",
        "fedpriv.util.registry",
        "fedpriv.uploads.kinds",
    )
    wrong = [
        f"{module} imports {other}"
        for module in trees()
        if room(module) == "reports"
        for other, _, _ in imported(module)
        if other.startswith(closed)
    ]
    assert wrong == []


def test_no_circle():
    """By depth-first search over all imports; those at the top of modules would fail by themselves, these are hidden."""
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        if module in way:
            circle = (*way[way.index(module) :], module)
            pytest.fail("a circle of imports: " + " -> ".join(circle))
        if module in done:
            return
        for other in sorted(ours(module) & set(trees())):
            if other != module:
                visit(other, (*way, module))
        done.add(module)

    for module in trees():
        visit(module, ())


def test_no_private_name_crosses_a_module():
    wrong = []
    for module, tree in trees().items():
        bound = {}  # local name -> the module of ours that it stands for
        for other, name, node in imported(module):
            if other.split(".")[0] != "fedpriv":
                continue
            if name.startswith("_") and not name.startswith("__"):
                wrong.append(f"{module}:{node.lineno}: {other}.{name}")
            for alias in node.names:
                if not name:
                    bound[alias.asname or alias.name] = other
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
                continue
            if node.value.id in bound and node.attr.startswith("_") and not node.attr.startswith("__"):
                wrong.append(f"{module}:{node.lineno}: {bound[node.value.id]}.{node.attr}")
    assert wrong == []


def test_no_code_reads_prose():
    users = {module for module in trees() for name, _, _ in imported(module) if name in ("re", "regex")}
    assert {module for module in users if not module.endswith(tuple(READS_TEXT))} == set()
    assert {end for end in READS_TEXT if not any(module.endswith(end) for module in users)} == set()


def test_every_room_keeps_its_budget():
    over = {}
    for name, budget in BUDGET.items():
        lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (HOME / name).rglob("*.py"))
        if lines > budget:
            over[name] = f"{lines} lines, {budget} in its budget"
    assert over == {}
    assert set(BUDGET) == set(MAY_IMPORT)


def test_what_benchmarks_import_is_there():
    wrong = []
    for path in sorted((Path(__file__).parents[1] / "benchmarks").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "fedpriv":
                tree = trees().get(str(node.module))
                there = set() if tree is None else set(top_names(tree))
                for alias in node.names:
                    if alias.name not in there and f"{node.module}.{alias.name}" not in trees():
                        wrong.append(f"{path.name}:{node.lineno}: {node.module}.{alias.name}")
    assert wrong == []


def top_names(tree: ast.Module):
    """Yield the names that a module defines or imports at its top."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def test_foreign_input_is_opened_in_one_place():
    readers = {"tomllib": {"fedpriv.util.foreign"}, "csv": {"fedpriv.reports.page"}, "yaml": set()}
    for library, allowed in readers.items():
        users = {module for module in trees() for name, _, _ in imported(module) if name == library}
        assert users == allowed, library
    opening = {
        module
        for module, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and ast.unparse(node) in ("Image.open", "torch.load", "np.loadtxt", "np.fromfile")
    }
    installed = {"fedpriv.datasets.sources"}  # scikit-learn's own digits
    tensors = {"fedpriv.sources.upload_files"}  # torch.load of weights alone
    assert opening == {"fedpriv.datasets.image_files"} | installed | tensors
