"""Judgement of a paper's claims: values beside intervals, orders beside intervals of differences.

A value of a trained claim holds where the whole 95 % interval of ours lies within the claim's tolerance of it, does not hold
where the interval lies outside altogether, and cannot be told otherwise, or where anything but the paper's own setting was
run. An order holds where every one of its differences is above zero at 97.5 % and, as estimated, at least as large as the
least effect: all must be, so that this needs no correction. It does not hold where some difference is below the least effect
at 97.5 % with Bonferroni's correction for as many as there are. Counts are exact, at any scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedpriv.scoring.intervals import TAIL
from fedpriv.scoring.records import Comparison, Estimate
from fedpriv.scoring.records.claim import ClaimedOrder, ClaimWord

FEW = {"clients": 5, "seeds": 3}
"""Units below which nothing is said beyond them."""

SETTING = "the paper's setting was not run"


@dataclass(frozen=True)
class Printed:
    """A value as a paper prints it.

    Attributes:
        value: in its unit.
        digits: decimals.
        tolerance: how far a measured one may lie from it.
        counted: it is exact; then half of the last digit printed is the tolerance, unless that is larger.
    """

    value: float
    digits: int
    tolerance: float
    counted: bool

    @property
    def margin(self) -> float:
        """The tolerance, of exact values at least half of the last digit."""
        return max(self.tolerance, 0.5 * 10.0**-self.digits * (1 + 1e-9)) if self.counted else self.tolerance


def judge_value(
    printed: Printed,
    measured: Estimate | None,
    *,
    same_setting: bool,
    floor: Estimate | None = None,
    same_data: bool = True,
    error: bool = False,
) -> tuple[ClaimWord, str]:
    """Judge a printed value.

    Args:
        printed: the value.
        measured: ours, in the same unit; None where it was not measured.
        same_setting: whether ours was measured in the paper's own setting; of counts it does not matter.
        floor: of a guess without the upload; None for none.
        same_data: whether ours, and the floor, are of the paper's data.
        error: the value is an error, of which less means that more leaks.

    Returns:
        The verdict, and why, in a sentence.
    """
    ends = floor.ci95 if floor is not None and same_data else None
    if ends is not None and (printed.value > ends[1] if error else printed.value < ends[0]):
        return "below the floor", "a guess without the upload comes nearer on the same data"
    if measured is None or measured.mean is None:
        return "cannot be told", "not measured"
    distance = abs(measured.mean - printed.value)
    if printed.counted:
        return ("holds", "") if distance <= printed.margin else ("does not hold", "the counts differ")
    if not (same_setting and same_data):
        return "cannot be told", SETTING if same_data else "other data than the paper's"
    if measured.ci95 is None:
        return "cannot be told", "one seed gives no interval"
    low, high = (end - printed.value for end in measured.ci95)
    if -printed.margin <= low and high <= printed.margin:
        return "holds", ""
    if high < -printed.margin or low > printed.margin:
        return "does not hold", "the interval lies outside the tolerance"
    return "cannot be told", "the interval reaches across the tolerance: more seeds would tell"


def order(
    within: str,
    better: str,
    than: str,
    found: Comparison,
    claimed: float | None,
    over: Literal["clients", "seeds"] = "clients",
) -> ClaimedOrder:
    """Return a comparison as a card holds it."""
    return ClaimedOrder(
        within=within,
        better=better,
        than=than,
        difference=found.mean,
        ci95=found.ci95,
        n=found.n_clients,
        over=over,
        claimed=claimed,
    )


def judge_order(
    orders: Sequence[ClaimedOrder], found: Sequence[Comparison | None], least: float
) -> tuple[ClaimWord, str]:
    """Judge a statement over trained or attacked results by all of its comparisons.

    Args:
        orders: in words.
        found: the same with their degrees of freedom, positive as the paper says; None for what was not measured.
        least: the least effect.
    """
    known = [one for one in found if one is not None and one.mean is not None]
    if not known:
        return "cannot be told", "nothing of it was measured"
    few = [told for told, one in zip(orders, found, strict=True) if one is not None and one.n_clients < FEW[told.over]]
    if few:
        least_units = min(few, key=lambda told: told.n)
        word = least_units.over.removesuffix("s") if least_units.n == 1 else least_units.over
        told = f"a difference over {least_units.n} {word} says too little, it takes {FEW[least_units.over]}"
        return "cannot be told", told
    if any(one.ci95 is None or one.degrees is None for one in known):
        return "cannot be told", "some difference has no interval"
    refuted = [
        told
        for told, one in zip(orders, found, strict=True)
        if one is not None and _below(one, least, TAIL / len(known))
    ]
    if refuted:
        worst = min(refuted, key=lambda told: told.difference or 0.0)
        where = f" in {worst.within}" if worst.within else ""
        return "does not hold", f"{worst.better} is not ahead of {worst.than}{where}"
    if len(known) < len(found):
        return "cannot be told", f"{len(found) - len(known)} of {len(found)} comparisons were not made"
    short = [told for told, one in zip(orders, known, strict=True) if not _above(one, least)]
    if short:
        return "cannot be told", f"{len(orders) - len(short)} of {len(orders)} differences stand out"
    return "holds", ""


def judge_counts(orders: Sequence[ClaimedOrder], least: float) -> tuple[ClaimWord, str]:
    """Judge a statement over exact counts."""
    known = [one for one in orders if one.difference is not None]
    wrong = [one for one in known if one.difference is not None and not one.difference > max(least, 0.0)]
    if wrong:
        first = wrong[0]
        where = f" in {first.within}" if first.within else ""
        return "does not hold", f"{first.better} is not ahead of {first.than}{where}"
    if len(known) < len(orders) or not known:
        return "cannot be told", f"{len(orders) - len(known)} of {len(orders)} counts are not known"
    return "holds", ""


def judge_claim(values: Sequence[ClaimWord], statements: Sequence[ClaimWord]) -> ClaimWord:
    """Return the verdict on a whole claim.

    One value or statement that does not hold decides; then a value below the floor; else it holds where all of them do.

    Args:
        values: of the values that can be judged where they were measured.
        statements: of all statements.
    """
    for word in ("does not hold", "below the floor"):
        if word in (*statements, *values):
            return word
    told = (*statements, *values)
    return "holds" if told and all(word == "holds" for word in told) else "cannot be told"


def _above(found: Comparison, least: float) -> bool:
    assert found.ci95 is not None
    assert found.mean is not None
    return found.ci95[0] > 0 and found.mean >= least


def _below(found: Comparison, least: float, tail: float) -> bool:
    """Tell whether a difference is below the least effect, at one less this tail; an exact tie with zero is."""
    from scipy.special import stdtrit  # type: ignore[import-untyped]  # takes half a second to import

    assert found.ci95 is not None
    assert found.mean is not None
    assert found.degrees is not None
    half = found.ci95[1] - found.mean
    wider = half * float(stdtrit(found.degrees, 1 - tail) / stdtrit(found.degrees, 1 - TAIL))
    return found.mean + wider < max(least, 0.0) if half else found.mean <= 0
