"""docs/api.md is what the docstrings of the public names say."""

import importlib.util
from pathlib import Path

import fedpriv

MAKER = Path(__file__).parents[2] / "docs" / "make_api.py"


def test_the_page_of_public_names_is_up_to_date():
    spec = importlib.util.spec_from_file_location("make_api", MAKER)
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    made = maker.page()
    assert maker.PAGE.read_text() == made, "run: python docs/make_api.py"
    for name in fedpriv.__all__:
        assert f"### fedpriv.{name}\n" in made
