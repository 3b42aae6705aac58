"""The section of a report on who was a member: its rows from ``membership.json`` alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedpriv.pages.score_section import ScoreSection, over_units, section, upload_columns, with_interval
from fedpriv.scoring.records import MembershipRecord, Rate
from fedpriv.scoring.records.inference import StratumArea

TITLE = "Membership"
INTRODUCTION = (
    "Candidates: as many training images as non-members of the same classes, client by client. Non-members are the client's "
    "own held-out images; where there are none, others' images, and no leak is claimed. AUC 0.5 is chance; the baseline is "
    "a score through the networks that the attacker is assumed to know, without the upload. Strata: how many images of the "
    "class the client holds, and how far an image lies from the mean of its class, in thirds; one is claimed only in the "
    "verdict, where all comparisons of the page are tested together. Intervals: 95 %, over"
)


def row(record: MembershipRecord) -> dict[str, str]:
    """Return one line of a table."""
    control, classes, baseline = record.shuffled, record.classes, record.baseline
    return {
        "attack": record.attack,
        **upload_columns(record),
        "candidates": f"{record.n_candidates} of {record.n_clients} {record.units}",
        "members left out": str(record.n_left_out),
        "non-members": "held-out images" if record.nonmembers == "held_out" else "others' images",
        "AUC [95 %]": with_interval(record.auc, 3, 1),
        "found at 1 % false": with_interval(record.tpr_at_1_percent, 1, 100) + " %",
        "found at 0.1 % false": with_interval(record.tpr_at_0_1_percent, 1, 100)
        + (" %" if record.n_nonmembers >= 1000 else " % (fewer than 1,000 non-members)"),
        "AUC, shuffled uploads": "not run" if control is None else with_interval(control.auc, 3, 1),
        "AUC, baseline": "no network known" if baseline is None else with_interval(baseline.auc, 3, 1),
        "AUC by images of the class": areas(record.strata),
        "AUC by rarity of the image": areas(record.rarity),
        "class sets exact": "none uploaded" if classes is None else f"{classes.exact}/{classes.clients}",
    }


def areas(strata: Mapping[str, StratumArea]) -> str:
    """Return the area of each stratum with its interval."""
    if not strata:
        return "not measured"
    return ", ".join(
        f"{name}: {with_interval(Rate(value=item.auc, ci95=item.ci95), 2, 1)}" for name, item in strata.items()
    )


def _introduction(records: Sequence[MembershipRecord]) -> str:
    return f"{INTRODUCTION} {over_units(records)}."


def sections(records: Sequence[MembershipRecord], verdicts: Sequence[str]) -> tuple[ScoreSection, ...]:
    """Return the section of a page, none without records."""
    return section(TITLE, _introduction(records), [row(record) for record in records], records, verdicts)
