"""All verdicts of a page, made together, so that a page whose attacks know nothing claims a leak at most once in twenty.

Every comparison of every attack on the page is a test of its own. Holm's rule adjusts their p-values for the number of those
that can reject at all (:mod:`fedpriv.scoring.family`); intervals stay unadjusted. Where attacks were made under several
seeds, what is said over seeds, and of attacks with one seed, has most of the five per cent, and what is said of each seed by
itself the rest, so that further seeds cost no power. So have strata of membership a part of their own: they are many, and
would cost what is said of all candidates together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from fedpriv.attacks.inference.property import IN_CLEAR, QUESTIONS
from fedpriv.scoring.convergence import convergence
from fedpriv.scoring.family import attainable, holm
from fedpriv.scoring.floors import LABELS
from fedpriv.scoring.intervals import combine
from fedpriv.scoring.left_open import left_open, over_seeds
from fedpriv.scoring.ranking import reach_label, stage_name, title
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
W = TypeVar("W")

FALSE_CLAIMS = 0.05
"""At most this share of pages of attacks that know nothing claims anything."""

BY_SEED = 0.01
"""Part of that for what is said of single seeds, where the same is said over several."""

BY_STRATUM = 0.01
"""Part of that for members told apart within strata, where a page tells of some."""

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


def judge_page(results: Mapping[K, Judged], seeds: Mapping[K, Sequence[K]] | None = None) -> dict[K, Verdict]:
    """Judge everything that one page tells of, together.

    A claim stands where its p-value, adjusted for all comparisons of the page, is at most :data:`FALSE_CLAIMS`; its null is
    a difference no larger than the least effect. Nothing is claimed from fewer than five clients, and of membership only
    where non-members are the clients' own held-out images. Of an attack with several budgets the largest is judged: choosing
    one by its score would be choosing by the truth.

    Args:
        results: what the page tells of, by whatever it calls each. Whole attack directories where they are at hand: they say
            which records are one attack with several budgets.
        seeds: results that are one attack under several seeds, by what the page calls all of them; these are judged
            besides, with the variance within and between seeds (:func:`fedpriv.scoring.intervals.combine`).

    Raises:
        UserError: where an attack was not scored.
    """
    single = reasons_by_key(results)
    together = {key: (key,) for key in results} | {key: tuple(members) for key, members in (seeds or {}).items()}
    records = {key: [record_of(results[member]) for member in members] for key, members in together.items()}
    reasons = {key: _of_all([single[member] for member in members]) for key, members in together.items()}
    compared = {key: _compared(record) for key, record in records.items()}
    parts = {member for members in (seeds or {}).values() for member in members}
    tests = {
        (key, position): entry
        for key, own in compared.items()
        if all(reason.name not in ("smaller_budget", "no_held_out") for reason in reasons[key])
        for position, (entry, _) in enumerate(own)
        if entry.p_value is not None and entry.n_clients >= FEW_CLIENTS
    }
    adjusted = _all_adjusted(tests, parts)
    judged = {
        key: tuple(_judged(item, value, adjusted.get((key, index))) for index, (item, value) in enumerate(group))
        for key, group in compared.items()
    }
    room = {key: left_open(current) for key, current in judged.items()}
    for key, members in (seeds or {}).items():
        room[key] = over_seeds(judged[key], [judged[member] for member in members])
    return {
        key: _verdict(records[key], selected, reasons[key], room[key], len(adjusted))
        for key, selected in judged.items()
    }


def judge(result: Judged) -> Verdict:
    """Judge one result that stands alone."""
    return judge_page({0: result})[0]


def _all_adjusted(tests: Mapping[tuple[K, int], Comparison], parts: Collection[K]) -> dict[tuple[K, int], float]:
    """Return adjusted p-values of strata of membership, of single seeds among ``parts``, and of all else."""
    strata = {
        where: entry for where, entry in tests.items() if entry.measure == "membership" and entry.stratum != "all"
    }
    single = {where: item for where, item in tests.items() if where[0] in parts and where not in strata}
    rest = {where: test for where, test in tests.items() if where not in strata and where not in single}
    spent = (BY_SEED if parts else 0.0) + (BY_STRATUM if strata else 0.0)
    result = _adjusted(rest, spent) | _adjusted(single, FALSE_CLAIMS - BY_SEED)
    return result | _adjusted(strata, FALSE_CLAIMS - BY_STRATUM)


def _adjusted(tests: Mapping[W, Comparison], spent: float) -> dict[W, float]:
    """Return p-values of tests adjusted so that, at :data:`FALSE_CLAIMS`, it is kept less what is spent."""
    level = FALSE_CLAIMS - spent
    p_values = holm(
        [item.p_value or 0.0 for item in tests.values()], level, [attainable(test) for test in tests.values()]
    )
    return {where: min(1.0, value * FALSE_CLAIMS / level) for where, value in zip(tests, p_values, strict=True)}


def _of_all(lines: Sequence[tuple[Reason, ...]]) -> tuple[Reason, ...]:
    """Return every reason that one of several seeds gives, once."""
    return tuple({reason.name: reason for reasons in lines for reason in reasons}.values())


def _compared(records: Sequence[Record]) -> list[tuple[Comparison, float | None]]:
    """Return the tests, over all seeds, with the attack's values, mean over them."""
    group = [{(item.measure, item.stratum): item for item in _comparisons(record)} for record in records]
    results = []
    for what in group[0]:
        if all(what in comparisons for comparisons in group):
            values = [_reached(record, comparisons[what]) for record, comparisons in zip(records, group, strict=True)]
            known = [value for value in values if value is not None]
            mean = sum(known) / len(known) if len(known) == len(values) else None
            results.append((combine([comparisons[what] for comparisons in group]), mean))
    return results


