"""The card of an upload: one sentence, four marks and one strip of pictures, for who looks for a minute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedpriv.pages.findings import Finding
from fedpriv.pages.pictures import PictureTable, picture_table
from fedpriv.scoring.ranking import title
from fedpriv.scoring.records import Kind, Verdict
from fedpriv.scoring.storage import AttackRecord, scored
from fedpriv.scoring.verdict import BADGES

State = Literal["leaks", "none", "untested", "unasked"]
"""Of an endpoint: a leak stands; none is detected; inconclusive; not asked."""

SIGNS: dict[State, str] = {"leaks": "●", "none": "○", "untested": "◐", "unasked": "–"}
"""By shape, so that a state is read without its colour."""

MEANINGS: dict[State, str] = {
    "leaks": "leaks",
    "none": BADGES["none"],
    "untested": BADGES["untested"],
    "unasked": "not asked",
}
"""What marks mean, on pages."""

_STRIPS_BYTES = 400_000  # room for the strips of all cards of a page, as base64
_SHOWN = (0.1, 0.5, 0.9)  # quantiles of the score whose targets a card shows: never the best ones
_IMAGES = ("images", "beyond_3db", "identified", "classes")
_VECTORS = ("vectors", "vectors_identified")
_SEVERE: tuple[Kind, ...] = ("leaks", "some", "classes")


def short_name(row: str) -> str:
    """Return the name of a row of pictures as a card shows it; empty for rows that it leaves out.

    >>> short_name("baseline: class mean image"), short_name("reconstruction"), short_name("truth")
    ('baseline', 'attack', 'truth')
    """
    names = {
        "reconstruction": "attack",
        "shuffled uploads (negative control)": "control",
        "mean of the true images": "truth",
        "nearest true image": "",
    }
    return "baseline" if row.startswith("baseline:") else names.get(row, row)


@dataclass(frozen=True)
class Mark:
    """The answer on one endpoint (``images``, ``representations``, ``membership``, ``properties``) of an upload."""

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
        strip: truth, reconstruction, baseline and control of three targets, or None without pictures.
        home: folder of that attack, or None.
    """

    finding: Finding
    marks: tuple[Mark, ...]
    attack: str
    strip: PictureTable | None
    home: Path | None


def upload_cards(findings: Sequence[Finding], attacks: Sequence[AttackRecord]) -> tuple[UploadCard, ...]:
    """Return the cards of a page, in the order of its findings; attacks are looked up by their folders."""
    by_folder, room, cards = (
        {attack.directory: attack for attack in attacks},
        _STRIPS_BYTES // max(len(findings), 1),
        [],
    )
    for finding in findings:
        attack = None if finding.first is None else by_folder.get(finding.first.folders[0])
        cards.append(
            UploadCard(
                finding=finding,
                marks=marks([item.verdict for item in finding.attacks]),
                attack="" if attack is None else title(scored(attack)),
                strip=None if attack is None else picture_table(attack, room, quantiles=_SHOWN),
                home=None if attack is None else attack.directory,
            )
        )
    return tuple(cards)


def marks(verdicts: Sequence[Verdict]) -> tuple[Mark, ...]:
    """Return the four marks of an upload from the verdicts on all attacks on it."""
    images = [item for item in verdicts if item.makes_images]
    vectors = [entry for entry in images if any(part.measure in _VECTORS for part in entry.compared)]
    members = [item for item in verdicts if not item.makes_images and not item.question]
    properties = [item for item in verdicts if not item.makes_images and item.question]
    severe = next((kind for kind in _SEVERE if any(image.kind == kind for image in images)), None)
    standing = [verdict for verdict in properties if verdict.kind == "property"]
    clear = standing and all(item.clear for item in standing)
    return (
        _mark("images", images, _IMAGES, "" if severe is None else BADGES[severe].removeprefix("images ")),
        _mark("representations", vectors, _VECTORS, "recovered"),
        _mark("membership", members, None, "leaks"),
        _mark("properties", properties, None, "sent in clear" if clear else "leak"),
    )


def _mark(question: str, verdicts: Sequence[Verdict], measures: tuple[str, ...] | None, leaks: str) -> Mark:
    if not verdicts:
        return Mark(question, "unasked", MEANINGS["unasked"])
    if measures is None:
        stands = any(verdict.kind in ("membership", "property") for verdict in verdicts)
    else:
        stands = any(claim.measure in measures for verdict in verdicts for claim in verdict.claims)
    if stands:
        return Mark(question, "leaks", leaks)
    why = [reason for item in verdicts for reason in (item.silent_on(measures) if measures else item.reasons)]
    state: State = "untested" if why else "none"
    return Mark(question, state, MEANINGS[state])
