"""Leakage, accuracy and communication of uploads side by side, and which of them no other betters in all three.

An upload (method, its options, defenses with their strengths, kind of target) is one point. Its leakage is that of the
attack that gains most on it, at the stage of training where it does, the same for all seeds; of an attack with several
budgets the largest stands, because choosing by score would be choosing by the truth. Accuracy and communication are of
the same runs. Points are compared only under one knowledge card, on one data set divided one way.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpriv.pages.alike import NOT_THE_UPLOAD, upload_key, variant_key
from fedpriv.pages.labels import defense_label, local_work, method_label
from fedpriv.pages.upload_size import upload_size
from fedpriv.scoring.pareto import hypervolume, nondominated
from fedpriv.scoring.ranking import largest_budgets, title
from fedpriv.scoring.records import About, Kind, KnowledgeCard, Provenance, Verdict
from fedpriv.scoring.storage import AttackRecord, scored
from fedpriv.scoring.verdict import BADGES
from fedpriv.util.config import plain

REFERENCE = {"leakage_db": 20.0, "error": 1.0, "log10_scalars": 9.0}
"""The worst corner of the hypervolume, by which the objectives are divided: 20 dB beyond the floor (best blind guess),
no image classified correctly, 10^9 scalars per client and round on a logarithmic scale from 1. It never changes, so
hypervolumes of several reports compare."""

_CLEARLY_LESS = 0.99
"""What is sent settles an order only from 1 % less on: below that lie labels, ids and the scales of encoders."""

_TASK = ("dataset", "per_class", "image_size", "partition", "clients", "public", "strangers")
"""Settings under which alone accuracy and leakage compare."""


# ---------------------------------------------------------------- points


@dataclass(frozen=True)
class Spread:
    """A quantity over the seeds of one upload.

    Attributes:
        mean: over seeds.
        sd: over seeds (dividing by n - 1), None for one seed.
        low, high: for leakage of one seed its 95 % interval over clients; for several seeds the least and the greatest
            of them; None where there is neither.
    """

    mean: float
    sd: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Point:
    """One upload under one knowledge card.

    Attributes:
        label: what it is called in this set.
        method, target: registry names.
        defense: its label, ``none`` without any.
        attack: title of the attack that gains most, whose leakage this is.
        kind: the verdict on that attack; for several seeds the worst.
        leakage: advantage over the floor, dB.
        accuracy: share of all test images after local training, last round, in [0, 1].
        scalars: what a client uploads in a round, in numbers of 32 bits; see :func:`words_per_client`.
        bytes: the same in bytes, everything counted as it is encoded.
        seeds: of the runs that the attack was made on.
        attacked: how many seeds of the upload any attack was made on; more than ``seeds`` where some of the strongest
            failed or were not run.
        elsewhere: what the upload gives away under other cards, if it is worse there; else empty.
    """

    label: str
    method: str
    target: str
    defense: str
    attack: str
    kind: Kind
    leakage: Spread
    accuracy: Spread
    scalars: Spread
    bytes: Spread
    seeds: tuple[int, ...]
    attacked: int
    elsewhere: str = ""

    @property
    def marked(self) -> bool:
        """Whether the images of this chart do not tell all that the upload gives away."""
        return bool(self.elsewhere) or self.kind in ("some", "vectors", "classes")

    @property
    def seeds_told(self) -> str:
        """How many seeds the strongest attack has, and of how many that were attacked where it lacks some."""
        have = len(self.seeds)
        return str(have) if have == self.attacked else f"{have} of {self.attacked}"

    @property
    def objectives(self) -> tuple[float, float, float]:
        """(leakage, error, log10 numbers of 32 bits), each to be minimised, in units of :data:`REFERENCE`.

        A leakage below zero counts as zero: an attack that falls short of the floor says nothing about safety.
        """
        return (
            max(self.leakage.mean, 0.0) / REFERENCE["leakage_db"],
            (1 - self.accuracy.mean) / REFERENCE["error"],
            math.log10(max(self.scalars.mean, 1.0)) / REFERENCE["log10_scalars"],
        )


@dataclass(frozen=True)
class Frontier:
    """Points that may be compared with one another.

    Attributes:
        card: the knowledge card.
        task: settings that all points share.
        points: the undominated first, then by leakage.
        best: aligned with ``points``, whether none of the others betters it.
        settled: aligned, for a point that is bettered: whether some point that does so is better beyond the spread in an
            objective; True for the others.
        volume: hypervolume of the points, as a share of the box below the reference, in [0, 1].
    """

    card: KnowledgeCard
    task: Mapping[str, Any]
    points: tuple[Point, ...]
    best: tuple[bool, ...]
    settled: tuple[bool, ...]
    volume: float

    @property
    def marked(self) -> bool:
        """Whether some point is marked as giving away more than its images."""
        return any(point.marked for point in self.points)

    @property
    def partial(self) -> bool:
        """Whether the strongest attack on some upload lacks seeds that others have."""
        return any(len(point.seeds) < point.attacked for point in self.points)


Judge = Callable[[AttackRecord], Verdict]


def frontiers(attacks: Sequence[AttackRecord], verdict: Judge) -> tuple[Frontier, ...]:
    """Return one frontier for each knowledge card and task, in the order in which they come.

    Of an attack with several budgets the largest counts. Attacks whose directories record no accuracy or communication
    have no point.

    Args:
        attacks: scored.
        verdict: what the page says of one.

    Raises:
        UserError: when an attack was not scored.
    """
    shown = largest_budgets(attacks, scored, lambda attack: attack.about)
    groups: dict[str, list[AttackRecord]] = {}
    for attack in shown:
        if _located(attack):
            groups.setdefault(_group_key(attack.about), []).append(attack)
    return tuple(_frontier(members, shown, verdict) for members in groups.values())


def run_figures(about: About) -> tuple[float | None, float | None, float | None]:
    """Return pooled accuracy after training and after broadcast, and scalars per client and round; None where missing."""
    reached = [about.run_accuracy.get(moment) for moment in ("after_training", "after_broadcast")]
    trained, received = (None if one is None else one.pooled for one in reached)
    size = upload_size(about)
    return trained, received, None if size is None else size.scalars


def _located(attack: AttackRecord) -> bool:
    return upload_size(attack.about) is not None and run_figures(attack.about)[0] is not None


def _group_key(about: About) -> str:
    """Return what is the same for all points that may be compared."""
    return json.dumps([plain(about.knowledge), _task(about)], sort_keys=True, default=str)


def _task(about: About) -> dict[str, Any]:
    own = {name: plain(getattr(about.run, name, None)) for name in _TASK}
    return own | {"data set": about.dataset, "local work": local_work(about.run)}


def _frontier(members: Sequence[AttackRecord], everything: Sequence[AttackRecord], verdict: Judge) -> Frontier:
    uploads: dict[str, list[AttackRecord]] = {}
    for attack in members:
        uploads.setdefault(upload_key(attack.about), []).append(attack)
    found = [_strongest(own) for own in uploads.values()]
    labels = point_labels([own[0].about for own in found])
    beside = [_elsewhere(own[0], everything, verdict) for own in found]
    attacked = [len(_seeds(own)) for own in uploads.values()]
    kinds = [min((verdict(attack).kind for attack in own), key=_gravity) for own in found]
    points = [_point(*one) for one in zip(labels, found, kinds, beside, attacked, strict=True)]
    objectives = np.array([point.objectives for point in points])
    best = nondominated(objectives)
    settled = [best[i] or any(_clearly(other, point) for other in points) for i, point in enumerate(points)]
    order = sorted(range(len(points)), key=lambda i: (not best[i], points[i].leakage.mean, points[i].label))
    first = members[0]
    return Frontier(
        card=first.about.knowledge,
        task=_task(first.about) | {"dataset": first.about.dataset},
        points=tuple(points[i] for i in order),
        best=tuple(bool(best[i]) for i in order),
        settled=tuple(bool(settled[i]) for i in order),
        volume=hypervolume(objectives, (1.0, 1.0, 1.0)),
    )


def _clearly(one: Point, two: Point) -> bool:
    """Whether ``one`` betters ``two``, in some objective by more than both spreads.

    Accuracy of a single seed has no spread, so a difference in it alone settles nothing; nor does less than 1 % of what
    is sent.
    """
    if nondominated(np.array([one.objectives, two.objectives])).tolist() != [True, False]:
        return False
    leakage = two.leakage.mean > 0 and _ends(one.leakage)[1] < _ends(two.leakage)[0]
    accuracy = one.accuracy.low is not None and two.accuracy.low is not None
    accuracy = accuracy and _ends(one.accuracy)[0] > _ends(two.accuracy)[1]
    return leakage or accuracy or _ends(one.scalars)[1] < _CLEARLY_LESS * _ends(two.scalars)[0]


def _ends(spread: Spread) -> tuple[float, float]:
    if spread.low is None or spread.high is None:
        return spread.mean, spread.mean
    return spread.low, spread.high


def _gain(attack: AttackRecord) -> float:
    return scored(attack).advantage_db.mean


def _strongest(own: Sequence[AttackRecord]) -> list[AttackRecord]:
    """Return the attack that gains most on an upload, by its mean over the seeds that it has, one record a seed.

    One that lacks a seed counts all the same: the worst that was seen must not go because a cell failed.
    """
    by_attack: dict[str, dict[int, AttackRecord]] = {}
    for attack in own:
        by_attack.setdefault(variant_key(attack.about), {})[attack.about.run_seed] = attack
    candidates = [list(seeds.values()) for seeds in by_attack.values()]
    return max(candidates, key=lambda records: float(np.mean([_gain(attack) for attack in records])))


def _seeds(own: Sequence[AttackRecord]) -> tuple[int, ...]:
    return tuple(sorted({attack.about.run_seed for attack in own}))


def _gravity(kind: Kind) -> int:
    return list(BADGES).index(kind)


def _elsewhere(attack: AttackRecord, everything: Sequence[AttackRecord], verdict: Judge) -> str:
    """Return what attacks on the same upload under other cards found, where that is worse than the images say."""
    others = [
        (verdict(other).kind, other.about)
        for other in everything
        if other.about.knowledge != attack.about.knowledge and upload_key(other.about) == upload_key(attack.about)
    ]
    kind, about = min(others, key=lambda other: _gravity(other[0]), default=("none", attack.about))
    gives = {"leaks": "images", "some": "some of its images", "vectors": about.upload.vectors}
    if kind not in gives:
        return ""
    rounds = about.knowledge.rounds_seen
    seen = f" with {rounds} rounds seen" if rounds > 1 else ""
    return f"gives away {gives[kind]} to {about.attack}{seen}"


def _point(label: str, own: Sequence[AttackRecord], kind: Kind, elsewhere: str, attacked: int) -> Point:
    first = own[0].about
    ends = scored(own[0]).advantage_db.ci95 if len(own) == 1 else None
    sizes = [size for attack in own if (size := upload_size(attack.about)) is not None]
    return Point(
        label=label,
        method=first.method,
        target=first.target,
        defense=defense_label(first),
        attack=title(scored(own[0])),
        kind=kind,
        leakage=_spread([_gain(attack) for attack in own], ends),
        accuracy=_spread([attack.about.run_accuracy["after_training"].pooled for attack in own]),
        scalars=_spread([size.words for size in sizes]),
        bytes=_spread([size.bytes for size in sizes]),
        seeds=_seeds(own),
        attacked=attacked,
        elsewhere=elsewhere,
    )


def _spread(values: Sequence[float], interval: Sequence[float] | None = None) -> Spread:
    if len(values) > 1:
        return Spread(float(np.mean(values)), float(np.std(values, ddof=1)), min(values), max(values))
    return Spread(values[0], None, *(interval or (None, None)))


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
        keys = sorted({key for one in alike for key in one if any(one.get(key) != two.get(key) for two in alike)})
        told = ", ".join(f"{key.rpartition('.')[2].replace('_', ' ')} {flat[number].get(key)}" for key in keys)
        named.append(f"{label} ({told})" if told else label)
    return named


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, part in value.items():
        if isinstance(part, Mapping):
            found |= _flat(part, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = str(part)
    return found
