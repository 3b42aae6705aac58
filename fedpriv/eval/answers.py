"""The answers of a page: one for each upload, endpoint, threat model and estimand, each with its bound.

Primaries alone are tested. ``leak``: the advantage over the baseline is above the least effect that counts (Holm over the
page's primaries). ``no leak detected``: its upper bound, at the level that Holm's rule leaves it, is below that effect, an
equivalence test from one side (Schuirmann 1987, J. Pharmacokinetics and Biopharmaceutics 15, 657-680), and the attack is
known to be able. Else ``inconclusive``, with a reason and what would decide it. Of several seeds the comparisons are put
together first (:func:`fedpriv.eval.intervals.combine`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any, Literal, NamedTuple

from pydantic import FiniteFloat

from fedpriv.eval.endpoints import (
    ENDPOINTS,
    MEASURES,
    THREATS,
    Endpoint,
    Estimand,
    Record,
    Threat,
    among,
    endpoint_of,
    primary,
    threat_of,
    why_not,
)
from fedpriv.eval.intervals import TAIL, combine, upper_end
from fedpriv.eval.records import (
    ESTIMANDS,
    Able,
    Comparison,
    Interval,
    MembershipRecord,
    NamedClasses,
    Premise,
    PropertyRecord,
    Provenance,
    Reach,
    ReconstructionRecord,
    Units,
)
from fedpriv.eval.storage import StoredAttack, scored
from fedpriv.uploads.kinds import BY_CLASS, OF_IMAGES
from fedpriv.util.config import Record as Model
from fedpriv.util.config import plain

POWER = 0.8
"""Chance with which the advised number of units decides."""

LEVEL = 0.05
"""At most this share of pages of attacks that know nothing claims anything; and of pages without any difference from the
least effect, at most this share excludes it wrongly."""

FEW_CLIENTS = 5
"""From fewer clients than this nothing is said beyond the attacked targets."""

MOST = 1000
"""Clients beyond which more of them are no advice."""

Word = Literal["leak", "no leak detected", "inconclusive", "not asked"]
WhyOpen = Literal[
    "",
    "premise",
    "few clients",
    "no held-out images",
    "no control",
    "under-powered attack",
    "control not run",
    "wide interval",
]
"""Why an answer is inconclusive. ``premise``: true images do not give the uploads by the assumed computation.
``under-powered attack``: it does not find a planted answer, or stops short of the truth's own objective.
``control not run``: whether it is able was not measured. ``wide interval``: the data exclude neither."""


class Answer(Model):
    """The answer on one endpoint of one upload under one threat model."""

    upload: str  # its key (:func:`upload_key`)
    target: str  # kind of upload
    endpoint: Endpoint
    threat: Threat
    estimand: Estimand = ""  # of reconstruction from means: targets made of one image or of several
    verdict: Word
    attack: str = ""  # the primary
    against: str = ""
    value: FiniteFloat | None = None  # levels of attack and baseline over the same targets
    baseline: FiniteFloat | None = None
    advantage: FiniteFloat | None = None  # of the attack over the baseline
    ci95: Interval | None = None
    least: FiniteFloat = 0.0  # effect that counts
    adjusted: FiniteFloat | None = None
    bound: FiniteFloat | None = None  # upper end of the advantage, at the level that Holm's rule leaves, if some
    n: int = 0  # targets or questions over all seeds
    n_clients: int = 0  # independent units
    n_seeds: int = 0
    n_tested: int = 0  # primaries of the page that were tested together
    units: Units = "clients"
    able: Able | None = None  # evidence that the attack finds what is there
    named: NamedClasses | None = None  # of label disclosure, what uploads say in clear
    premise: Premise | None = None
    reach: Reach | None = None
    why: str = ""  # of an inconclusive answer, or of nothing asked
    needed: int | None = None  # units that would decide with a chance of 80 %; None where more would not
    nonmembers: int = 0
    tpr: FiniteFloat | None = None


# ---------------------------------------------------------------- which results speak of one upload

NOT_THE_UPLOAD = ("seed", "data_dir", "capture", "checkpoint_every", "evaluate_every", "keep")
"""Settings of a run that change neither the task nor the upload."""

Result = StoredAttack | Record


def record_of(result: Result) -> Record:
    """Return the record of a result; raises UserError where an attack was not scored."""
    return scored(result) if isinstance(result, StoredAttack) else result


def about_of(result: Result) -> Provenance:
    """Return the provenance of a result."""
    return result.about if isinstance(result, StoredAttack) else result


def upload_key(about: Provenance, besides: Sequence[str] = ()) -> str:
    """Return the key that all attacks and seeds on one upload share, ``besides`` some settings of local work."""
    run = {name: value for name, value in (plain(about.run) or {}).items() if name not in NOT_THE_UPLOAD}
    if besides and "training" in run:
        run["training"] = {name: value for name, value in run["training"].items() if name not in besides}
    defenses = [(defense.name, plain(defense.options)) for defense in about.defenses]
    reach = [] if run or besides else [about.reach_label]
    return _key(about.dataset, about.target, about.method, run, defenses, *reach)


def _key(*values: object) -> str:
    """Return a text that is the same for equal values, be they 0 or 0.0."""
    return json.dumps(json.loads(json.dumps(values, sort_keys=True, default=str), parse_int=float))


def page_answers(results: Mapping[Any, Result]) -> tuple[Answer, ...]:
    """Answer every endpoint of every upload of a page, its primaries tested together.

    Results are seeds of the same attack where options, upload and threat model are the same.
    """
    uploads: dict[str, dict[str, list[Record]]] = {}
    for result in results.values():
        about = about_of(result)
        variant = _key(about.attack, plain(about.options), plain(about.knowledge))
        uploads.setdefault(upload_key(about), {}).setdefault(variant, []).append(record_of(result))
    drafts = [draft for where, attacks in uploads.items() for draft in _drafts(where, [*attacks.values()])]
    compared = [draft.comparison for draft in drafts if draft.comparison is not None]
    adjusted, bounds = iter(holm([one.p_value or 0.0 for one in compared])), iter(upper_bounds(compared, LEVEL))
    return tuple(
        draft.answer if draft.comparison is None else _decided(draft, next(adjusted), next(bounds), len(compared))
        for draft in drafts
    )


class _Draft(NamedTuple):
    """An answer in the making, the comparison that is tested, or None, and why the absence of a leak would say little."""

    answer: Answer
    comparison: Comparison | None = None
    reasons: Sequence[WhyOpen] = ()


def _decided(draft: _Draft, adjusted: float, bound: float | None, tested: int) -> Answer:
    item = draft.comparison
    assert item is not None
    verdict: Word = "leak" if adjusted <= LEVEL else "inconclusive"
    why, needed = "", None
    if verdict == "inconclusive":
        excluded = bound is not None and bound < item.least
        why = draft.reasons[0] if draft.reasons else ""
        if not excluded and why in ("", "control not run"):
            why, needed = "wide interval", clients_needed(item, tested)
        elif not why:
            verdict = "no leak detected"
    numbers = {"adjusted": adjusted, "bound": bound, "n_tested": tested, "needed": needed}
    return draft.answer.model_copy(update={"verdict": verdict, "why": why} | numbers)


def _drafts(upload: str, every: Sequence[Sequence[Record]]) -> Iterable[_Draft]:
    """Yield the answers on an upload, from the seeds of each attack on it."""
    first, named = every[0][0], _named(every)
    for endpoint, threat in product(ENDPOINTS, THREATS):
        shared: dict[str, Any] = {"upload": upload, "target": first.target, "endpoint": endpoint, "threat": threat}
        shared |= {"reach": first.reach}
        attacks = [one for one in every if endpoint_of(one[0]) == endpoint]
        there = {one[0].attack: one for one in reversed(attacks) if threat_of(one[0]) == threat}
        if endpoint == "label disclosure" and named is not None and (named.tells or (first.per_image and named.exact)):
            many: dict[str, Any] = {"n": named.clients, "n_clients": named.clients, "named": named}
            yield _Draft(Answer(**shared, verdict="leak", attack="the upload itself", **many))
        elif not there:
            # What needs nothing beyond the protocol answers both; it is tested once.
            once = threat == "white-box" and any(threat_of(one[0]) == "protocol" for one in attacks)
            why = "as protocol" if once else why_not(first.target, endpoint, threat)
            if endpoint == "label disclosure" and named is not None and named.exact:
                why = "all clients hold the same classes"
            yield _Draft(Answer(**shared, verdict="not asked", why=why))
        elif name := primary(first.target, endpoint, threat, there):
            for estimand, comparison, some in _comparisons(endpoint, there[name]):
                yield _draft(shared, estimand, comparison, some)


def _named(every: Sequence[Sequence[Record]]) -> NamedClasses | None:
    """Return the classes that uploads say in clear: of several seeds the one where they say least."""
    kinds = MembershipRecord | PropertyRecord
    told = [[one.classes for one in records if isinstance(one, kinds) and one.classes] for records in every]
    return max(
        (min(one, key=lambda named: named.exact) for one in told if one), key=lambda one: one.exact, default=None
    )


def _comparisons(
    endpoint: Endpoint, records: Sequence[Record]
) -> Iterable[tuple[Estimand, Comparison | None, Sequence[Record]]]:
    """Yield the estimands of a primary, each with its comparison over the seeds that have such targets, and these."""
    sizes = [
        {row.n_c > 1 for row in one.targets} if isinstance(one, ReconstructionRecord) else {False} for one in records
    ]
    kind, parts = records[0].target, sorted(set().union(*sizes))
    means = endpoint == "reconstruction" and among(kind, BY_CLASS) and not among(kind, OF_IMAGES)
    for several in parts:
        apart = means or len(parts) > 1
        pairs = [(one, own) for one, own in zip(records, sizes, strict=True) if several in own]
        some = [(one, "all" if len(own) == 1 else ESTIMANDS[several]) for one, own in pairs]
        each = [
            [c for c in one.comparisons if (c.measure, c.stratum) == (MEASURES[endpoint], stratum)]
            for one, stratum in some
        ]
        item = combine([found[0] for found in each]) if all(each) else None
        if item is not None and apart:
            item = item.model_copy(update={"stratum": ESTIMANDS[several]})
        name: Estimand = "" if not apart else "several images" if several else "one image"
        yield name, item, [one for one, _ in some]


def _draft(shared: Mapping[str, Any], estimand: Estimand, item: Comparison | None, records: Sequence[Record]) -> _Draft:
    first = records[0]
    able = _able(records, item)
    more: dict[str, Any] = {"estimand": estimand, "attack": first.title, "units": first.units, "able": able}
    more |= {"n_seeds": len(records), "premise": next(filter(_differs, records), first).premise}
    members = [one for one in records if isinstance(one, MembershipRecord)]
    if members:
        more |= {"nonmembers": sum(one.n_nonmembers for one in members)}
        more |= {"tpr": sum(one.tpr_at_1_percent.value for one in members) / len(members)}
    if item is None:
        return _Draft(Answer(**shared, **more, verdict="inconclusive", why="few clients"))
    value, mean = _level(records, item), item.mean
    more |= {"value": value, "baseline": None if mean is None else value - mean, "advantage": mean}
    more |= {"against": item.against, "ci95": item.ci95, "least": item.least, "n": item.n, "n_clients": item.n_clients}
    reasons = list(_reasons(records, item, able))
    if reasons and reasons[0] in ("few clients", "no held-out images"):  # nothing is tested
        return _Draft(Answer(**shared, **more, verdict="inconclusive", why=reasons[0]))
    return _Draft(Answer(**shared, **more, verdict="inconclusive"), item, reasons)


def _differs(record: Record) -> bool:
    return record.premise is not None and record.premise.status == "differs"


def _able(records: Sequence[Record], item: Comparison | None) -> Able | None:
    """Return the evidence that a primary is able, over the targets of a comparison; of several seeds that of the worst."""
    group = [one.able_on("all" if item is None else item.stratum) for one in records]
    known = [able for able in group if able is not None]
    return next((able for able in known if not able.passes), known[0] if known and len(known) == len(group) else None)


def _reasons(records: Sequence[Record], item: Comparison, able: Able | None) -> Iterable[WhyOpen]:
    """Return why the absence of a leak would say little, the most severe reason first."""
    if item.n_clients < FEW_CLIENTS or item.p_value is None:
        yield "few clients"
    if any(isinstance(one, MembershipRecord) and one.nonmembers == "others" for one in records):
        yield "no held-out images"
    if any(map(_differs, records)):
        yield "premise"
    if any(
        (one.control.difference_db if isinstance(one, ReconstructionRecord) else one.shuffled) is None
        for one in records
        if not one.per_image  # a single client has none
    ):
        yield "no control"
    if able is None:
        yield "control not run"
    elif not able.passes:
        yield "under-powered attack"


def _level(records: Sequence[Record], item: Comparison) -> float:
    """Return the attack's own level over the targets of a comparison, mean over seeds."""
    return fmean(
        fmean(row.psnr_db for row in one.of(item.stratum)) if isinstance(one, ReconstructionRecord) else one.auc.value
        for one in records
    )


