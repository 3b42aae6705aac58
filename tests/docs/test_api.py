"""docs/api.md and docs/contracts.md are what docstrings say."""

import importlib.util
from pathlib import Path

import pytest

import fedpriv

MAKER = Path(__file__).parents[2] / "docs" / "make_api.py"


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("make_api", MAKER)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_the_page_of_public_names_is_up_to_date(maker):
    made = maker.page()
    assert maker.PAGE.read_text() == made, "run: python docs/make_api.py"
    for name in fedpriv.__all__:
        assert f"### fedpriv.{name}\n" in made


def test_the_page_of_contracts_is_up_to_date(maker):
    made = maker.contracts()
    assert maker.CONTRACTS_PAGE.read_text() == made, "run: python docs/make_api.py"
    for modules in maker.CONTRACTS.values():
        for module, names in modules.items():
            for name in names:
                assert f"### {name}\n\n```python\n# {module}\n" in made
