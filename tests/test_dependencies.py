"""Every declared dependency is imported somewhere in the package, and every import is declared."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import fedpriv

HOME = Path(fedpriv.__file__).parent
PROJECT = Path(__file__).parents[1] / "pyproject.toml"

IMPORTED_AS = {
    "scikit-learn": "sklearn",
    "pillow": "PIL",
    "rich-click": "rich_click",
    "annotated-types": "annotated_types",
}
"""Distribution -> the name that it is imported by, where that is another."""

WITHOUT_IMPORT = {"perceptual": "extras of torchmetrics, which imports them itself"}
"""Extras of the user's that add nothing to import -> why."""


WHO_LOADS = {"pytest": "loads the module that imports it"}
"""Packages that need no declaration -> why."""


def declared(requirements):
    names = [re.match(r"[A-Za-z0-9._-]+", one)[0].lower() for one in requirements]
    return {IMPORTED_AS.get(name, name) for name in names}


def imported(*, lazily):
    """Return the top names of other packages that modules import; with ``lazily`` those in functions too."""
    found = set()
    for path in HOME.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree) if lazily else tree.body:
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(str(node.module).partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"fedpriv", *WHO_LOADS}


def test_every_declared_dependency_is_used_and_every_used_one_declared():
    project = tomllib.loads(PROJECT.read_text())["project"]
    required = declared(project["dependencies"])
    extras = {
        name: declared(own)
        for name, own in project["optional-dependencies"].items()
        if name not in ("test", "dev", "docs")
    }
    optional = set().union(*(own for name, own in extras.items() if name not in WITHOUT_IMPORT))
    assert imported(lazily=True) - required - optional == set()  # used but not declared
    assert (required | optional) - imported(lazily=True) == set()  # declared but not used
    assert imported(lazily=False) & (optional - required) == set()  # what may be missing is imported where it is needed
    assert set(WITHOUT_IMPORT) <= set(extras)
