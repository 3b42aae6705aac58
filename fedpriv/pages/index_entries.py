"""The entries of an index: what was made, when, of what, and what it found, in the words of its own page."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fedpriv.federation.run_directory import RunConfig, dataset_title
from fedpriv.federation.summary import RunSummary
from fedpriv.pages import privacy_claims
from fedpriv.pages.alike import Result, Verdicts, about_of, by_folder, over_seeds
from fedpriv.pages.findings import findings
from fedpriv.pages.labels import method_label
from fedpriv.pages.page import percent
from fedpriv.pages.picture_table import PictureTable, picture_table
from fedpriv.pages.report import StudyFacts, load_scored, redacted
from fedpriv.pages.upload_card import UploadCard, upload_card
from fedpriv.scoring.judgement import judge_page
from fedpriv.scoring.ranking import largest_budgets
from fedpriv.scoring.records import ClaimCard, InferenceResult, PrivacyAuditRecord
from fedpriv.scoring.records.claim import ClaimWord
from fedpriv.scoring.storage import AttackRecord, scored
from fedpriv.scoring.verdict import BADGES
from fedpriv.util.errors import UserError

EntryKind = Literal["attacks", "study", "claim of a paper", "audit of epsilon", "run"]

STRIP_BYTES = 40_000
"""Room for the pictures of one entry, as base64."""

_MEDIAN = (0.5,)
_LOOKS: Mapping[ClaimWord, str] = {
    "holds": "none",
    "does not hold": "worse",
    "below the floor": "worse",
    "cannot be told": "untested",
}
"""Verdicts on claims of papers -> the kind of finding that they look like."""


@dataclass(frozen=True)
class Indexed:
    """Something that fedpriv made, as it was read.

    Attributes:
        folder: where.
        name: what the index calls it: its place in the folder that is indexed.
        kind: of thing.
        made: seconds since 1970 (UTC) at which its records were written.
        attacks: that return images, without their tensors (:func:`without_tensors`), by folder.
        scores: records of inferences, by folder.
        study: what a study adds, or None.
        claim: the card of a claim, or None.
        audit: of a claimed epsilon, or None.
        run: configuration and summary of a run, or None.
        page: its own page, or None.
        command: that makes a page of it.
        notes: what is missing of it, a line each.
    """

    folder: Path
    name: str
    kind: EntryKind
    made: float
    attacks: Mapping[Path, AttackRecord] = field(default_factory=dict)
    scores: Mapping[Path, InferenceResult] = field(default_factory=dict)
    study: StudyFacts | None = None
    claim: ClaimCard | None = None
    audit: PrivacyAuditRecord | None = None
    run: tuple[RunConfig, RunSummary] | None = None
    page: Path | None = None
    command: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """An entry of the page.

    Attributes:
        of: what it is of.
        badge, look: its finding in a word or two, and the kind of finding that it looks like.
        gravity: its place in an order by finding, the gravest least.
        sentence: the finding.
        cards: one an upload, the gravest first; empty where no upload was attacked.
        methods, uploads, datasets: what it is about, each once.
    """

    of: Indexed
    badge: str
    look: str
    gravity: float
    sentence: str
    cards: tuple[UploadCard, ...] = ()
    methods: tuple[str, ...] = ()
    uploads: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()

    @property
    def findings(self) -> tuple[str, ...]:
        """The words by which it is found: of all uploads, not of the gravest alone."""
        own = [BADGES[kind] for card in self.cards for kind in card.finding.kinds]
        return tuple(dict.fromkeys([self.badge, *own]))


def without_tensors(attack: AttackRecord) -> AttackRecord:
    """Return an attack as its records tell of it: an index of many would not fit into memory with their images."""
    bare = dataclasses.replace(attack.reconstruction, images=attack.reconstruction.images[:0], features=None)
    return dataclasses.replace(attack, reconstruction=bare, truths=None, permuted=None, judge=None)


def entries(found: Sequence[Indexed], redact: str) -> tuple[Entry, ...]:
    """Return the entries of an index, the newest first. All comparisons of all of them are judged together.

    Args:
        found: what there is.
        redact: rule by which pictures are shown; what is stored by a stricter one is shown by that.
    """
    verdicts = _judged(found)
    order = sorted(found, key=lambda one: (-one.made, one.name))
    return tuple(_entry(one, verdicts, redact) for one in order)


def _judged(found: Sequence[Indexed]) -> Verdicts:
    """Return verdicts of every result by itself, and over the seeds that stand in one place."""
    every = [by_folder(list(one.attacks.values()), one.scores) for one in found]
    single: dict[tuple[Path, ...], Result] = {(folder,): result for own in every for folder, result in own.items()}
    several = [folders for own in every for folders in over_seeds(own) if len(folders) > 1]
    return judge_page(single, {folders: [(folder,) for folder in folders] for folders in several})


def _entry(one: Indexed, verdicts: Verdicts, redact: str) -> Entry:
    if one.claim is not None:
        return _of_claim(one, one.claim)
    if one.audit is not None:
        return _of_audit(one, one.audit)
    if one.run is not None:
        return _of_run(one, *one.run)
    return _of_attacks(one, verdicts, redact)


def _of_attacks(one: Indexed, verdicts: Verdicts, redact: str) -> Entry:
    largest = largest_budgets(list(one.attacks.values()), scored, lambda attack: attack.about)
    results = by_folder(largest, one.scores)
    if not results:
        return Entry(one, "nothing attacked", "untested", len(BADGES) + 3, _progress(one))
    said = findings(results, verdicts)
    first = upload_card(said[0], one.attacks, lambda attack: _strip(attack, redact))
    others = [upload_card(finding, one.attacks, lambda _: None) for finding in said[1:]]
    abouts = [about_of(result) for result in results.values()]
    return Entry(
        one,
        BADGES[said[0].kinds[0]],
        said[0].kinds[0],
        list(BADGES).index(said[0].kinds[0]),
        said[0].short,
        (first, *others),
        _once(map(method_label, abouts)),
        _once(about.target for about in abouts),
        _once(about.dataset for about in abouts),
    )


def _progress(one: Indexed) -> str:
    """Return a sentence on a study in which no attack came to its end."""
    done, cells = (0, 0) if one.study is None else (one.study.done, one.study.cells)
    return f"{done} of {cells} cells done, no result of an attack among them."


def _of_claim(one: Indexed, card: ClaimCard) -> Entry:
    how = "counted exactly" if card.quantity in ("communication", "computation") else f"tried at scale {card.scale}"
    said = f"{card.title} ({card.where}, {card.paper}), {how}: {card.verdict}."
    own = {name: _once(filter(None, (card.setting.get(name),))) for name in ("method", "dataset")}
    return Entry(
        one,
        f"claim: {card.verdict}",
        _LOOKS[card.verdict],
        len(BADGES),
        said,
        methods=own["method"],
        datasets=own["dataset"],
    )


def _of_audit(one: Indexed, record: PrivacyAuditRecord) -> Entry:
    badge, look = privacy_claims.BADGES[record.verdict]
    gravity = 0 if record.verdict == "contradicted" else len(BADGES) + 1
    said = f"{record.defense} on {record.method}: {record.sentence}"
    return Entry(one, badge, look, gravity, said, methods=(record.method,), datasets=(record.dataset,))


def _of_run(one: Indexed, config: RunConfig, summary: RunSummary) -> Entry:
    reached = percent(summary.accuracy["after_training"].pooled)
    said = f"{reached} of the test images after local training of round {summary.rounds}; no upload was attacked here."
    data = dataset_title(config)
    return Entry(one, "trained", "untested", len(BADGES) + 2, said, methods=(config.method,), datasets=(data,))


def _strip(attack: AttackRecord, redact: str) -> PictureTable | None:
    """Return the median target's pictures, read again for it; None where they can no longer be."""
    try:
        whole = load_scored(attack.directory)
    except UserError:
        return None
    return picture_table(redacted(whole, redact), STRIP_BYTES, quantiles=_MEDIAN)


def _once(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
