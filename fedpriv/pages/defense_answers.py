"""Which attacks answer a defense on one kind of upload, read from the words in which the defense says so.

An answer is a list of alternatives, apart by semicolons: ``NAMES [with OPTION=VALUE][, of KINDS][: EXPLANATION]``, where
KINDS are kinds of upload in the plural, ``rows`` or ``networks``; an alternative without KINDS is about whatever its
attacks fit. ``of KINDS not evaluated`` says that nothing is adapted there, and ``of others the attacks as they are`` that
nothing has to be. KINDS of some points of a defense alone name them by an option's value, as in ``rotating blocks of rows``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedpriv.attacks import TARGETS

_KINDS = {
    "representations": ("representation",),
    "prototypes": ("prototype",),
    "entangled": ("entangled",),
    "angle matrices": ("angle-matrix",),
    "classifiers": ("classifier",),
    "logits": ("logits",),
    "rows": ("representation", "prototype", "entangled"),
    "networks": ("model", "small-model", "extractor", "low-rank-model"),
}
"""Kinds of upload by what answers call them; ``ones`` stands for those of the alternative before."""

_POINTS = ("rotating", "fixed")
"""Values of an option that an alternative may be about alone."""


@dataclass(frozen=True)
class Alternative:
    """One way to attack uploads in spite of a defense.

    Attributes:
        attacks: registry names; empty where every attack will do as it is.
        option, value: what the attack has to be run with, or both empty. A value that is a word has to be the attack's own;
            one that is a pattern is an example of what fits.
    """

    attacks: tuple[str, ...]
    option: str = ""
    value: str = ""

    @property
    def words(self) -> str:
        """Return what has to be run: ``dip, pixels or joint with match=direction``."""
        *others, last = self.attacks or ("any attack",)
        named = f"{', '.join(others)} or {last}" if others else last
        return f"{named} with {self.option}={self.value}" if self.option else named

    def met_by(self, attack: str, options: Mapping[str, Any]) -> bool:
        """Whether an attack with its options is what is asked for."""
        if self.attacks and attack not in self.attacks:
            return False
        chosen = str(options.get(self.option) or "")
        return not self.option or (chosen == self.value if self.value.isidentifier() else bool(chosen))


def alternatives(answer: str, target: str, options: Mapping[str, Any]) -> tuple[Alternative, ...]:
    """Return the ways to attack one kind of upload in spite of a defense; none where nothing is adapted to it there.

    Args:
        answer: as the defense states it.
        target: kind of upload.
        options: of the defense.
    """
    found: list[Alternative] = []
    others: list[Alternative] = []
    kinds: tuple[str, ...] = ()
    for part in answer.split(";"):
        named, about = _halves(part.partition(":")[0].strip())
        attacks = tuple(name for name in re.split(r"[ ,]+", named.partition(" with ")[0]) if name in TARGETS)
        kinds = _kinds(about, kinds) if about else tuple(kind for name in attacks for kind in TARGETS[name])
        fitting = tuple(name for name in attacks if target in TARGETS[name])
        if about.startswith("others"):
            others += [Alternative(())] if "as they are" in about else []
        elif about.endswith("not evaluated") and target in kinds:
            return ()
        elif fitting and target in kinds and _about_this_point(about, options):
            option, _, value = named.partition(" with ")[2].partition(",")[0].strip().partition("=")
            found.append(Alternative(fitting, option, value))
    return tuple(found or others)


def _halves(head: str) -> tuple[str, str]:
    """Return attacks with their option, and KINDS, of an alternative without its explanation."""
    match = re.fullmatch(r"(.*?)(?:(?:^|,? )of (.*))?", head)
    return (match[1], match[2] or "") if match else (head, "")


def _kinds(about: str, before: tuple[str, ...]) -> tuple[str, ...]:
    if re.search(r"\bones\b", about):
        return before
    return tuple(kind for word, kinds in _KINDS.items() if re.search(rf"\b{word}\b", about) for kind in kinds)


def _about_this_point(about: str, options: Mapping[str, Any]) -> bool:
    points = [value for value in _POINTS if value in about.split()]
    return not points or any(value in points for value in options.values())
