"""Leakage, accuracy and communication of uploads side by side, and which of them no other dominates.

An upload (method, its options, defenses with their strengths, kind of target) is one point: what the most severe of all
attacks on it reaches by each measure, as the page's verdicts have it, and accuracy and communication of the same runs.
Points are compared only under one threat model, on one data set partitioned one way; theirs is a partial order, because
leaks of different things have no common scale.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedpriv.eval.reasons import Kind, Verdict
from fedpriv.eval.records import About, Comparison, Provenance, ThreatModel
from fedpriv.eval.verdict import BADGES
from fedpriv.federation.answer import answers_for
from fedpriv.reports.labels import (
    Result,
    Verdicts,
    about_of,
    card_words,
    defense_label,
    local_work,
    over_seeds,
    point_labels,
    upload_key,
    upload_size,
)
from fedpriv.reports.run_records import Baselines, beside, gain_over_local
from fedpriv.util.config import plain

MEASURES: dict[str, tuple[str, ...]] = {
    "images": ("images", "beyond_3db", "identified", "classes"),
    "representations": ("vectors", "vectors_identified"),
    "membership": ("membership", "members_found"),
    "property": ("property",),
}
"""Panels, and the measures whose claims count in each; the first is the one that is drawn."""

MOMENTS = ("after_training", "after_broadcast")
"""Moments of a round at which accuracy is taken."""

_CLEARLY_LESS = 0.99
"""Traffic settles an order only from 1 % less on: below that lie labels, ids and the scales of encoders."""

_TASK = ("dataset", "per_class", "image_size", "partition", "clients", "public", "auxiliary")
"""Settings under which alone accuracy and leakage compare."""


@dataclass(frozen=True)
class Effect:
    """The reach of the most severe attack on an upload by one measure, above the baseline.

    ``value`` is in the unit of the measure, None for what the upload says outright; ``low``, ``high``: its 95 % interval.
    ``stands``: a leak is claimed; ``tested``: its absence says something. Values over different ``unit`` have no order.
    """

    attack: str
    value: float | None
    low: float | None
    high: float | None
    stands: bool
    tested: bool
    unit: str

    @property
    def known(self) -> bool:
        """True where there is a leak, or something can be said of there being none."""
        return self.stands or self.tested

    @property
    def found(self) -> Literal["outright", "leak", "none", "untested"]:
        """The state of knowledge in a word."""
        if self.value is None:
            return "outright"
        return "leak" if self.stands else "none" if self.tested else "untested"

    @property
    def grade(self) -> int:
        """0 for no leak, 1 for one, 2 for what is said outright."""
        return 2 if self.value is None else int(self.stands)

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the interval, or twice the value; infinite for what is said outright."""
        if self.value is None:
            return float("inf"), float("inf")
        return (self.value, self.value) if self.low is None or self.high is None else (self.low, self.high)


@dataclass(frozen=True)
class Objectives:
    """The figures that uploads are compared by: effects by measure, and costs by name; what is not known is missing."""

    effects: Mapping[str, Effect]
    costs: Mapping[str, float]
    may_dominate: bool = True


def dominates(objectives: Objectives, two: Objectives) -> bool:
    """Return true where ``objectives`` is at least as good in everything that is known of either, and better in something.

    What is inconclusive, or was not attacked at all, is not known to be as good as anything.
    """
    if not objectives.may_dominate or objectives.costs.keys() != two.costs.keys():
        return False
    measures = objectives.effects.keys() | two.effects.keys()
    orders = [_order(objectives.effects.get(name), two.effects.get(name)) for name in measures]
    orders += [_sign(objectives.costs[name], two.costs[name]) for name in objectives.costs]
    return all(order is not None and order <= 0 for order in orders) and any((order or 0) < 0 for order in orders)


def undominated(points: Sequence[Objectives]) -> list[bool]:
    """Return for each point whether none of the others dominates it."""
    return [not any(dominates(other, point) for other in points) for point in points]


def _order(effect: Effect | None, two: Effect | None) -> int | None:
    if effect is None or not effect.known:
        return None
    if two is None or not two.known:
        return None if effect.grade else 0
    if effect.grade != two.grade:
        return _sign(effect.grade, two.grade)
    if effect.value is None or two.value is None:
        return 0
    if effect.unit != two.unit:
        return None if effect.grade else 0
    return _sign(effect.value, two.value)


