"""The papers behind the methods, as BibTeX: ``references.bib``, whose entries name their methods as ``keywords``."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

_ENTRY = re.compile(r"^@\w+\{.*?^\}$", re.MULTILINE | re.DOTALL)
_KEYWORDS = re.compile(r"^ *keywords *= *\{([^}]*)\},$", re.MULTILINE)


@cache
def references() -> dict[str, str]:
    """Return the BibTeX entry of the paper behind each method, by the method's name; some have none.

    >>> references()["fedproto"].splitlines()[0]
    '@inproceedings{tan2022fedproto,'
    """
    text = resources.files(__package__).joinpath("references.bib").read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for entry in _ENTRY.findall(text):
        for keywords in _KEYWORDS.findall(entry):
            found |= dict.fromkeys(re.split(r", *", keywords), entry)
    return found
