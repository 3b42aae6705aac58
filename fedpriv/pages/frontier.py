"""Leakage, accuracy and communication of uploads side by side, and which of them no other betters in all of it.

An upload (method, its options, defenses with their strengths, kind of target) is one point: what the gravest of all attacks
on it reaches by each measure, as the page's verdicts have it, and accuracy and communication of the same runs. Points are
compared only under one knowledge card, on one data set divided one way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.federation.answer import answers_for
from fedpriv.pages.alike import NOT_THE_UPLOAD, Result, Verdicts, about_of, over_seeds, upload_key
from fedpriv.pages.baselines import Baselines, beside, gain_over_local
from fedpriv.pages.labels import defense_label, local_work, method_label
from fedpriv.pages.upload_size import upload_size
from fedpriv.scoring.pareto import Effect, Objectives, betters, undominated
from fedpriv.scoring.records import About, Comparison, Kind, Provenance, ThreatModel, Verdict
from fedpriv.scoring.verdict import BADGES
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
    """One upload under one knowledge card.

    Attributes:
        label: what it is called in this set.
        method, target: registry names.
        defense: its label, ``none`` without any.
        kind: the verdict on the upload: of all attacks the gravest.
        effects: by panel of :data:`MEASURES`; what was not attacked is missing.
        trained, received: share of all test images classified correctly in the last round, after local training and after
            the broadcast that follows; None where not recorded.
        local: ``trained`` of the same clients without any exchange; None where there is no such run of some seed.
        gains: by ``after_training`` and ``after_broadcast``: that accuracy less the one without any exchange, seed by seed
            and client by client; None where there is no such run of some seed.
        scalars: what a client uploads in a round, in numbers of 32 bits; see :class:`fedpriv.pages.upload_size.UploadSize`.
        bytes: the same in bytes, everything counted as it is encoded.
        seeds: of the attacked runs.
        unadapted: what adapted to its defenses was not run on it; empty where all was.
        elsewhere: what the upload gives away under other cards, if it is worse there; else empty.
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
    elsewhere: str = ""

    @property
    def notes(self) -> str:
        """Facts that the figures do not tell."""
        missing = f"adapted attack not run: {self.unadapted}" if self.unadapted else ""
        return "; ".join(filter(None, (missing, self.elsewhere)))

    @property
    def objectives(self) -> Objectives:
        """The figures that it is compared by."""
        costs = {"trained": -self.trained.mean, "scalars": self.scalars.mean}
        costs |= {} if self.received is None else {"received": -self.received.mean}
        return Objectives(self.effects, costs, may_better=not self.unadapted and self.kind != "untested")


