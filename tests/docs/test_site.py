"""Pages find each other, notebooks are stored as they were run, and run.

That the site builds without a warning is tried by ``.ci/run``.
"""

import json
import re
import sys
import tomllib
import types
from pathlib import Path

import pytest

import fedpriv
from fedpriv.attacks import ATTACKS
from fedpriv.methods import METHODS

HOME = Path(__file__).parents[2]
DOCS = HOME / "docs"
NOTEBOOKS = sorted((DOCS / "tutorials").glob("*.ipynb"))
LINK = re.compile(r"\]\((?!https?:|#)([^)\s#]+)(?:#[^)\s]*)?\)")


def pages():
    return [*HOME.glob("*.md"), *DOCS.rglob("*.md"), *(HOME / ".github").rglob("*.md")]


def cells(notebook, kind):
    return [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == kind]


def prose(page):
    if page.suffix == ".ipynb":
        return "\n".join("".join(cell["source"]) for cell in cells(page, "markdown"))
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)


def test_every_link_to_a_file_finds_it():
    lost = [
        f"{page.relative_to(HOME)}: {place}"
        for page in [*pages(), *NOTEBOOKS]
        for place in LINK.findall(prose(page))
        if not (page.parent / place).exists()
    ]
    assert lost == []


def test_what_is_cited_is_this_version():
    version = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {version}\n" in (HOME / "CITATION.cff").read_text()
    assert fedpriv.__version__ == version


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_with_what_it_showed_and_nothing_of_a_machine(notebook):
    text = notebook.read_text()
    assert len(text) < 300_000
    assert not re.search(r"/tmp/|/home/|/root/|site-packages|Traceback", text)
    for number, cell in enumerate(cells(notebook, "code"), 1):
        assert cell["execution_count"] == number, "run: python docs/run_notebooks.py"
        assert all(output["output_type"] != "error" for output in cell["outputs"])
        assert cell["metadata"] == {}


def printed(notebook):
    return "".join(
        "".join(output["text"])
        for cell in cells(notebook, "code")
        for output in cell["outputs"]
        if output["output_type"] == "stream"
    )


def said(text):
    """Return the beginnings of lines: figures, their order, and reasons that hang on them differ a little among machines."""
    return sorted(re.sub(r"[-+]?\d[\d.,]*", "#", line)[:40] for line in text.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_says_what_it_is_stored_with(notebook, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType(f"notebook_{notebook.stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    try:
        for number, cell in enumerate(cells(notebook, "code")):
            exec(compile("".join(cell["source"]), f"{notebook.name}, code cell {number}", "exec"), vars(module))
    finally:
        ATTACKS._adopted.clear()
        METHODS._adopted.clear()
    assert said(capsys.readouterr().out) == said(printed(notebook))
    assert not list(tmp_path.iterdir())
