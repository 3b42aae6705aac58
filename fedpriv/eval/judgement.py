"""All verdicts of a page, made together, so that a page whose attacks know nothing claims a leak at most once in twenty.

Every comparison of every attack on the page is a test of its own. Holm's rule adjusts their p-values for the number of those
that can reject at all; intervals stay unadjusted. Where attacks were made under several seeds, what is said over seeds, and
of attacks with one seed, has most of the five per cent, and what is said of each seed by itself the rest, so that further
seeds cost no power. So have strata of membership a part of their own: they are many, and would cost what is said of all
candidates together.

That no leak stands shows none to be absent. Of means (PSNR, errors of vectors, areas under the ROC curve) an effect that
counts is excluded where the whole 95 % interval of the difference to the baseline lies at or below the least effect: an
equivalence test at 2.5 % (Schuirmann 1987, Journal of Pharmacokinetics and Biopharmaceutics 15, 657-680), from one side, as
an attack that is worse than a guess is no leak. Intervals of rates over tens of targets are always wider than the five
points that count, so a rate is left open only where more was seen than counts, and sentences say how much more there may be.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from fedpriv.attacks.inference.property import IN_CLEAR, QUESTIONS
from fedpriv.eval.floors import LABELS
from fedpriv.eval.intervals import ASSUMED, combine
from fedpriv.eval.reasons import (
    FEW_CLIENTS,
    Judged,
    JudgedComparison,
    Kind,
    Reason,
    Record,
    Verdict,
    reasons_by_key,
    record_of,
)
from fedpriv.eval.records import Comparison, Measure, PropertyRecord, ReconstructionRecord
from fedpriv.eval.score import BEYOND

K = TypeVar("K")
W = TypeVar("W")

FALSE_CLAIMS = 0.05
"""At most this share of pages of attacks that know nothing claims anything."""

BY_SEED = 0.01
"""Part of that for what is said of single seeds, where the same is said over several."""

BY_STRATUM = 0.01
"""Part of that for membership within strata, where a page has some."""

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
"""The kind of verdict that a claim by each measure makes, the most severe first."""

ENDPOINTS: tuple[tuple[Measure, ...], ...] = (
    ("images", "beyond_3db", "identified", "classes"),
    ("vectors", "vectors_identified"),
    ("membership", "members_found"),
    ("property",),
)
"""Measures by the endpoint that they are of; what one of them claims answers it."""

RATES: tuple[Measure, ...] = ("beyond_3db", "identified", "classes", "vectors_identified", "members_found")


def judge_page(results: Mapping[K, Judged], seeds: Mapping[K, Sequence[K]] | None = None) -> dict[K, Verdict]:
    """Judge everything that one page tells of, together.

    A claim stands where its p-value, adjusted for all comparisons of the page, is at most :data:`FALSE_CLAIMS`; its null is
    a difference no larger than the least effect. Nothing is claimed from fewer than five clients, and of membership only
    where non-members are the clients' own held-out images.

    Args:
        results: what the page tells of, by whatever it calls each.
        seeds: results that are one attack under several seeds, by what the page calls all of them; these are judged
            besides, with the variance within and between seeds (:func:`fedpriv.eval.intervals.combine`).

    Raises:
        UserError: where an attack was not scored.
    """
    single, seeds = reasons_by_key(results), seeds or {}
    together = {key: (key,) for key in results} | {key: tuple(members) for key, members in seeds.items()}
    records = {key: [record_of(results[member]) for member in members] for key, members in together.items()}
    reasons = {
        key: tuple({reason.name: reason for member in members for reason in single[member]}.values())
        for key, members in together.items()
    }
    compared = {key: _compared(record) for key, record in records.items()}
    tests = {
        (key, position): entry
        for key, own in compared.items()
        if all(reason.name != "no_held_out" for reason in reasons[key])
        for position, (entry, _) in enumerate(own)
        if entry.p_value is not None and entry.n_clients >= FEW_CLIENTS
    }
    parts = {member for members in seeds.values() for member in members}
    strata = {where: one for where, one in tests.items() if one.measure == "membership" and one.stratum != "all"}
    of_seeds = {where: one for where, one in tests.items() if where[0] in parts and where not in strata}
    rest = {where: one for where, one in tests.items() if where not in strata and where not in of_seeds}
    spent = (BY_SEED if parts else 0.0) + (BY_STRATUM if strata else 0.0)
    adjusted = _adjusted(rest, FALSE_CLAIMS - spent) | _adjusted(of_seeds, BY_SEED) | _adjusted(strata, BY_STRATUM)
    judged = {
        key: tuple(_judged(item, value, adjusted.get((key, index))) for index, (item, value) in enumerate(group))
        for key, group in compared.items()
    }
    room = {key: left_open(current) for key, current in judged.items()}
    for key, members in seeds.items():
        room[key] = over_seeds(judged[key], [judged[member] for member in members])
    return {
        key: _verdict(records[key], selected, reasons[key], room[key], len(adjusted))
        for key, selected in judged.items()
    }


def judge(result: Judged) -> Verdict:
    """Judge one result that stands alone."""
    return judge_page({0: result})[0]


# ---------------------------------------------------------------- tests of one page


def _adjusted(tests: Mapping[W, Comparison], level: float) -> dict[W, float]:
    p_values = holm([one.p_value or 0.0 for one in tests.values()], level, [attainable(one) for one in tests.values()])
    return {where: min(1.0, value * FALSE_CLAIMS / level) for where, value in zip(tests, p_values, strict=True)}


def holm(p_values: Sequence[float], level: float = 1.0, least: Sequence[float] | None = None) -> list[float]:
    """Return p-values adjusted by Holm's rule, in their order: those that are at most ``level`` are rejected together.

    The rule holds whatever depends on what (Holm 1979, A simple sequentially rejective multiple test procedure). A test
    whose smallest p-value is above its part of the level can never reject, so it needs no part (Tarone 1990, A modified
    Bonferroni method for discrete data, Biometrics 46, 515-522; step by step, Hommel and Krummenauer 1998, Biometrical
    Journal 40, 773-789).

    Args:
        p_values: of n tests.
        level: at which some are rejected; without ``least`` it does not matter.
        least: the smallest p-value that each test could have given, known without its outcome.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    >>> holm([0.01, 0.08, 0.03], 0.05, [0.0, 0.06, 0.0])
    [0.02, 0.08, 0.03]
    """
    known = [0.0] * len(p_values) if least is None else least
    left = sorted(range(len(p_values)), key=p_values.__getitem__)
    apart = sorted(known)
    result, largest = [0.0] * len(p_values), 0.0
    while left:
        parts = 1 + bisect_left(range(1, len(left)), True, key=lambda k: bisect_right(apart, level / k) <= k)
        largest = max(largest, min(1.0, parts * p_values[left[0]]))
        result[left[0]] = largest
        apart.remove(known[left.pop(0)])
    return result


def attainable(comparison: Comparison) -> float:
    """Return the smallest p-value that as many targets of as many clients can give; 0 where there is no such bound.

    A difference of shares is largest where the attack is right for every target and the guess, if it was measured, for none.
    """
    if comparison.measure not in RATES or comparison.measure == "members_found" or comparison.p_value is None:
        return 0.0
    number = max(comparison.n_clients, comparison.n / (1 + ASSUMED * (comparison.n / comparison.n_clients - 1)))
    known = comparison.by_design
    base = (1 + comparison.least) / 2 if known is None else min(1.0, known + comparison.least)
    return float(min(comparison.p_value, base**number))


# ---------------------------------------------------------------- comparisons


def _compared(records: Sequence[Record]) -> list[tuple[Comparison, float | None]]:
    group = [{(item.measure, item.stratum): item for item in _tested(record)} for record in records]
    results = []
    for what in group[0]:
        if all(what in comparisons for comparisons in group):
            values = [_reached(record, comparisons[what]) for record, comparisons in zip(records, group, strict=True)]
            known = [value for value in values if value is not None]
            mean = sum(known) / len(known) if len(known) == len(values) else None
            results.append((combine([comparisons[what] for comparisons in group]), mean))
    return results


def _tested(record: Record) -> tuple[Comparison, ...]:
    if isinstance(record, ReconstructionRecord) and record.upload.separate:
        return tuple(one for one in record.comparisons if one.measure not in ("vectors", "vectors_identified"))
    return record.comparisons


def _judged(comparison: Comparison, value: float | None, adjusted: float | None) -> JudgedComparison:
    stands = adjusted is not None and adjusted <= FALSE_CLAIMS
    return JudgedComparison(**dict(comparison), value=value, adjusted=adjusted, stands=stands)


def _reached(record: Record, comparison: Comparison) -> float | None:
    """Return an attack's value over the targets of a comparison; None where that is not known."""
    if not isinstance(record, ReconstructionRecord):
        if comparison.stratum != "all":
            part = record.strata.get(comparison.stratum) if record.kind == "membership" else None
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


