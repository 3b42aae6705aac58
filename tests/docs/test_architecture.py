"""The page on architecture names what is there, and its picture is drawn from the code."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
STEP = re.compile(r"^\| (\d+) \| `([a-z_.]+):(\w+)` \|", re.MULTILINE)


def test_every_step_of_the_walk_is_there_and_there_are_at_most_ten():
    steps = STEP.findall((DOCS / "architecture.md").read_text())
    assert [int(number) for number, _, _ in steps] == list(range(1, len(steps) + 1))
    assert 6 < len(steps) <= 10
    missing = [f"{module}:{name}" for _, module, name in steps if not hasattr(importlib.import_module(module), name)]
    assert missing == []


def test_every_room_has_its_rule():
    rooms = {path.parent.name for path in (DOCS.parent / "fedpriv").glob("*/__init__.py")}
    rows = [line for line in (DOCS / "architecture.md").read_text().splitlines() if line.startswith("| `")]
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert rooms <= told


def test_the_picture_is_of_this_code():
    done = subprocess.run([sys.executable, DOCS / "draw_rooms.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stderr.strip()}; draw it again: python docs/draw_rooms.py"


def test_every_file_that_a_page_names_is_there():
    """Paths of tests and of code, as pages write them; what stands in a made-up package is not meant."""
    named = re.compile(r"`((?:tests|fedpriv|benchmarks)/[\w/]+\.py)")
    pages = [*DOCS.rglob("*.md"), DOCS.parent / "README.md"]
    gone = {
        f"{page.name}: {path}"
        for page in pages
        for path in named.findall(page.read_text())
        if not (DOCS.parent / path).exists()
    }
    assert gone == set()