@dataclass(frozen=True)
class Frontier:
    """Points that may be compared with one another.

    Attributes:
        card: the knowledge card, with the most rounds seen; attacks that need fewer use fewer.
        task: settings that all points share.
        points: the undominated first, then by label.
        best: aligned with ``points``, whether none of the others betters it.
        settled: aligned, for a point that is bettered: whether some point that does so is better beyond the spread in an
            objective; True for the others.
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


@dataclass(frozen=True)
class _Told:
    """One attack with the verdict over its seeds."""

    made: Provenance
    verdict: Verdict

    @property
    def gravity(self) -> int:
        return list(BADGES).index(self.verdict.kind)


def frontiers(
    results: Mapping[Path, Result], verdicts: Verdicts, known: Baselines | None = None
) -> tuple[Frontier, ...]:
    """Return one frontier for each knowledge card and task, in the order in which they come.

    Uploads of whose runs no attack records accuracy and communication have no point.

    Args:
        results: of attacks and inferences, by their folders; of several budgets the largest.
        verdicts: as :func:`fedpriv.pages.alike.judge_results` makes them of the whole page.
        known: accuracies without any exchange.
    """
    runs: dict[str, dict[int, About]] = {}
    for result in results.values():
        about = about_of(result)
        if isinstance(about, About) and upload_size(about) is not None and run_figures(about)[0] is not None:
            runs.setdefault(upload_key(about), {})[about.run_seed] = about
    lines = [_Told(about_of(results[folders[0]]), verdicts[folders]) for folders in over_seeds(results)]
    placed = [entry for entry in lines if upload_key(entry.made) in runs]
    groups: dict[str, list[_Told]] = {}
    for item in placed:
        groups.setdefault(_setting(item.made, placed), []).append(item)
    return tuple(_frontier(members, lines, runs, known or {}) for members in groups.values())


def run_figures(about: About) -> tuple[float | None, float | None, float | None]:
    """Return pooled accuracy after training and after broadcast, and scalars per client and round; None where missing."""
    reached = [about.run_accuracy.get(moment) for moment in MOMENTS]
    trained, received = (None if item is None else item.pooled for item in reached)
    size = upload_size(about)
    return trained, received, None if size is None else size.scalars


def _setting(made: Provenance, everything: Sequence[_Told]) -> str:
    """Return the key that attacks of one frontier share: task and grants, however many rounds each needs.

    An attack that takes no extractor stands with those on the same upload that take one and have all other grants.
    """
    grants = _grants(made)
    if made.knowledge.extractor == "none":
        beside = [_grants(item.made) for item in everything if upload_key(item.made) == upload_key(made)]
        grants = next((current for current in beside if current | {"extractor": "none"} == grants), grants)
    return json.dumps([grants, _task(made)], sort_keys=True, default=str)


def _grants(made: Provenance) -> dict[str, Any]:
    return {name: value for name, value in plain(made.knowledge).items() if name != "rounds_seen"}


def _task(made: Provenance) -> dict[str, Any]:
    group = {name: plain(getattr(made.run, name, None)) for name in _TASK}
    return group | {"data set": made.dataset, "local work": local_work(made.run)}


def _frontier(
    members: Sequence[_Told], everything: Sequence[_Told], runs: Mapping[str, Mapping[int, About]], known: Baselines
) -> Frontier:
    uploads: dict[str, list[_Told]] = {}
    for item in members:
        uploads.setdefault(upload_key(item.made), []).append(item)
    abouts = [list(runs[key].values()) for key in uploads]
    labels = point_labels([about[0] for about in abouts])
    points = [
        _point(label, upload, trained, _elsewhere(upload, everything), known)
        for label, upload, trained in zip(labels, uploads.values(), abouts, strict=True)
    ]
    best = undominated([point.objectives for point in points])
    settled = [best[i] or any(_clearly(other, point) for other in points) for i, point in enumerate(points)]
    order = sorted(range(len(points)), key=lambda i: (not best[i], points[i].label))
    widest = max(
        (member.made for member in members),
        key=lambda made: (made.knowledge.extractor != "none", made.knowledge.rounds_seen),
    )
    return Frontier(
        card=widest.knowledge,
        task=_task(widest) | {"dataset": widest.dataset},
        points=tuple(points[i] for i in order),
        best=tuple(best[i] for i in order),
        settled=tuple(settled[i] for i in order),
    )


def _clearly(point: Point, two: Point) -> bool:
    """True where ``point`` betters ``two``, in some objective by more than both spreads.

    Accuracy of a single seed has no spread, so a difference in it alone settles nothing; nor does less than 1 % of what
    is sent.
    """
    if not betters(point.objectives, two.objectives):
        return False
    pairs = [(point.effects[name], two.effects[name]) for name in point.effects.keys() & two.effects.keys()]
    leakage = any(a.known and b.known and (a.grade < b.grade or a.ends[1] < b.ends[0]) for a, b in pairs)
    moments = ((point.trained, two.trained), (point.received, two.received))
    accuracy = any(a and b and None not in (a.sd, b.sd) and a.ends[0] > b.ends[1] for a, b in moments)
    return leakage or accuracy or point.scalars.ends[1] < _CLEARLY_LESS * two.scalars.ends[0]


def _elsewhere(group: Sequence[_Told], everything: Sequence[_Told]) -> str:
    """Return the findings of attacks on the same upload under other cards, where those are graver than the ones here."""
    upload = upload_key(group[0].made)
    others = [items for items in everything if upload_key(items.made) == upload and items not in group]
    worst = min(others, key=lambda entry: entry.gravity, default=None)
    if worst is None or not worst.verdict.claims or worst.gravity >= min(item.gravity for item in group):
        return ""
    return f"{BADGES[worst.verdict.kind]} under another card, to {worst.verdict.attack}"


def _point(label: str, group: Sequence[_Told], runs: Sequence[About], elsewhere: str, known: Baselines) -> Point:
    first, sizes = runs[0], [size for about in runs if (size := upload_size(about)) is not None]
    reached = [run_figures(about) for about in runs]
    received = [value for _, value, _ in reached if value is not None]
    alone = [result.pooled for about in runs if (result := beside(about, known)) is not None]
    return Point(
        label=label,
        method=first.method,
        target=first.target,
        defense=defense_label(first),
        kind=min(group, key=lambda item: item.gravity).verdict.kind,
        effects={name: effect for name in MEASURES if (effect := _effect(name, group)) is not None},
        trained=Spread.over([value for value, _, _ in reached if value is not None]),
        received=Spread.over(received) if len(received) == len(runs) else None,
        local=float(np.mean(alone)) if len(alone) == len(runs) else None,
        gains={moment: gain_over_local(runs, moment, known) for moment in MOMENTS},
        scalars=Spread.over([size.words for size in sizes]),
        bytes=Spread.over([size.bytes for size in sizes]),
        seeds=tuple(sorted(about.run_seed for about in runs)),
        unadapted=_unadapted(group),
        elsewhere=elsewhere,
    )


def _unadapted(group: Sequence[_Told]) -> str:
    """Return the attacks that are adapted to the defenses of an upload and were not run on it, in words."""
    missing = []
    for defense in group[0].made.defenses:
        ways = answers_for(defense.answers, group[0].made.target, defense.options)
        if not ways:
            missing.append(f"none is known for {defense.name} on {group[0].made.target} uploads")
        elif not any(way.met_by(item.made.attack, item.made.options) for way in ways for item in group):
            missing.append("; ".join(way.words for way in ways))
    return "; ".join(missing)


def _effect(name: str, group: Sequence[_Told]) -> Effect | None:
    """Return the reach of the gravest attack by a measure: one whose leak stands, then the one nearest to a claim.

    Nearness is that of p-values: values over different targets have no order.
    """
    first = group[0].made
    if name == "representations" and first.upload.separate and not first.defenses:
        return Effect("sent one by one", None, None, None, stands=True, tested=True, unit="")
    tried = [item.verdict for item in group if item.verdict.overall(MEASURES[name][0]) is not None]
    clear = [verdict for verdict in tried if name == "property" and verdict.clear]
    if clear:
        return Effect(clear[0].attack, None, None, None, stands=True, tested=True, unit=clear[0].subject)
    results = [
        _of_attack(name, verdict, tested=not any(items.silent_on(MEASURES[name]) for items in tried))
        for verdict in tried
    ]
    return min(results, key=lambda entry: entry[0])[1] if results else None


def _of_attack(name: str, verdict: Verdict, *, tested: bool) -> tuple[tuple[bool, float], Effect]:
    """Return an attack's nearness to a claim by a measure, and its value."""
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