# ---------------------------------------------------------------- what is left open


def left_open(compared: Sequence[JudgedComparison]) -> tuple[Reason, ...]:
    """Return for each endpoint that no claim answers, at most one reason why "no leak detected" would say too much.

    ``not_sure`` where a comparison, of a stratum too, lies above the least effect by its own interval but not among all of
    the page; else ``not_excluded`` where one over all targets leaves room for an effect that counts. What could not be
    judged (fewer than five clients) has reasons of its own.
    """
    results = []
    for measures in ENDPOINTS:
        group = [item for measure in measures for item in compared if item.measure == measure]
        if not any(entry.stands for entry in group):
            results += [*_open(group, sure=True), *_open(group, sure=False)][:1]
    return tuple(results)


def _open(group: Sequence[JudgedComparison], *, sure: bool) -> Iterator[Reason]:
    for item in group:
        if item.adjusted is None or item.ci95 is None or not (sure or item.stratum == "all"):
            continue
        end = item.ci95[0] if sure else item.ci95[1]
        seen = item.mean if not sure and item.measure in RATES else end
        if seen is not None and seen > item.least:
            yield Reason(
                name="not_sure" if sure else "not_excluded",
                value=within_reach(item, end),
                beside=item.least,
                measure=item.measure,
                stratum=item.stratum,
            )


