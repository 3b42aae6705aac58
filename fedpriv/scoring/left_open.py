"""Effects that a result without a leak leaves open: "no better than a guess" is said where one that counts is excluded.

That no leak stands shows none to be absent. Of means (PSNR, errors of vectors, areas under the ROC curve) an effect that
counts is excluded where the whole 95 % interval of the difference to the best guess lies at or below the least effect: an
equivalence test at 2.5 % (Schuirmann 1987, Journal of Pharmacokinetics and Biopharmaceutics 15, 657-680), from one side, as
an attack that is worse than a guess is no leak. Intervals of rates over tens of targets are always wider than the five
points that count, so a rate is left open only where more was seen than counts, and sentences say how much more there may be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedpriv.scoring.records import JudgedComparison, Measure, Reason
from fedpriv.scoring.records.verdict import ReasonName

ASKED: tuple[tuple[Measure, ...], ...] = (
    ("images", "beyond_3db", "identified", "classes"),
    ("vectors", "vectors_identified"),
    ("membership", "members_found"),
    ("property",),
)
"""Measures by the question that they answer; what one of them claims answers it."""

RATES: tuple[Measure, ...] = ("beyond_3db", "identified", "classes", "vectors_identified", "members_found")


def left_open(compared: Sequence[JudgedComparison]) -> tuple[Reason, ...]:
    """Return for each question that nothing answers, at most one reason why "no better than a guess" would say too much.

    ``not_sure`` where a comparison, of a stratum too, lies above the least effect by its own interval but not among all of
    the page; else ``not_excluded`` where one over all targets leaves room for an effect that counts. What could not be
    judged (fewer than five clients, a smaller budget) has reasons of its own.

    Args:
        compared: every comparison of an attack, as judged.
    """
    results = []
    for measures in ASKED:
        group = [item for measure in measures for item in compared if item.measure == measure]
        if not any(entry.stands for entry in group):
            results += [*_not_sure(group), *_not_excluded(group)][:1]
    return tuple(results)


def over_seeds(compared: Sequence[JudgedComparison], each: Sequence[Sequence[JudgedComparison]]) -> tuple[Reason, ...]:
    """Return the reasons that several seeds together leave.

    Two or three seeds make a wide interval over seeds however alike they are. So an effect is excluded, too, where every
    seed excludes it by itself: of these federations, if not of all that other seeds would make.

    Args:
        compared: every comparison over all seeds, as judged.
        each: the same of each seed.
    """
    results = []
    for reason in left_open(compared):
        requested = next(measures for measures in ASKED if reason.measure in measures)
        if reason.name == "not_sure" or not all(_excludes(current, requested) for current in each):
            results.append(reason)
    return tuple(results)


def _excludes(group: Sequence[JudgedComparison], measures: Sequence[Measure]) -> bool:
    there = [entry for entry in group if entry.measure in measures]
    return bool(there) and not any(item.stands for item in there) and not left_open(there)


def _not_sure(group: Sequence[JudgedComparison]) -> Iterator[Reason]:
    for item in group:
        if item.adjusted is not None and item.ci95 is not None and item.ci95[0] > item.least:
            yield _reason(item, item.ci95[0], sure=True)


def _not_excluded(group: Sequence[JudgedComparison]) -> Iterator[Reason]:
    for item in group:
        if item.stratum == "all" and item.adjusted is not None and item.ci95 is not None:
            seen = item.mean if item.measure in RATES else item.ci95[1]
            if seen is not None and seen > item.least:
                yield _reason(item, item.ci95[1], sure=False)


def _reason(item: JudgedComparison, end: float, *, sure: bool) -> Reason:
    name: ReasonName = "not_sure" if sure else "not_excluded"
    value = within_reach(item, end)
    return Reason(name=name, value=value, beside=item.least, measure=item.measure, stratum=item.stratum)


def within_reach(item: JudgedComparison, end: float) -> float:
    """Return the end of an interval, where it lies beyond what can be: no error is below 0, no rate or area above 1."""
    if item.guess is None or item.measure == "images":
        return end
    return min(end, item.guess if item.measure == "vectors" else 1 - item.guess)