def _sign(value: float, two: float) -> int:
    return (value > two) - (value < two)


# ---------------------------------------------------------------- points


@dataclass(frozen=True)
class Spread:
    """A quantity over the seeds of one upload: mean, and where there are several sd (n - 1), least and greatest."""

    mean: float
    sd: float | None = None
    low: float | None = None
    high: float | None = None

    @classmethod
    def over(cls, values: Sequence[float]) -> Spread:
        """Return the spread of the values of all seeds."""
        if len(values) == 1:
            return cls(values[0])
        return cls(float(np.mean(values)), float(np.std(values, ddof=1)), min(values), max(values))

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the greatest; of one seed twice the value."""
        return (self.mean, self.mean) if self.low is None or self.high is None else (self.low, self.high)


@dataclass(frozen=True)
class Point:
    """One upload under one threat model.

    Attributes:
        label: what it is called in this set.
        method, target: registry names.
        defense: its label, ``none`` without any.
        kind: the verdict on the upload: of all attacks the most severe.
        effects: by panel of :data:`MEASURES`; what was not attacked is missing.
        trained, received: share of all test images classified correctly in the last round, after local training and after
            the broadcast that follows; None where not recorded.
        local: ``trained`` of the same clients without any exchange; None where there is no such run of some seed.
        gains: by moment: that accuracy less the one without any exchange, seed by seed and client by client, or None.
        scalars: what a client uploads in a round, in numbers of 32 bits (:func:`fedpriv.reports.labels.upload_size`).
        bytes: the same in bytes, everything counted as it is encoded.
        seeds: of the attacked runs.
        unadapted: what adapted to its defenses was not run on it; empty where all was.
    """

    label: str
    method: str
    target: str
    defense: str
    kind: Kind
    effects: Mapping[str, Effect]
    trained: Spread
    received: Spread | None
    local: float | None
    gains: Mapping[str, Comparison | None]
    scalars: Spread
    bytes: Spread
    seeds: tuple[int, ...]
    unadapted: str = ""

    @property
    def notes(self) -> str:
        """Facts that the figures do not tell."""
        return f"adapted attack not run: {self.unadapted}" if self.unadapted else ""

    @property
    def objectives(self) -> Objectives:
        """The figures that it is compared by."""
        costs = {"trained": -self.trained.mean, "scalars": self.scalars.mean}
        costs |= {} if self.received is None else {"received": -self.received.mean}
        return Objectives(self.effects, costs, may_dominate=not self.unadapted and self.kind != "untested")


@dataclass(frozen=True)
class Frontier:
    """Points that may be compared with one another, the undominated (``best``) first, then by label.

    ``card`` has the most rounds seen; ``task`` is what all share. ``settled``, of a dominated point: whether some point that
    dominates it is better beyond the spread in an objective; True for the others.
    """

    card: ThreatModel
    task: Mapping[str, Any]
    points: tuple[Point, ...]
    best: tuple[bool, ...]
    settled: tuple[bool, ...]

    @property
    def measured(self) -> tuple[str, ...]:
        """The panels in which some upload has a place."""
        return tuple(name for name in MEASURES if any(name in point.effects for point in self.points))

    @property
    def locals(self) -> tuple[float, ...]:
        """Accuracies without any exchange, beside which some points stand."""
        return tuple(sorted({point.local for point in self.points if point.local is not None}))


Judged = tuple[Provenance, Verdict]
"""One attack, with the verdict over its seeds."""


def frontiers(
    results: Mapping[Path, Result], verdicts: Verdicts, known: Baselines | None = None
) -> tuple[Frontier, ...]:
    """Return one frontier for each threat model and task; ``known`` are accuracies without any exchange.

    Uploads of whose runs no attack records accuracy and communication have no point.
    """
    runs: dict[str, dict[int, About]] = {}
    for result in results.values():
        about = about_of(result)
        if isinstance(about, About) and upload_size(about) is not None and accuracies(about)[0] is not None:
            runs.setdefault(upload_key(about), {})[about.run_seed] = about
    lines = [(about_of(results[folders[0]]), verdicts[folders]) for folders in over_seeds(results)]
    placed = [entry for entry in lines if upload_key(entry[0]) in runs]
    groups: dict[str, list[Judged]] = {}
    for item in placed:
        groups.setdefault(_setting(item[0], placed), []).append(item)
    return tuple(_frontier(members, runs, known or {}) for members in groups.values())


def accuracies(about: About) -> tuple[float | None, float | None]:
    """Return pooled accuracy after training and after broadcast; None where missing."""
    reached = [about.run_accuracy.get(moment) for moment in MOMENTS]
    trained, received = (None if item is None else item.pooled for item in reached)
    return trained, received


def _setting(made: Provenance, everything: Sequence[Judged]) -> str:
    """Return the key that attacks of one frontier share: task and threat model, however many rounds each needs.

    An attack that takes no extractor stands with those on the same upload that take one and have all else.
    """
    card = _card(made)
    if made.knowledge.extractor == "none":
        others = [_card(other) for other, _ in everything if upload_key(other) == upload_key(made)]
        card = next((current for current in others if current | {"extractor": "none"} == card), card)
    return json.dumps([card, _task(made)], sort_keys=True, default=str)


def _card(made: Provenance) -> dict[str, Any]:
    return {name: value for name, value in plain(made.knowledge).items() if name != "rounds_seen"}


def _task(made: Provenance) -> dict[str, Any]:
    group = {name: plain(getattr(made.run, name, None)) for name in _TASK}
    return group | {"data set": made.dataset, "local work": local_work(made.run)}


def _frontier(members: Sequence[Judged], runs: Mapping[str, Mapping[int, About]], known: Baselines) -> Frontier:
    uploads: dict[str, list[Judged]] = {}
    for item in members:
        uploads.setdefault(upload_key(item[0]), []).append(item)
    abouts = [list(runs[key].values()) for key in uploads]
    labels = point_labels([about[0] for about in abouts])
    points = [
        _point(label, upload, trained, known)
        for label, upload, trained in zip(labels, uploads.values(), abouts, strict=True)
    ]
    best = undominated([point.objectives for point in points])
    settled = [best[i] or any(_clearly(other, point) for other in points) for i, point in enumerate(points)]
    order = sorted(range(len(points)), key=lambda i: (not best[i], points[i].label))
    widest = max(
        (made for made, _ in members), key=lambda made: (made.knowledge.extractor != "none", made.knowledge.rounds_seen)
    )
    return Frontier(
        card=widest.knowledge,
        task=_task(widest) | {"dataset": widest.dataset},
        points=tuple(points[i] for i in order),
        best=tuple(best[i] for i in order),
        settled=tuple(settled[i] for i in order),
    )


def _clearly(point: Point, two: Point) -> bool:
    """True where ``point`` dominates ``two``, in some objective by more than both spreads.

    Accuracy of a single seed has no spread, so a difference in it alone settles nothing; nor does less than 1 % of what
    is sent.
    """
    if not dominates(point.objectives, two.objectives):
        return False
    pairs = [(point.effects[name], two.effects[name]) for name in point.effects.keys() & two.effects.keys()]
    leakage = any(a.known and b.known and (a.grade < b.grade or a.ends[1] < b.ends[0]) for a, b in pairs)
    moments = ((point.trained, two.trained), (point.received, two.received))
    accuracy = any(a and b and None not in (a.sd, b.sd) and a.ends[0] > b.ends[1] for a, b in moments)
    return leakage or accuracy or point.scalars.ends[1] < _CLEARLY_LESS * two.scalars.ends[0]


def _severity(item: Judged) -> int:
    return list(BADGES).index(item[1].kind)


def _point(label: str, group: Sequence[Judged], runs: Sequence[About], known: Baselines) -> Point:
    first, sizes = runs[0], [size for about in runs if (size := upload_size(about)) is not None]
    trained, received = (
        [value for value in values if value is not None] for values in zip(*map(accuracies, runs), strict=True)
    )
    alone = [result.pooled for about in runs if (result := beside(about, known)) is not None]
    return Point(
        label=label,
        method=first.method,
        target=first.target,
        defense=defense_label(first),
        kind=min(group, key=_severity)[1].kind,
        effects={name: effect for name in MEASURES if (effect := _effect(name, group)) is not None},
        trained=Spread.over(trained),
        received=Spread.over(received) if len(received) == len(runs) else None,
        local=float(np.mean(alone)) if len(alone) == len(runs) else None,
        gains={moment: gain_over_local(runs, moment, known) for moment in MOMENTS},
        scalars=Spread.over([size[1] for size in sizes]),
        bytes=Spread.over([size[2] for size in sizes]),
        seeds=tuple(sorted(about.run_seed for about in runs)),
        unadapted=_unadapted(group),
    )


def _unadapted(group: Sequence[Judged]) -> str:
    missing, first = [], group[0][0]
    for defense in first.defenses:
        ways = answers_for(defense.answers, first.target, defense.options)
        if not ways:
            missing.append(f"none is known for {defense.name} on {first.target} uploads")
        elif not any(way.met_by(made.attack, made.options) for way in ways for made, _ in group):
            missing.append("; ".join(way.words for way in ways))
    return "; ".join(missing)


def _effect(name: str, group: Sequence[Judged]) -> Effect | None:
    """Return the reach of the most severe attack by a measure: one whose leak stands, then the one nearest to a claim.

    Nearness is that of p-values: values over different targets have no order.
    """
    first = group[0][0]
    if name == "representations" and first.upload.separate and not first.defenses:
        return Effect("sent one by one", None, None, None, stands=True, tested=True, unit="")
    tried = [verdict for _, verdict in group if verdict.overall(MEASURES[name][0]) is not None]
    clear = [verdict for verdict in tried if name == "property" and verdict.clear]
    if clear:
        return Effect(clear[0].attack, None, None, None, stands=True, tested=True, unit=clear[0].subject)
    tested = not any(verdict.silent_on(MEASURES[name]) for verdict in tried)
    results = [_of_attack(name, verdict, tested=tested) for verdict in tried]
    return min(results, key=lambda entry: entry[0])[1] if results else None


def _of_attack(name: str, verdict: Verdict, *, tested: bool) -> tuple[tuple[bool, float], Effect]:
    compared = [item for item in verdict.compared if item.measure in MEASURES[name]]
    drawn = verdict.overall(MEASURES[name][0])
    assert drawn is not None
    stands = any(items.stands for items in compared)
    vectors = any(entry.measure == "vectors" for entry in verdict.compared)
    units = {"membership": "", "property": verdict.question}
    low, high = drawn.ci95 or (None, None)
    nearest = min((one.p_value for one in compared if one.p_value is not None), default=1.0)
    unit = units.get(name, f"{verdict.target}, recovered" if vectors else verdict.target)
    return (not stands, nearest), Effect(verdict.attack, drawn.mean or 0.0, low, high, stands, tested, unit)


# ---------------------------------------------------------------- table


def frontier_rows(frontiers: Sequence[Frontier]) -> list[dict[str, object]]:
    """Return the rows of ``frontier.csv``: one a point."""
    return [
        {"frontier": number, "knowledge": card_cell(frontier.card)} | _row(point, best=best)
        for number, frontier in enumerate(frontiers, start=1)
        for point, best in zip(frontier.points, frontier.best, strict=True)
    ]


def card_cell(card: ThreatModel) -> str:
    """Return a threat model as a cell of a table."""
    return ";".join(f"{key}={value}" for key, value in card_words(card).items())


def gain_cells(gains: Mapping[str, Comparison | None]) -> dict[str, object]:
    """Return the columns on gains over local training by moment."""
    row: dict[str, object] = {}
    for moment, item in gains.items():
        name, (low, high) = f"gain_over_local_{moment}", (item and item.ci95) or (None, None)
        row |= {name: item and item.mean, f"{name}_low": low, f"{name}_high": high}
    return row


def _row(point: Point, *, best: bool) -> dict[str, object]:
    row: dict[str, object] = {name: getattr(point, name) for name in ("method", "target", "defense")}
    for name, effect in point.effects.items():
        row |= {name: effect.value, f"{name}_low": effect.low, f"{name}_high": effect.high}
        row |= {f"{name}_attack": effect.attack, f"{name}_found": effect.found}
    return row | {
        "upload": point.label,
        "seeds": ";".join(map(str, point.seeds)),
        "verdict_kind": point.kind,
        "dominated": not best,
        "accuracy_after_training": point.trained.mean,
        "accuracy_after_broadcast": None if point.received is None else point.received.mean,
        **gain_cells(point.gains),
        "upload_scalars_per_client_round": point.scalars.mean,
        "upload_bytes_per_client_round": point.bytes.mean,
        "adapted_attack_not_run": point.unadapted,
    }
