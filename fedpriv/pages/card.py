"""The knowledge card in words: one spelling wherever a person reads it, the one that ``--knowledge`` takes."""

from __future__ import annotations

from collections.abc import Sequence

from fedpriv.scoring.records import ThreatModel
from fedpriv.util.config import plain


def card_words(knowledge: ThreatModel) -> dict[str, str]:
    """Return every grant with its value as flags spell it; empty ones are left out.

    >>> card_words(ThreatModel(labels="inferred"))["labels"], card_words(ThreatModel())["batch"]
    ('inferred', 'known')
    """
    said = {True: "known", False: "none"}
    grants = plain(knowledge).items()
    return {key: said[value] if isinstance(value, bool) else str(value) for key, value in grants if value != ""}


def differing(cards: Sequence[ThreatModel]) -> list[str]:
    """Return for each card, in words, the grants in which the cards differ; empty texts where they are equal."""
    lines = [card_words(card) for card in cards]
    names = [name for name in lines[0] if len({words.get(name) for words in lines}) > 1] if lines else []
    return [", ".join(f"{name.replace('_', ' ')} {words.get(name, '-')}" for name in names) for words in lines]
