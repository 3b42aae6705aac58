"""All verdicts of a page, made together, so that a page whose attacks know nothing claims a leak at most once in twenty.

Every comparison of every attack on the page is a test of its own. Holm's rule adjusts their p-values for their number,
whatever depends on what (Holm 1979, A simple sequentially rejective multiple test procedure); intervals stay unadjusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from fedpriv.attacks.infer.property import IN_CLEAR, QUESTIONS
from fedpriv.scoring.convergence import convergence
from fedpriv.scoring.ranking import stage_name, title
from fedpriv.scoring.reasons import FEW_CLIENTS, Judged, Record, reasons_by_key, record_of
from fedpriv.scoring.records import (
    Comparison,
    JudgedComparison,
    Kind,
    Measure,
    PropertyRecord,
    Reason,
    ReconstructionRecord,
    Verdict,
)
from fedpriv.scoring.sections import BEYOND

K = TypeVar("K")

FALSE_CLAIMS = 0.05
"""At most this share of pages of attacks that know nothing claims anything."""

MAKES: dict[Measure, Kind] = {
    "images": "leaks",
    "beyond_3db": "some",
    "identified": "some",
    "vectors": "vectors",
    "vectors_identified": "vectors",
    "classes": "classes",
    "membership": "membership",
    "members_found": "membership",
    "property": "property",
}
"""The kind of verdict that a claim by each measure makes, the gravest first."""

_OF_VECTORS: tuple[Measure, ...] = ("vectors", "vectors_identified")


def judge_page(results: Mapping[K, Judged]) -> dict[K, Verdict]:
    """Judge everything that one page tells of, together.

    A claim stands where its p-value, adjusted for all comparisons of the page, is at most :data:`FALSE_CLAIMS`; its null is
    a difference no larger than the least effect. Nothing is claimed from fewer than five clients. Of an attack with several
    budgets the largest is judged: choosing one by its score would be choosing by the truth.

    Args:
        results: what the page tells of, by whatever it calls each. Whole attack directories where they are at hand: they say
            which records are one attack with several budgets.

    Raises:
        UserError: where an attack was not scored.
    """
    reasons = reasons_by_key(results)
    compared = {key: _comparisons(record_of(result)) for key, result in results.items()}
    places = [
        (key, place, one.p_value)
        for key, own in compared.items()
        if all(reason.name != "smaller_budget" for reason in reasons[key])
        for place, one in enumerate(own)
        if one.p_value is not None and one.n_clients >= FEW_CLIENTS
    ]
    adjusted = {
        (key, place): value
        for (key, place, _), value in zip(places, holm([p_value for *_, p_value in places]), strict=True)
    }
    found = {}
    for key, result in results.items():
        record = record_of(result)
        judged = [_judged(one, record, adjusted.get((key, place))) for place, one in enumerate(compared[key])]
        found[key] = _verdict(record, tuple(judged), reasons[key], len(places))
    return found


def judge(result: Judged) -> Verdict:
    """Judge one result that stands alone."""
    return judge_page({0: result})[0]


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted by Holm's rule, in their order: what is at most alpha is rejected at level alpha together.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    found, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        found[place] = largest
    return found


def _comparisons(record: Record) -> tuple[Comparison, ...]:
    """Return what is tested: of vectors that an upload sends one by one there is nothing to recover."""
    if isinstance(record, ReconstructionRecord) and record.upload.separate:
        return tuple(one for one in record.comparisons if one.measure not in _OF_VECTORS)
    return record.comparisons


def _judged(one: Comparison, record: Record, adjusted: float | None) -> JudgedComparison:
    return JudgedComparison(
        **dict(one),
        value=_reached(record, one),
        adjusted=adjusted,
        stands=adjusted is not None and adjusted <= FALSE_CLAIMS,
    )


def _reached(record: Record, one: Comparison) -> float | None:
    """Return what an attack reaches over the targets of a comparison; None where that is not known."""
    if not isinstance(record, ReconstructionRecord):
        return (record.tpr_at_1_percent if one.measure == "members_found" else record.auc).value
    metrics = record.metrics
    if one.measure == "beyond_3db":
        values: Sequence[float | None] = [float(gain >= BEYOND) for gain in record.advantage_db.per_target]
    else:
        summary = {
            "images": metrics.psnr_db,
            "identified": metrics.identification_top1,
            "vectors": metrics.relative_error,
            "vectors_identified": metrics.feature_identification,
            "classes": metrics.class_accuracy,
        }[one.measure]
        if summary is None or summary.per_target is None:
            return None
        if one.stratum == "all":
            return summary.mean
        values = summary.per_target
    chosen = values
    if one.stratum != "all":
        if len(values) != len(record.targets):
            return None
        chosen = [v for v, target in zip(values, record.targets, strict=True) if target.stratum == one.stratum]
    known = [value for value in chosen if value is not None]
    # Targets that were not identified for want of decoys are not compared; of the others every value has to be finite.
    complete = one.measure == "identified" or len(known) == len(chosen)
    return sum(known) / len(known) if known and complete else None


def _verdict(
    record: Record, compared: tuple[JudgedComparison, ...], reasons: tuple[Reason, ...], n_compared: int
) -> Verdict:
    standing = {one.measure for one in compared if one.stands}
    kinds = [kind for measure, kind in MAKES.items() if measure in standing]
    clear = _clear(record)
    if clear and record.kind == "property":
        kinds = ["property"]
    nothing: Kind = "untested" if reasons else "none"
    shared: dict[str, Any] = {
        "target": record.target,
        "kind": kinds[0] if kinds else nothing,
        "compared": compared,
        "reasons": reasons,
        "n_clients": record.n_clients,
        "n_compared": n_compared,
        "clear": clear,
    }
    if isinstance(record, ReconstructionRecord):
        return Verdict(
            attack=title(record),
            subject=record.upload.vectors,
            n_targets=record.n_targets,
            converged=convergence(record).share,
            **shared,
        )
    return Verdict(
        attack=", ".join(filter(None, (record.attack, stage_name(record)))),
        subject=_question(record) if record.kind == "property" else record.upload.vectors,
        n_targets=record.n_clients,
        converged=None,
        **shared,
    )


def _question(record: PropertyRecord) -> str:
    return QUESTIONS.get(record.question, record.question).rstrip("?")


def _clear(record: Record) -> str:
    """Return what an upload says outright."""
    if record.kind == "property" and record.learned_from in IN_CLEAR and record.auc.value == 1:
        return _question(record)
    if record.kind == "membership" and record.classes is not None:
        told = record.classes
        text = f"the classes of {told.exact} of {told.clients} clients exactly"
        return text + (f", and how many images of each of {told.counts_exact}" if told.counted else "")
    return ""
