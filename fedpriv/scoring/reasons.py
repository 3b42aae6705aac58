"""Why the absence of a leak would say little: what makes "inconclusive" a result of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from fedpriv.scoring.ranking import by_budget, reach_label
from fedpriv.scoring.records import About, InferenceResult, MembershipRecord, Reason, ReconstructionRecord
from fedpriv.scoring.records.base import DECIBELS
from fedpriv.scoring.records.made import Training
from fedpriv.scoring.storage import AttackRecord, scored

Record = ReconstructionRecord | InferenceResult
Judged = AttackRecord | Record
K = TypeVar("K")

FEW_CLIENTS = 5
"""From fewer clients than this nothing is claimed beyond the attacked targets."""

CONVERGED = 0.5
"""Share of targets whose search must have converged."""

SPECIFIC = 0.5
"""Share of targets of a single image whose fit must be specific to their upload."""

AT_CHANCE = 0.1
"""A model that is right in less than this share of what a constant guess leaves wrong counts as untrained."""

FAR = 0.5
"""Undertrained is less than this share of what the method gains elsewhere on the page, of what constant guesses leave."""


def record_of(result: Judged) -> Record:
    """Return the record of a result.

    Raises:
        UserError: when an attack was not scored.
    """
    return scored(result) if isinstance(result, AttackRecord) else result


def reasons_by_key(results: Mapping[K, Judged]) -> dict[K, tuple[Reason, ...]]:
    """Return the reasons that apply to each result of a page: most are its own, two lie beside it on the page."""
    records = {key: record_of(result) for key, result in results.items()}
    budgets, reached = _budgets(results), _reached_elsewhere(records.values())
    return {
        key: (*_own(record), *budgets.get(key, ()), *_training(record.training, reached.get(_method(record), 0.0)))
        for key, record in records.items()
    }


def _own(record: Record) -> list[Reason]:
    results = []
    if record.premise is not None and record.premise.status == "differs":
        results.append(Reason(name="premise", value=record.premise.cosine, premise=record.premise))
    if record.n_clients < FEW_CLIENTS:
        results.append(Reason(name="few_clients", value=record.n_clients, beside=FEW_CLIENTS))
    if not record.comparisons:
        results.append(Reason(name="no_comparison"))
    if not isinstance(record, ReconstructionRecord):
        if record.shuffled is None:
            results.append(Reason(name="no_control"))
        if isinstance(record, MembershipRecord) and record.nonmembers == "others":
            results.append(Reason(name="no_held_out"))
        return results
    if record.control.shuffled is None:
        results.append(Reason(name="no_control"))
    converged, specific = record.converged_share, record.specific_share
    if converged < CONVERGED:
        results.append(Reason(name="not_converged", value=converged, beside=CONVERGED))
    if specific is not None and specific < SPECIFIC:
        results.append(Reason(name="not_specific", value=specific, beside=SPECIFIC))
    if record.caveat:
        results.append(Reason(name="caveat", text=record.caveat))
    return results


def _budgets(results: Mapping[K, Judged]) -> dict[K, list[Reason]]:
    """Return reasons from other budgets of the same attack: a smaller one is not judged, one that rises may rise on."""

    def record(item: tuple[K, Judged]) -> ReconstructionRecord:
        result = record_of(item[1])
        assert isinstance(result, ReconstructionRecord)
        return result

    def about(item: tuple[K, Judged]) -> About | None:
        return item[1].about if isinstance(item[1], AttackRecord) else None

    reasons: dict[K, list[Reason]] = {}
    images = [item for item in results.items() if isinstance(record_of(item[1]), ReconstructionRecord)]
    for series in by_budget(images, record, about):
        for key, _ in series[:-1]:
            reasons[key] = [Reason(name="smaller_budget")]
        if len(series) > 1:
            before, last = (record(item).metrics.psnr_db.mean for item in series[-2:])
            if last - before >= DECIBELS:
                reasons[series[-1][0]] = [Reason(name="budget_rising", value=last - before, beside=DECIBELS)]
    return reasons


def _method(record: Record) -> tuple[str, str, str]:
    # Settings of a reach differ in how much they train, and that is what they are for.
    return record.method, record.dataset, reach_label(record)


def _reached_elsewhere(records: Iterable[Record]) -> dict[tuple[str, str, str], float]:
    values: dict[tuple[str, str, str], float] = {}
    for record in records:
        if record.training is not None:
            values[_method(record)] = max(_gained(record.training), values.get(_method(record), 0.0))
    return values


def _training(training: Training | None, elsewhere: float) -> list[Reason]:
    if training is None:
        return []
    if _gained(training) < AT_CHANCE:
        return [Reason(name="at_chance", value=training.accuracy, beside=training.guess)]
    if _gained(training) < FAR * elsewhere:
        likewise = training.guess + elsewhere * (1 - training.guess)
        return [Reason(name="undertrained", value=training.accuracy, beside=likewise)]
    return []


def _gained(training: Training) -> float:
    return (training.accuracy - training.guess) / max(1 - training.guess, 1e-9)
