"""Every paper's method has its paper's BibTeX entry, whose first author is the one that the method names."""

import re

from looped import each

from fedpriv.methods import METHODS, references

PAPERS = sorted(set(METHODS.builtins) - {"local"})


@each("name", PAPERS)
def test_an_entry_is_of_the_paper_that_the_method_names(name):
    assert set(references()) == set(PAPERS)
    entry, source = references()[name], METHODS.load(name).source
    family = re.search(r"([A-Z]\w+) (?:et al\.|and )", source)[1]
    assert re.search(rf"^  author *= \{{{family},", entry, re.M), source
    assert entry.count("{") == entry.count("}")
