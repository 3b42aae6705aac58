"""The words of reports and of the command line, from ``glossary.toml``: for ``fedpriv explain``, pages and suggestions."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import NamedTuple

from fedpriv.util.foreign import toml_table


class Word(NamedTuple):
    """An entry: the word and its other spellings, its meaning, and the kind of upload that it names as a target."""

    names: tuple[str, ...]
    text: str
    target: str = ""


@cache
def words() -> tuple[Word, ...]:
    """Return the entries of the glossary."""
    entries = toml_table(resources.files("fedpriv.util").joinpath("glossary.toml").read_text("utf-8"))["word"]
    return tuple(Word(tuple(entry["names"]), entry["text"], entry.get("target", "")) for entry in entries)


def find_word(text: str) -> Word | None:
    """Return the entry of a word, however its letters, hyphens and plural are written; None where there is none.

    >>> find_word("ssim").names[0], find_word("White_box").names[0], find_word("gradients").target
    ('SSIM', 'white-box', 'model')
    """
    by_key = {_key(name): word for word in words() for name in word.names}
    return by_key.get(_key(text)) or by_key.get(_key(text).removesuffix("s"))


def _key(text: str) -> str:
    return "".join(c for c in text.lower() if c.isalnum() or c == "%")