# ---------------------------------------------------------------- tests of one page


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted by Holm's rule, in their order, whatever depends on what.

    Holm 1979, A simple sequentially rejective multiple test procedure.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    result, largest = [0.0] * len(p_values), 0.0
    for number, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - number) * p_values[place]))
        result[place] = largest
    return result


def upper_bounds(comparisons: Sequence[Comparison], level: float) -> list[float | None]:
    """Return an upper bound of each mean by Holm's rule for bounds below the least effect: with n left, at level / n.

    A bound that lies below its least effect frees a part of the level for the others, the furthest below first; those that
    do not are all at the level that is left. None where nothing bounds a mean.
    """
    result: list[float | None] = [None] * len(comparisons)
    left = [place for place, item in enumerate(comparisons) if upper_end(item, 0.5) is not None]
    while left:
        ends = {place: upper_end(comparisons[place], level / len(left)) for place in left}
        gaps = {place: _gap(comparisons[place], end) for place, end in ends.items()}
        lowest = min(left, key=gaps.__getitem__)
        if gaps[lowest] >= 0:
            return [ends.get(place, end) for place, end in enumerate(result)]
        result[lowest] = ends[lowest]
        left.remove(lowest)
    return result


def _gap(item: Comparison, end: float | None) -> float:
    """Return the distance of a bound above the least effect, in half-widths of the interval, so that units do not matter."""
    if end is None or item.ci95 is None or item.mean is None:
        return math.inf
    half, gap = item.ci95[1] - item.mean, end - item.least
    return gap / half if half > 0 else math.copysign(math.inf, gap)


def clients_needed(item: Comparison, tested: int) -> int | None:
    """Return the number of units that decide with a chance of 80 % if mean and spread stay; None where more settle nothing.

    The interval's half-width falls with the square root of the units; the mean must stand off the least effect by the
    quantile of the level and that of the power, of Student's t with the degrees of freedom that so many units have.
    """
    if item.ci95 is None or item.mean is None or item.degrees is None:
        return None
    from scipy.special import stdtrit  # type: ignore[import-untyped]  # takes half a second to import

    towards = item.ci95[1] - item.mean if item.mean < item.least else item.mean - item.ci95[0]
    gap, now, degrees = abs(item.least - item.mean), item.n_clients, item.degrees
    level = LEVEL / max(1, tested)
    if gap == 0:
        return None
    if towards == 0:
        return max(now + 1, math.ceil(-math.log2(level)))
    ratio = towards / float(stdtrit(degrees, 1 - TAIL)) / gap

    def needed(number: float) -> float:
        free = degrees * max(number, now) / now
        return now * ((float(stdtrit(free, 1 - level)) + float(stdtrit(free, POWER))) * ratio) ** 2

    number = needed(needed(needed(MOST)))
    return None if number > MOST else max(now + 1, math.ceil(number))
