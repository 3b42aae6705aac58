"""The card of an upload: one sentence, four marks and one strip of pictures, for who looks for a minute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedpriv.pages.findings import Finding
from fedpriv.pages.picture_table import PictureTable, picture_table
from fedpriv.scoring.ranking import title
from fedpriv.scoring.records import Kind, Verdict
from fedpriv.scoring.storage import AttackRecord, scored
from fedpriv.scoring.verdict import BADGES

State = Literal["leaks", "none", "untested", "unasked"]
"""Of a question: something is told beyond a guess; nothing, though tested hard enough; or else; not asked."""

SIGNS: dict[State, str] = {"leaks": "●", "none": "○", "untested": "◐", "unasked": "–"}
"""By shape, so that a state is read without its colour."""

MEANINGS: dict[State, str] = {
    "leaks": "leaks",
    "none": "no better than a guess",
    "untested": "not tested hard enough",
    "unasked": "not asked",
}

LEFT_OPEN = "neither shown nor excluded"
"""Said in place of "not tested hard enough" where attacks did their work, and there are too few targets or clients."""

LEGEND: dict[State, str] = MEANINGS | {"untested": f"{MEANINGS['untested']}, or {LEFT_OPEN}"}
"""What marks mean, on pages."""

STRIPS_BYTES = 400_000
"""Room for the strips of all cards of a page, as base64."""

SHOWN = (0.1, 0.5, 0.9)
"""Quantiles of the score whose targets a card shows: never the best ones."""

_IMAGES = ("images", "beyond_3db", "identified", "classes")
_VECTORS = ("vectors", "vectors_identified")
_TOLD: tuple[Kind, ...] = ("leaks", "some", "classes")


def short_name(row: str) -> str:
    """Return the name of a row of pictures as a card shows it; empty for rows that it leaves out.

    >>> short_name("floor: class mean image"), short_name("reconstruction"), short_name("truth")
    ('best guess', 'attack', 'truth')
    """
    names = {
        "reconstruction": "attack",
        "shuffled uploads (negative control)": "control",
        "mean of the true images": "truth",
        "nearest true image": "",
    }
    return "best guess" if row.startswith("floor:") else names.get(row, row)


@dataclass(frozen=True)
class Mark:
    """The answer to one question about an upload.

    Attributes:
        question: ``images``, ``representations``, ``membership`` or ``properties``.
        state: which of the four answers.
        words: the answer as a reader sees it.
    """

    question: str
    state: State
    words: str

    @property
    def sign(self) -> str:
        """The state as a shape."""
        return SIGNS[self.state]


@dataclass(frozen=True)
class UploadCard:
    """The findings on one upload, at a glance.

    Attributes:
        finding: the same in full.
        marks: on images, representations, membership and properties.
        attack: whose pictures the strip shows, or empty.
        strip: truth, reconstruction, best guess and control of three targets, or None without pictures.
        home: folder of that attack, or None.
    """

    finding: Finding
    marks: tuple[Mark, ...]
    attack: str
    strip: PictureTable | None
    home: Path | None


def upload_cards(findings: Sequence[Finding], attacks: Sequence[AttackRecord]) -> tuple[UploadCard, ...]:
    """Return the cards of a page, in the order of its findings.

    Args:
        findings: findings of the page.
        attacks: that make images, scored; those of the findings' verdicts are looked up by their folders.
    """
    by_folder = {attack.directory: attack for attack in attacks}
    room = STRIPS_BYTES // max(len(findings), 1)
    return tuple(
        upload_card(finding, by_folder, lambda attack: picture_table(attack, room, quantiles=SHOWN))
        for finding in findings
    )


def upload_card(
    finding: Finding, attacks: Mapping[Path, AttackRecord], strip: Callable[[AttackRecord], PictureTable | None]
) -> UploadCard:
    """Return the card of one finding.

    Args:
        finding: on the upload.
        attacks: by their folders.
        strip: makes the pictures of the attack that the finding shows.
    """
    first = finding.first
    attack = None if first is None else attacks.get(first.folders[0])
    return UploadCard(
        finding=finding,
        marks=marks([item.verdict for item in finding.told]),
        attack="" if attack is None else title(scored(attack)),
        strip=None if attack is None else strip(attack),
        home=None if attack is None else attack.directory,
    )


def marks(verdicts: Sequence[Verdict]) -> tuple[Mark, ...]:
    """Return the four marks of an upload from the verdicts on all attacks on it."""
    images = [item for item in verdicts if item.makes_images]
    vectors = [entry for entry in images if any(part.measure in _VECTORS for part in entry.compared)]
    requested = {kind: [verdict for verdict in verdicts if _asks(verdict, kind)] for kind in ("membership", "property")}
    most_severe = next((kind for kind in _TOLD if any(image.kind == kind for image in images)), None)
    return (
        _mark("images", images, _IMAGES, "" if most_severe is None else BADGES[most_severe].removeprefix("images ")),
        _mark("representations", vectors, _VECTORS, "recovered"),
        _mark("membership", requested["membership"], None, "leaks"),
        _mark("properties", requested["property"], None, _in_clear(requested["property"])),
    )


def _in_clear(verdicts: Sequence[Verdict]) -> str:
    """Return the words for properties that leak: no inference is needed where the upload says them."""
    standing = [verdict for verdict in verdicts if verdict.kind == "property"]
    return "sent in clear" if standing and all(item.clear for item in standing) else "leak"


def _asks(verdict: Verdict, kind: str) -> bool:
    return not verdict.makes_images and (kind == "property") == bool(verdict.question)


def _mark(question: str, verdicts: Sequence[Verdict], measures: tuple[str, ...] | None, leaks: str) -> Mark:
    """Return one mark.

    Args:
        question: what is asked.
        verdicts: on the attacks that ask it.
        measures: whose claims answer it; None where any claim, or what the upload says outright, does.
        leaks: the words where something stands.
    """
    state: State = "none"
    why = [reason for item in verdicts for reason in (item.silent_on(measures) if measures else item.reasons)]
    if not verdicts:
        state = "unasked"
    elif any(_stands(verdict, measures) for verdict in verdicts):
        state = "leaks"
    elif why:
        state = "untested"
        if all(reason.measure is not None for reason in why):
            return Mark(question, state, LEFT_OPEN)
    return Mark(question, state, leaks if state == "leaks" else MEANINGS[state])


def _stands(verdict: Verdict, measures: tuple[str, ...] | None) -> bool:
    if measures is None:
        return verdict.kind in ("membership", "property")
    return any(claim.measure in measures for claim in verdict.claims)
