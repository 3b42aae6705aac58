"""The leaderboard's page is what its command makes of the entries, and no entry is at fault."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_committed_page_is_what_the_command_makes():
    spec = importlib.util.spec_from_file_location("make_leaderboard", DOCS / "make_leaderboard.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert (DOCS / "leaderboard.md").read_text(encoding="utf-8") == made.page(), "python docs/make_leaderboard.py"
