"""The attacks adapted to a defense, as data, and the sentences about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

NOT_EVALUATED = "not evaluated"
NO_OTHERS = "it fits no others"
"""In place of a reason where a defense has answers on all kinds of upload that it fits."""


@dataclass(frozen=True)
class Answer:
    """One way to attack uploads in spite of a defense."""

    attacks: tuple[str, ...] = ()  # registry names; empty where every attack works as it is
    kinds: tuple[str, ...] | None = None  # of payload; None for all that no other answer of the defense is about
    options: Mapping[str, Any] = field(default_factory=dict)  # values of the attacks' options that adapt them
    where: Mapping[str, Any] = field(default_factory=dict)  # values of the defense's options with which alone it works
    note: str = ""  # why it works, for a reader
    source: str = ""  # paper, where the adapted attack is published

    @property
    def words(self) -> str:
        """The attacks to run, with their options.

        >>> Answer(("dip", "pixels", "decoder"), ("prototype",), {"match": "direction"}).words
        'dip, pixels or decoder with match=direction'
        """
        attacks = _listed(self.attacks or ("any attack",), "or")
        return f"{attacks} with {_pairs(self.options)}" if self.options else attacks

    @property
    def explanation(self) -> str:
        """The note and its source."""
        return " ".join(filter(None, (self.note, f"({self.source})" if self.source else "")))

    def met_by(self, attack: str, options: Mapping[str, Any]) -> bool:
        """True if an attack with its options is one of those named here."""
        named = not self.attacks or attack in self.attacks
        return named and all(_covers(options.get(name), value) for name, value in self.options.items())


def answers_for(answers: Sequence[Answer], kind: str, options: Mapping[str, Any]) -> tuple[Answer, ...]:
    """Return the answers to a defense with these options on one kind of upload."""
    about = [answer for answer in answers if answer.kinds is not None and kind in answer.kinds]
    about = about or [answer for answer in answers if answer.kinds is None]
    return tuple(item for item in about if all(options.get(name) == value for name, value in item.where.items()))


def answer_sentence(answers: Sequence[Answer], unanswered: str = "") -> str:
    """Return the attacks adapted to a defense, or why there are none, for a reader.

    >>> answer_sentence([Answer(("decoder",), ("prototype",), note="learns behind the defense")])
    'decoder on prototype uploads: learns behind the defense; on others not evaluated'
    >>> answer_sentence((), "no attack undoes it")
    'not evaluated: no attack undoes it'
    """
    if not answers:
        return f"{NOT_EVALUATED}: {unanswered}" if unanswered else NOT_EVALUATED
    if [answer.kinds for answer in answers] == [None] and not answers[0].attacks:
        return f"the attacks as they are: {answers[0].explanation}"
    parts = []
    for answer in sorted(answers, key=lambda answer: answer.kinds is None):
        if answer.kinds is None:
            part = f"on others {answer.words if answer.attacks else 'the attacks as they are'}"
        else:
            part = f"{answer.words} on {_listed(answer.kinds, 'and')} uploads"
        part += f" where {_pairs(answer.where)}" if answer.where else ""
        parts.append(f"{part}: {answer.explanation}" if answer.explanation else part)
    complete = any(answer.kinds is None for answer in answers)
    return "; ".join([*parts, *([] if complete else [unanswered or f"on others {NOT_EVALUATED}"])])


def _pairs(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())


def _listed(names: Sequence[str], word: str) -> str:
    *others, last = names
    return f"{', '.join(others)} {word} {last}" if others else last


def _covers(chosen: Any, wanted: Any) -> bool:
    """True if an option's value does all that a wanted one does; patterns of parameter names are joined by +.

    >>> _covers("head.*", "head.weight"), _covers("head.bias", "head.weight"), _covers(False, True)
    (True, False, False)
    """
    if not isinstance(chosen, str) or not isinstance(wanted, str):
        return bool(chosen == wanted)
    return all(any(fnmatchcase(name, pattern) for pattern in chosen.split("+")) for name in wanted.split("+"))