def _comparisons(record: Record) -> tuple[Comparison, ...]:
    """Return the comparisons that are tested: of vectors that an upload sends one by one there is nothing to recover."""
    if isinstance(record, ReconstructionRecord) and record.upload.separate:
        return tuple(comparison for comparison in record.comparisons if comparison.measure not in _OF_VECTORS)
    return record.comparisons


def _judged(comparison: Comparison, value: float | None, adjusted: float | None) -> JudgedComparison:
    stands = adjusted is not None and adjusted <= FALSE_CLAIMS
    return JudgedComparison(**dict(comparison), value=value, adjusted=adjusted, stands=stands)


def _reached(record: Record, comparison: Comparison) -> float | None:
    """Return an attack's value over the targets of a comparison; None where that is not known."""
    if not isinstance(record, ReconstructionRecord):
        if comparison.stratum != "all":
            part = record.alike().get(comparison.stratum) if record.kind == "membership" else None
            return None if part is None else part.auc
        return (record.tpr_at_1_percent if comparison.measure == "members_found" else record.auc).value
    metrics = record.metrics
    if comparison.measure == "beyond_3db":
        values: Sequence[float | None] = [float(gain >= BEYOND) for gain in record.advantage_db.per_target]
    else:
        summary = {
            "images": metrics.psnr_db,
            "identified": metrics.identification_top1,
            "vectors": metrics.relative_error,
            "vectors_identified": metrics.feature_identification,
            "classes": metrics.class_accuracy,
        }[comparison.measure]
        if summary is None or summary.per_target is None:
            return None
        if comparison.stratum == "all":
            return summary.mean
        values = summary.per_target
    if comparison.stratum != "all":
        values = [v for v, target in zip(values, record.targets, strict=True) if target.stratum == comparison.stratum]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == comparison.n else None  # fewer: some are not finite


def _verdict(
    records: Sequence[Record],
    compared: tuple[JudgedComparison, ...],
    reasons: tuple[Reason, ...],
    room: tuple[Reason, ...],
    n_compared: int,
) -> Verdict:
    first = records[0]
    standing = {entry.measure for entry in compared if entry.stands}
    kinds = [kind for measure, kind in MAKES.items() if measure in standing]
    clear = _clear(first) if len({_clear(record) for record in records}) == 1 else ""
    if clear and first.kind == "property":
        kinds = ["property"]
    reasons = (*reasons, *(() if "property" in kinds else room))
    nothing: Kind = "untested" if reasons else "none"
    images = [record for record in records if isinstance(record, ReconstructionRecord)]
    searches = [convergence(record) for record in images]
    specific = [item.specific for item in searches if item.specific is not None]
    stage = ", ".join(filter(None, (first.attack, stage_name(first), reach_label(first))))
    return Verdict(
        attack=title(images[0]) if images else stage,
        target=first.target,
        subject=first.upload.vectors,
        question=_question(first) if first.kind == "property" else "",
        kind=kinds[0] if kinds else nothing,
        compared=compared,
        reasons=reasons,
        n_targets=sum(record.n_targets for record in images),
        n_clients=min(record.n_clients for record in records),
        units=first.units,
        n_seeds=len(records),
        n_compared=n_compared,
        converged=sum(search.converged for search in searches) / len(searches) if searches else None,
        specific=sum(specific) / len(specific) if specific else None,
        clear=clear,
        baseline=_baseline(first) if len(records) == 1 else "",
    )


def _question(record: PropertyRecord) -> str:
    return QUESTIONS.get(record.question, record.question).rstrip("?")


def _baseline(record: Record) -> str:
    """Return the level of membership that the assumed networks reach without the upload, in words."""
    if record.kind != "membership" or record.baseline is None:
        return ""
    name, auc = LABELS.get(record.baseline.name, record.baseline.name), record.baseline.auc
    interval = "" if auc.ci95 is None else f" [{auc.ci95[0]:.3f}, {auc.ci95[1]:.3f}]"
    return f"{name}: AUC {auc.value:.3f}{interval}"


def _clear(record: Record) -> str:
    """Return the facts that an upload says outright."""
    if record.kind == "property" and record.learned_from in IN_CLEAR and record.auc.value == 1:
        return _question(record)
    if record.kind == "membership" and record.classes is not None:
        details = record.classes
        text = f"the classes of {details.exact} of {details.clients} clients exactly"
        return text + (f", and how many images of each of {details.counts_exact}" if details.counted else "")
    return ""
