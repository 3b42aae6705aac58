"""Every paper's method has its paper's BibTeX entry, whose authors and year are those that the method names."""

import re

import pytest
from command_line import call

import fedpriv
from fedpriv.methods import METHODS
from fedpriv.methods.references import references

WITHOUT = {"local"}
"""Methods that are no paper's."""

FIELD = re.compile(r"^  (\w+) *= \{(.*)\},$")


def fields(entry):
    lines = entry.splitlines()[1:-1]
    assert all(FIELD.match(line) for line in lines), entry
    return dict(FIELD.match(line).groups() for line in lines)


def test_every_method_of_a_paper_has_an_entry_and_no_entry_is_of_nothing():
    assert references().keys() == set(METHODS.builtins) - WITHOUT


@pytest.mark.parametrize("name", sorted(set(METHODS.builtins) - WITHOUT))
def test_an_entry_is_of_the_paper_that_the_method_names(name):
    entry, source = references()[name], METHODS.load(name).source
    found = fields(entry)
    assert re.match(r"@(inproceedings|article|misc|unpublished)\{[a-z0-9-]+,$", entry.splitlines()[0])
    assert {"author", "title", "keywords"} <= found.keys()
    family = re.search(r"([A-Z]\w+) (?:et al\.|and )", source)[1]
    assert found["author"].startswith(f"{family},"), source
    assert entry.count("{") == entry.count("}")
    years = re.findall(r"\d{4}", source)
    # Accepted at a workshop of 2019 and on arXiv in 2020; online in 2021 and in an issue of 2023.
    apart = {"lg-fedavg": 1, "ds-fl": 2}.get(name, 0)
    assert not years or abs(int(years[0]) - int(found["year"])) == apart


def test_the_list_prints_each_entry_once_and_names_what_has_none(capsys):
    code, out, _ = call(capsys, "list", "methods", "--bibtex")
    assert code == 0
    keys = re.findall(r"^@\w+\{(.+),$", out, re.M)
    assert len(keys) == len(set(keys)) == len(set(references().values()))
    assert "% local: no federation" in out
    assert out.strip() == fedpriv.catalogue("methods").bibtex()