# ---------------------------------------------------------------- names


def point_labels(abouts: Sequence[Provenance], *, with_target: bool = True) -> list[str]:
    """Name uploads by method, kind of target where a method has several, defense, and by other settings that differ.

    Args:
        abouts: how results on each were made.
        with_target: False where the kind is told elsewhere.
    """
    runs = [plain(about.run) or {} for about in abouts]
    labels = [method_label(about) for about in abouts]
    guards = [defense_label(about) for about in abouts]
    targets: dict[str, set[str]] = {}
    for about in abouts:
        targets.setdefault(about.method, set()).add(about.target)
    labels = [
        f"{label}, {about.target}" if with_target and len(targets[about.method]) > 1 else label
        for label, about in zip(labels, abouts, strict=True)
    ]
    labels = [
        label if defense == "none" else f"{label} + {defense}" for label, defense in zip(labels, guards, strict=True)
    ]
    flat = [_flat({k: v for k, v in run.items() if k not in (*NOT_THE_UPLOAD, "defenses")}) for run in runs]
    named = []
    for number, label in enumerate(labels):
        target = abouts[number].target
        alike = [flat[i] for i, other in enumerate(labels) if other == label and abouts[i].target == target]
        keys = sorted({key for item in alike for key in item if any(item.get(key) != two.get(key) for two in alike)})
        text = ", ".join(f"{key.rpartition('.')[2].replace('_', ' ')} {flat[number].get(key)}" for key in keys)
        named.append(f"{label} ({text})" if text else label)
    return named


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    texts: dict[str, str] = {}
    for key, part in value.items():
        if isinstance(part, Mapping):
            texts |= _flat(part, f"{prefix}{key}.")
        else:
            texts[f"{prefix}{key}"] = str(part)
    return texts
