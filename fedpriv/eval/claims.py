"""A paper's claims (``claim.json``), and whether they hold: values beside intervals, orders beside intervals of differences.

A value of a trained claim holds where the whole 95 % interval of ours lies within the claim's tolerance of it, and does not
hold where the interval lies outside altogether. An order holds where every one of its differences is above zero at 97.5 %
and, as estimated, at least as large as the least effect: all must be, so that this needs no correction. It does not hold
where some difference is below the least effect at 97.5 % with Bonferroni's correction for as many as there are. "Does not
hold" is said at the paper's own setting alone, which counts have always.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from pydantic import Field, FiniteFloat

from fedpriv.eval.intervals import TAIL, upper_end
from fedpriv.eval.records import RECORD_VERSION, Comparison, Estimate, Interval
from fedpriv.util.config import Record

ClaimWord = Literal["holds", "does not hold", "below the baseline", "not decided", "pipeline check"]
"""``below the baseline``: a guess without the upload reaches as much; ``pipeline check``: of a run too small to judge by."""


class ClaimCell(Record):
    """One value of a table: what the paper prints, and ours over seeds beside its own baseline.

    ``spread`` is the deviation that the paper prints; ``measured`` is None where nothing came out, ``verdict`` where the
    paper gives no value. The baseline is the strongest guess without the upload, over which ``advantage`` is, or ``local``.
    ``failed`` has the seeds that ``measured`` lacks, each with its reason. ``other_moment``, of accuracies, maps the moment
    of a round that ``measured`` is not of to ours then.
    """

    row: str
    column: str
    unit: str
    digits: int
    claimed: FiniteFloat | None
    spread: FiniteFloat | None
    measured: Estimate | None
    baseline: Estimate | None
    baseline_name: str
    advantage: Estimate | None
    failed: tuple[str, ...]
    same_data: bool
    same_setting: bool
    verdict: ClaimWord | None
    why: str
    remark: str = ""
    other_moment: Mapping[str, Estimate] = Field(default_factory=dict)


class ClaimedOrder(Record):
    """One comparison of a statement."""

    within: str  # the column, or row, in which it is
    better: str  # who is said to be ahead
    than: str
    difference: FiniteFloat | None  # as said, of advantages or else of values; None where either lacks a seed
    ci95: Interval | None  # None where there is none, or values are exact
    n: int  # units over which the interval goes; of counts, the two values
    over: Literal["clients", "seeds"] = "clients"  # those units; each seed draws clients anew
    claimed: FiniteFloat | None  # by how much the paper's values are ahead, where it gives any


class ClaimStatement(Record):
    """A conclusion of a paper, its comparisons, and the verdict on all together."""

    text: str
    least: FiniteFloat
    orders: tuple[ClaimedOrder, ...]
    verdict: ClaimWord
    why: str
    other_moment: ClaimWord | None = None  # by accuracies at the other moment of a round


class ClaimCard(Record):
    """``claim.json``.

    ``guesses`` says what guesses without any upload score beside the printed values, ``setting`` what all cells share, and
    ``changed`` maps settings that are not the paper's to (the paper's, the one here).
    """

    kind: Literal["claim"] = "claim"
    version: Literal[5] = RECORD_VERSION
    name: str
    quantity: str
    title: str
    paper: str
    where: str
    known: tuple[str, ...]
    unknown: tuple[str, ...]
    guesses: tuple[str, ...]
    scale: str
    seeds: tuple[int, ...]
    setting: Mapping[str, str]
    changed: Mapping[str, tuple[str, str]]
    cells: tuple[ClaimCell, ...]
    statements: tuple[ClaimStatement, ...]
    verdict: ClaimWord
    left_out: tuple[str, ...]
    command: str
    versions: Mapping[str, str]
    seconds: FiniteFloat
    grids: tuple[str, ...] = ()


FEW = {"clients": 5, "seeds": 3}
"""Units below which nothing is said beyond them."""

Judged = tuple[ClaimWord, str]
"""A verdict, and why, in a sentence."""


class Printed(NamedTuple):
    """A value as a paper prints it, and how far a measured one may lie from it; counts are exact."""

    value: float
    digits: int
    tolerance: float
    counted: bool


def judge_value(
    printed: Printed,
    measured: Estimate | None,
    *,
    same_setting: bool,
    baseline: Estimate | None = None,
    same_data: bool = True,
    error: bool = False,
    failed: int = 0,
) -> Judged:
    """Judge a printed value by ours (None: not measured), and by that of a guess without the upload.

    ``same_setting``: ours was measured in the paper's own setting (of counts it does not matter); ``same_data``: ours, and
    the baseline, are of the paper's data; ``error``: less means that more leaks; ``failed``: seeds that ours lacks.
    """
    ends = baseline.ci95 if baseline is not None and same_data else None
    if ends is not None and (printed.value > ends[1] if error else printed.value < ends[0]):
        return "below the baseline", "a guess without the upload comes nearer on the same data"
    if measured is None or measured.mean is None:
        return "not decided", "not measured"
    if printed.counted:
        margin = max(printed.tolerance, 0.5 * 10.0**-printed.digits * (1 + 1e-9))
        near = abs(measured.mean - printed.value) <= margin
        return ("holds", "") if near else ("does not hold", "the counts differ")
    if not (same_setting and same_data):
        return "not decided", "the paper's setting was not run" if same_data else "other data than the paper's"
    if failed:
        return "not decided", "a mean of the other seeds alone favours what fails"
    if measured.ci95 is None:
        return "not decided", "one seed gives no interval"
    low, high = (end - printed.value for end in measured.ci95)
    if -printed.tolerance <= low and high <= printed.tolerance:
        return "holds", ""
    if high < -printed.tolerance or low > printed.tolerance:
        return "does not hold", "the interval lies outside the tolerance"
    return "not decided", "the interval reaches across the tolerance: more seeds would tell"


def judge_order(
    orders: Sequence[ClaimedOrder], comparisons: Sequence[Comparison | None], least: float, *, same_setting: bool
) -> Judged:
    """Judge a statement over trained or attacked results by all its comparisons, positive as said; None: not made.

    ``same_setting``: all were made in the paper's own setting; in another a refuted order is not decided.
    """
    known = [(order, item) for order, item in zip(orders, comparisons, strict=True) if item and item.mean is not None]
    if not known:
        return "not decided", "nothing of it was measured"
    few = [order for order, item in known if item.n_clients < FEW[order.over]]
    if few:
        fewest = min(few, key=lambda order: order.n)
        word = fewest.over.removesuffix("s") if fewest.n == 1 else fewest.over
        return "not decided", f"a difference over {fewest.n} {word} says too little, it takes {FEW[fewest.over]}"
    if any(item.ci95 is None or item.degrees is None for _, item in known):
        return "not decided", "some difference has no interval"
    refuted = [order for order, item in known if _below(item, least, TAIL / len(known))]
    if refuted:
        verdict, why = _not_ahead(min(refuted, key=lambda order: order.difference or 0.0))
        return (verdict, why) if same_setting else ("not decided", f"not the paper's setting; in this one {why}")
    sure = sum(item.ci95 is not None and item.ci95[0] > 0 and (item.mean or 0.0) >= least for _, item in known)
    if sure == len(orders):
        return "holds", ""
    missing = f", {len(orders) - len(known)} were not made" if len(known) < len(orders) else ""
    return "not decided", f"{sure} of {len(orders)} differences stand out{missing}"


def judge_counts(orders: Sequence[ClaimedOrder], least: float) -> Judged:
    """Judge a statement over exact counts."""
    known = [order for order in orders if order.difference is not None]
    for item in known:
        if not (item.difference or 0.0) > max(least, 0.0):
            return _not_ahead(item)
    if len(known) < len(orders) or not known:
        return "not decided", f"{len(orders) - len(known)} of {len(orders)} counts are not known"
    return "holds", ""


def _not_ahead(order: ClaimedOrder) -> Judged:
    where = f" in {order.within}" if order.within else ""
    return "does not hold", f"{order.better} is not ahead of {order.than}{where}"


def judge_claim(values: Sequence[ClaimWord], statements: Sequence[ClaimWord]) -> ClaimWord:
    """Return the verdict on a whole claim: on what the paper concludes, or on its values where it concludes nothing.

    One that does not hold decides; then a value or a statement below the baseline; else it holds where all of them do.
    """
    deciding = statements or values
    if "does not hold" in deciding:
        return "does not hold"
    if "below the baseline" in {*values, *statements}:
        return "below the baseline"
    return "holds" if deciding and all(word == "holds" for word in deciding) else "not decided"


def _below(comparison: Comparison, least: float, tail: float) -> bool:
    """Tell whether a difference is below the least effect, at one less this tail; an exact tie with zero is."""
    assert comparison.ci95 is not None
    assert comparison.mean is not None
    if comparison.ci95[1] == comparison.mean:
        return comparison.mean <= 0
    end = upper_end(comparison, tail)
    return end is not None and end < max(least, 0.0)
