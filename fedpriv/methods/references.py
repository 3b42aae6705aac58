"""The papers behind the methods, as BibTeX: ``references.bib``, whose entries name their methods as ``keywords``."""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def references() -> dict[str, str]:
    """Return the BibTeX entry of the paper behind each method, by the method's name; some have none.

    >>> references()["fedproto"].splitlines()[0]
    '@inproceedings{tan2022fedproto,'
    """
    text = resources.files("fedpriv.methods").joinpath("references.bib").read_text(encoding="utf-8")
    texts: dict[str, str] = {}
    for entry in text.strip().split("\n\n"):
        for line in entry.splitlines():
            field, _, value = line.partition("=")
            if field.strip() == "keywords":
                texts |= dict.fromkeys(value.strip(" {},").split(", "), entry)
    return texts
