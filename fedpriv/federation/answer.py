"""The attacks adapted to a defense, as data; every sentence about them is made from it here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

NOT_EVALUATED = "not evaluated"
NO_OTHERS = "it fits no others"
"""What stands in place of a reason where a defense has answers on all kinds of upload that it fits."""


@dataclass(frozen=True)
class Answer:
    """One way to attack uploads in spite of a defense.

    Attributes:
        attacks: registry names of attacks; empty where every attack works as it is.
        kinds: kinds of payload that it is about; None for every kind that no other answer of the defense is about.
        options: of the attacks, and the values that adapt them.
        where: options of the defense, and the values with which alone the answer works.
        note: why it works, in words for a reader.
        source: paper, where the adapted attack is published.
    """

    attacks: tuple[str, ...] = ()
    kinds: tuple[str, ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    where: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    source: str = ""

    @property
    def words(self) -> str:
        """The attacks to run, with their options.

        >>> Answer(("dip", "pixels", "joint"), ("prototype",), {"match": "direction"}).words
        'dip, pixels or joint with match=direction'
        """
        chosen = _pairs(self.options)
        return f"{_either(self.attacks)} with {chosen}" if chosen else _either(self.attacks)

    @property
    def explanation(self) -> str:
        """The note and its source; empty where nothing is said."""
        return " ".join(filter(None, (self.note, f"({self.source})" if self.source else "")))

    def met_by(self, attack: str, options: Mapping[str, Any]) -> bool:
        """True if an attack with its options is one of those asked for."""
        named = not self.attacks or attack in self.attacks
        return named and all(_covers(options.get(name), value) for name, value in self.options.items())


def answers_for(answers: Sequence[Answer], kind: str, options: Mapping[str, Any]) -> tuple[Answer, ...]:
    """Return the answers to a defense with these options on one kind of upload; none where nothing is adapted."""
    about = [answer for answer in answers if answer.kinds is not None and kind in answer.kinds]
    return tuple(
        answer
        for answer in about or [answer for answer in answers if answer.kinds is None]
        if all(options.get(name) == value for name, value in answer.where.items())
    )


def answer_sentence(answers: Sequence[Answer], unanswered: str = "", *, explained: bool = True) -> str:
    """Return the attacks adapted to a defense, or why there are none (on other kinds of upload), for a reader.

    >>> answer_sentence([Answer(("joint",), ("prototype",), note="inverts all images of a class together")])
    'joint on prototype uploads: inverts all images of a class together; on others not evaluated'
    >>> answer_sentence((), "no attack undoes it")
    'not evaluated: no attack undoes it'
    """
    if not answers:
        return f"{NOT_EVALUATED}: {unanswered}" if unanswered else NOT_EVALUATED
    if [answer.kinds for answer in answers] == [None] and not answers[0].attacks:
        return ": ".join(["the attacks as they are", *([answers[0].explanation] if explained else [])])
    told = [_told(answer, explained) for answer in sorted(answers, key=lambda answer: answer.kinds is None)]
    complete = any(answer.kinds is None for answer in answers)
    return "; ".join([*told, *([] if complete else [unanswered or f"on others {NOT_EVALUATED}"])])


def _told(answer: Answer, explained: bool) -> str:
    if answer.kinds is None:
        told = f"on others {answer.words}" if answer.attacks else "on others the attacks as they are"
    else:
        told = f"{answer.words} on {_all(answer.kinds)} uploads"
    told += f" where {_pairs(answer.where)}" if answer.where else ""
    return f"{told}: {answer.explanation}" if explained and answer.explanation else told


def _pairs(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())


def _either(names: Sequence[str]) -> str:
    *others, last = names or ("any attack",)
    return f"{', '.join(others)} or {last}" if others else last


def _all(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _covers(chosen: Any, wanted: Any) -> bool:
    """True if an option's value does all that a wanted one does.

    Of names of parameters, patterns as of ``fnmatch`` joined by +, each wanted one has to be covered by a chosen one.

    >>> _covers("head.*", "head.weight"), _covers("head.bias", "head.weight"), _covers(False, True)
    (True, False, False)
    """
    if not isinstance(chosen, str) or not isinstance(wanted, str):
        return bool(chosen == wanted)
    return all(any(fnmatchcase(name, pattern) for pattern in chosen.split("+")) for name in wanted.split("+"))
