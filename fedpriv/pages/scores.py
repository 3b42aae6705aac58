"""The sections of a report on attacks that return scores: membership and property inference, from their records alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpriv.pages.alike import Verdicts
from fedpriv.pages.labels import defense_label, method_label, upload_title
from fedpriv.scoring.property import QUESTIONS
from fedpriv.scoring.ranking import stage_name
from fedpriv.scoring.records import InferenceResult, MembershipRecord, PropertyRecord, Rate
from fedpriv.scoring.records.inference import StratumArea
from fedpriv.scoring.verdict import inferred, premise_words

TITLES = {"membership": "Membership", "property": "Property"}
"""Names of the sections by the kind of their records; in lower case their anchors."""

INTRODUCTIONS = {
    "membership": (
        "Candidates: as many training images as non-members of the same classes, client by client. Non-members are the "
        "client's own held-out images; where there are none, others' images, and no leak is claimed. AUC 0.5 is chance; the "
        "baseline is a score through the networks that the attacker is assumed to know, without the upload. Strata: how "
        "many images of the class the client holds, and how far an image lies from the mean of its class, in thirds; one is "
        "claimed only in the verdict, where all comparisons of the page are tested together. Intervals: 95 %, over"
    ),
    "property": (
        "One question for each class of each client that the upload leaves open. AUC 0.5 is chance. Intervals: 95 %, over"
    ),
}

WORDS = ("attack", "upload", "method", "defense", "data set", "question", "learned from")
"""Columns that hold words, which stand to the left."""

_ONLY_WHERE_THEY_DIFFER = ("attack", "data set", "seed")


def with_interval(value: Rate, digits: int, factor: float = 1) -> str:
    """Return a value and its interval, both times ``factor``: ``0.53 [0.50, 0.57]``."""
    text = f"{factor * value.value:.{digits}f}"
    if value.ci95 is None:
        return text
    low, high = value.ci95
    return f"{text} [{factor * low:.{digits}f}, {factor * high:.{digits}f}]"


def score_sections(scores: Mapping[Path, InferenceResult], verdicts: Verdicts) -> list[dict[str, Any]]:
    """Return the sections on the kinds of inference that were run.

    Returns:
        Of each its ``title``, its ``introduction``, the ``rows`` of its table by column, the ``lines`` (upload, verdict,
        command, seed) of its records, and their ``commands``, each once.
    """
    sections = []
    for kind, title in TITLES.items():
        records = {folder: record for folder, record in scores.items() if record.kind == kind}
        if records:
            units = " or ".join(dict.fromkeys(record.units for record in records.values()))
            several = len({record.attack for record in records.values()}) > 1
            lines = [
                (
                    upload_words(record) + (f", {record.attack}" if several else ""),
                    f"{inferred(verdicts[folder,])} {premise_words(record.premise)}".rstrip(),
                    record.command,
                    record.seed,
                )
                for folder, record in records.items()
            ]
            sections.append(
                {
                    "title": title,
                    "introduction": f"{INTRODUCTIONS[kind]} {units}.",
                    "rows": varying([row(record) for record in records.values()]),
                    "lines": lines,
                    "commands": "\n".join(dict.fromkeys(command for _, _, command, _ in lines)),
                }
            )
    return sections


def upload_words(record: InferenceResult) -> str:
    """Return which upload a record is about, in one line: ``fedproto + noise scale=0.3, prototype, digits, seed 0``."""
    columns = _upload(record)
    return f"{upload_title(record)}, {columns['upload']}, {columns['data set']}, seed {columns['seed']}"


def varying(rows: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return rows of one set of columns, an empty cell where a row has nothing to say.

    Columns that say the same in all rows are left out, of those that matter only where they differ.
    """
    same = [name for name in _ONLY_WHERE_THEY_DIFFER if len({row.get(name) for row in rows}) < 2]
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in same]
    return [{name: row.get(name, "") for name in names} for row in rows]


def _upload(record: InferenceResult) -> dict[str, str]:
    return {
        "upload": ", ".join(part for part in (record.target, stage_name(record)) if part),
        "method": method_label(record),
        "defense": defense_label(record),
        "data set": record.dataset,
        "seed": str(record.run_seed),
    }


def row(record: InferenceResult) -> dict[str, str]:
    """Return one line of the table of its kind."""
    return _membership(record) if isinstance(record, MembershipRecord) else _property(record)


def _membership(record: MembershipRecord) -> dict[str, str]:
    control, classes, baseline = record.shuffled, record.classes, record.baseline
    few = "" if record.n_nonmembers >= 1000 else " (fewer than 1,000 non-members)"
    return {
        "attack": record.attack,
        **_upload(record),
        "candidates": f"{record.n_candidates} of {record.n_clients} {record.units}",
        "members left out": str(record.n_left_out),
        "non-members": "held-out images" if record.nonmembers == "held_out" else "others' images",
        "AUC [95 %]": with_interval(record.auc, 3),
        "TPR at 1 % FPR": with_interval(record.tpr_at_1_percent, 1, 100) + " %",
        "TPR at 0.1 % FPR": with_interval(record.tpr_at_0_1_percent, 1, 100) + " %" + few,
        "AUC, shuffled uploads": "not run" if control is None else with_interval(control.auc, 3),
        "AUC, baseline": "no network known" if baseline is None else with_interval(baseline.auc, 3),
        "AUC by images of the class": areas(record.strata),
        "AUC by rarity of the image": areas(record.rarity),
        "class sets exact": "none uploaded" if classes is None else f"{classes.exact}/{classes.clients}",
    }


def areas(strata: Mapping[str, StratumArea]) -> str:
    """Return the area of each stratum with its interval."""
    rates = {name: Rate(value=item.auc, ci95=item.ci95) for name, item in strata.items()}
    return ", ".join(f"{name}: {with_interval(rate, 2)}" for name, rate in rates.items()) or "not measured"


def _property(record: PropertyRecord) -> dict[str, str]:
    few = "" if record.n_pairs - record.n_yes >= 1000 else " (fewer than 1,000 noes)"
    columns = {
        **_upload(record),
        "question": QUESTIONS.get(record.question, record.question),
        "pairs": f"{record.n_pairs} of {record.n_clients} {record.units}, {record.n_yes} yes",
        "learned from": record.learned_from,
        "AUC [95 %]": with_interval(record.auc, 3),
        "TPR at 1 % FPR": with_interval(record.tpr_at_1_percent, 1, 100) + " %",
        "TPR at 0.1 % FPR": with_interval(record.tpr_at_0_1_percent, 1, 100) + " %" + few,
        "AUC, number of classes alone": with_interval(record.classes_alone.auc, 3),
        "AUC, shuffled uploads": "not run" if record.shuffled is None else with_interval(record.shuffled.auc, 3),
    }
    if record.shares is not None:
        guesses = record.shares.guesses
        best = min(guesses, key=lambda name: guesses[name].value)
        columns["class shares, distance"] = with_interval(record.shares.estimated, 2)
        columns["class shares, baseline"] = f"{guesses[best].value:.2f} ({best})"
    return columns
