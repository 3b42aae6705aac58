"""The section of a report on properties of clients: its rows from ``property.json`` alone."""

from __future__ import annotations

from collections.abc import Sequence

from fedpriv.pages.score_section import ScoreSection, over_units, section, upload_columns, with_interval
from fedpriv.scoring.property import QUESTIONS
from fedpriv.scoring.records import PropertyRecord

TITLE = "Property"
INTRODUCTION = (
    "One question for each class of each client that the upload leaves open. AUC 0.5 is chance. Intervals: 95 %, over"
)


def row(record: PropertyRecord) -> dict[str, str]:
    """Return one line of a table."""
    control = record.shuffled
    few = "" if record.n_pairs - record.n_yes >= 1000 else " (fewer than 1,000 noes)"
    return {
        **upload_columns(record),
        "question": QUESTIONS.get(record.question, record.question),
        "pairs": f"{record.n_pairs} of {record.n_clients} {record.units}, {record.n_yes} yes",
        "learned from": record.learned_from,
        "AUC [95 %]": with_interval(record.auc, 3, 1),
        "found at 1 % false": with_interval(record.tpr_at_1_percent, 1, 100) + " %",
        "found at 0.1 % false": with_interval(record.tpr_at_0_1_percent, 1, 100) + " %" + few,
        "AUC, number of classes alone": with_interval(record.classes_alone.auc, 3, 1),
        "AUC, shuffled uploads": "not run" if control is None else with_interval(control.auc, 3, 1),
        **_share_columns(record),
    }


def _share_columns(record: PropertyRecord) -> dict[str, str]:
    if record.shares is None:
        return {}
    guesses = record.shares.guesses
    best = min(guesses, key=lambda name: guesses[name].value)
    return {
        "class shares, distance": with_interval(record.shares.estimated, 2, 1),
        "class shares, best guess": f"{guesses[best].value:.2f} ({best})",
    }


def _introduction(records: Sequence[PropertyRecord]) -> str:
    return f"{INTRODUCTION} {over_units(records)}."


def sections(records: Sequence[PropertyRecord], verdicts: Sequence[str]) -> tuple[ScoreSection, ...]:
    """Return the section of a page, none without records."""
    return section(TITLE, _introduction(records), [row(record) for record in records], records, verdicts)