def over_seeds(compared: Sequence[JudgedComparison], each: Sequence[Sequence[JudgedComparison]]) -> tuple[Reason, ...]:
    """Return the reasons that several seeds together leave, from the comparisons over all seeds and of each.

    Two or three seeds make a wide interval over seeds however alike they are. So an effect is excluded, too, where every
    seed excludes it by itself: of these federations, if not of all that other seeds would make.
    """

    def excludes(group: Sequence[JudgedComparison], measures: Sequence[Measure]) -> bool:
        there = [entry for entry in group if entry.measure in measures]
        return bool(there) and not any(item.stands for item in there) and not left_open(there)

    results = []
    for reason in left_open(compared):
        measures = next(measures for measures in ENDPOINTS if reason.measure in measures)
        if reason.name == "not_sure" or not all(excludes(current, measures) for current in each):
            results.append(reason)
    return tuple(results)


def within_reach(item: JudgedComparison, end: float) -> float:
    """Return the end of an interval, where it lies beyond what can be: no error is below 0, no rate or area above 1."""
    if item.guess is None or item.measure == "images":
        return end
    return min(end, item.guess if item.measure == "vectors" else 1 - item.guess)


# ---------------------------------------------------------------- verdicts


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
    specific = [share for record in images if (share := record.specific_share) is not None]
    return Verdict(
        attack=first.title,
        target=first.target,
        subject=first.upload.vectors,
        question=question_of(first) if first.kind == "property" else "",
        kind=kinds[0] if kinds else nothing,
        compared=compared,
        reasons=reasons,
        n_targets=sum(record.n_targets for record in images),
        n_clients=min(record.n_clients for record in records),
        units=first.units,
        n_seeds=len(records),
        n_compared=n_compared,
        converged=sum(record.converged_share for record in images) / len(images) if images else None,
        specific=sum(specific) / len(specific) if specific else None,
        clear=clear,
        baseline=_baseline(first) if len(records) == 1 else "",
    )


def question_of(record: PropertyRecord) -> str:
    """Return the question about classes in words, without its mark."""
    return QUESTIONS.get(record.question, record.question).rstrip("?")


def _baseline(record: Record) -> str:
    if record.kind != "membership" or record.baseline is None:
        return ""
    name, auc = LABELS.get(record.baseline.name, record.baseline.name), record.baseline.auc
    interval = "" if auc.ci95 is None else f" [{auc.ci95[0]:.3f}, {auc.ci95[1]:.3f}]"
    return f"{name}: AUC {auc.value:.3f}{interval}"


def _clear(record: Record) -> str:
    if record.kind == "property" and record.learned_from in IN_CLEAR and record.auc.value == 1:
        return question_of(record)
    if record.kind == "membership" and record.classes is not None:
        details = record.classes
        text = f"the classes of {details.exact} of {details.clients} clients exactly"
        return text + (f", and how many images of each of {details.counts_exact}" if details.counted else "")
    return ""
