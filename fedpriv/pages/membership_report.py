"""The section of a report on who was a member: its rows from ``membership.json`` alone."""

from __future__ import annotations

from collections.abc import Sequence

from fedpriv.pages.score_section import ScoreSection, over_units, section, upload_columns, with_interval
from fedpriv.scoring.records import MembershipRecord

TITLE = "Membership"
INTRODUCTION = (
    "Candidates: as many training images as others of the same classes, client by client. AUC 0.5 is chance. Intervals: "
    "95 %, over"
)


def row(record: MembershipRecord) -> dict[str, str]:
    """Return one line of a table."""
    control, classes = record.permuted, record.classes
    return {
        **upload_columns(record),
        "candidates": f"{record.n_candidates} of {record.n_clients} {record.units}",
        "AUC [95 %]": with_interval(record.auc, 3, 1),
        "found at 1 % false": with_interval(record.tpr_at_1_percent, 1, 100) + " %",
        "found at 0.1 % false": with_interval(record.tpr_at_0_1_percent, 1, 100)
        + (" %" if record.n_nonmembers >= 1000 else " % (fewer than 1,000 non-members)"),
        "AUC, permuted uploads": "not run" if control is None else with_interval(control.auc, 3, 1),
        "AUC by images of the class": ", ".join(f"{name}: {part.auc:.2f}" for name, part in record.strata.items()),
        "class sets exact": "none uploaded" if classes is None else f"{classes.exact}/{classes.clients}",
    }


def _introduction(records: Sequence[MembershipRecord]) -> str:
    return f"{INTRODUCTION} {over_units(records)}."


def sections(records: Sequence[MembershipRecord], verdicts: Sequence[str]) -> tuple[ScoreSection, ...]:
    """Return the section of a page, none without records."""
    return section(TITLE, _introduction(records), [row(record) for record in records], records, verdicts)
