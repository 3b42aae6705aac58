"""The section of a report on who was a member: its rows from ``membership.json`` alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedpriv.pages.score_section import ScoreSection, over_units, section, upload_columns, with_interval
from fedpriv.scoring.records import MembershipRecord, Rate
from fedpriv.scoring.records.inference import Accusations, StratumArea

TITLE = "Membership"
INTRODUCTION = (
    "Candidates: as many training images as non-members of the same classes, client by client. Non-members are the client's "
    "own held-out images; where there are none, others' images, and no leak is claimed. AUC 0.5 is chance; the baseline is "
    "a score through the networks that the attacker is assumed to know, without the upload. What is found "
    "at 1 % false positives is read off a curve that only who knows the members can draw; accused is who passes a threshold "
    "that the attacker sets without that, by the scores of what it knows to be no members. Strata: how many images of the "
    "class the client holds, and how far an image lies from the mean of its class, in thirds; one is claimed only in the "
    "verdict, where all comparisons of the page are tested together. Intervals: 95 %, over"
)


def row(record: MembershipRecord) -> dict[str, str]:
    """Return one line of a table."""
    control, classes, baseline = record.permuted, record.classes, record.baseline
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
        "AUC, permuted uploads": "not run" if control is None else with_interval(control.auc, 3, 1),
        "AUC, baseline": "no network known" if baseline is None else with_interval(baseline.auc, 3, 1),
        **{accused(one): accused_share(one) for one in record.accusations},
        "threshold from": f"{record.n_null:,} scores, {record.null}" if record.accusations else "nothing known",
        "AUC by images of the class": areas(record.strata),
        "AUC by rarity of the image": areas(record.rarity),
        "class sets exact": "none uploaded" if classes is None else f"{classes.exact}/{classes.clients}",
    }


def accused(one: Accusations) -> str:
    """Return the name of the column of a nominal rate."""
    return f"really accused at {100 * one.nominal:g} % (members)"


def accused_share(one: Accusations) -> str:
    """Return the share of non-members that is accused, and of members, as told."""
    return f"{with_interval(one.false, 1, 100)} % ({with_interval(one.found, 1, 100)} %)"


def accused_words(record: MembershipRecord) -> str:
    """Return in a sentence what comes of thresholds that are set without the truth.

    Of a record without any it is empty.
    """
    told = "; ".join(
        f"at {100 * one.nominal:g} % it accuses {with_interval(one.false, 1, 100)} % of those who are none, and "
        f"{with_interval(one.found, 1, 100)} % of members"
        for one in record.accusations
    )
    return f"a threshold set by {record.n_null:,} scores that are no members' ({record.null}): {told}." if told else ""


def areas(strata: Mapping[str, StratumArea]) -> str:
    """Return the area of each stratum with its interval."""
    if not strata:
        return "not measured"
    return ", ".join(
        f"{name}: {with_interval(Rate(value=one.auc, ci95=one.ci95), 2, 1)}" for name, one in strata.items()
    )


def _introduction(records: Sequence[MembershipRecord]) -> str:
    return f"{INTRODUCTION} {over_units(records)}."


def sections(records: Sequence[MembershipRecord], verdicts: Sequence[str]) -> tuple[ScoreSection, ...]:
    """Return the section of a page, none without records."""
    return section(TITLE, _introduction(records), [row(record) for record in records], records, verdicts)
