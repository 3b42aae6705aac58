"""Leakage, accuracy and communication of uploads side by side, which of them no other dominates, and which to prefer.

An upload (method, its options, defenses with their strengths, kind of target) is one point: its most severe answer on each
endpoint, and accuracy and traffic of the same runs. Points are compared only on one data set partitioned one way; theirs is
a partial order, because leaks of different things have no common scale.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

from fedpriv.eval.answers import Answer, Result, about_of, upload_key
from fedpriv.eval.endpoints import ENDPOINTS, Endpoint
from fedpriv.eval.records import About, Comparison, Provenance
from fedpriv.eval.words import SIGNS, cell, most_severe, percent, threat_title
from fedpriv.reports.labels import defense_label, local_work, point_labels, upload_size
from fedpriv.reports.page import quantity
from fedpriv.reports.privacy import unadapted
from fedpriv.reports.run_records import MOMENTS, Baselines, beside, gain_over_local
from fedpriv.util.config import plain

K = TypeVar("K")

_TASK = ("dataset", "per_class", "image_size", "partition", "clients", "public", "auxiliary")
"""Settings under which alone accuracy and leakage compare."""


class Spread(NamedTuple):
    """A quantity over the seeds of one upload: mean, least and greatest."""

    mean: float
    low: float
    high: float

    @classmethod
    def over(cls, values: Sequence[float]) -> Spread:
        """Return the spread of the values of all seeds."""
        return cls(fmean(values), min(values), max(values))


@dataclass(frozen=True)
class Point:
    """One upload."""

    label: str  # what it is called in this set
    method: str  # registry name
    target: str  # kind of upload
    defense: str  # its label, ``none`` without any
    answers: Mapping[Endpoint, Answer]  # the most severe on each endpoint, over threat models and estimands
    trained: Spread  # share of all test images classified correctly in the last round, after local training
    received: Spread | None  # the same after the broadcast that follows; None where not recorded
    local: float | None  # ``trained`` of the same clients without any exchange; None where some seed has no such run
    gains: Mapping[str, Comparison | None]  # moment -> accuracy less that without exchange, by seed and client
    scalars: Spread  # what a client uploads in a round, in numbers of 32 bits
    bytes: Spread  # the same in bytes, everything counted as it is encoded
    seeds: tuple[int, ...]  # of the attacked runs
    unadapted: str = ""  # what adapted to its defenses was not run on it; empty where all was

    @property
    def worst(self) -> Answer | None:
        """The most severe answer."""
        return most_severe([*self.answers.values()])

    @property
    def costs(self) -> tuple[float, ...]:
        """Other quantities that it is compared by, less being better."""
        received = () if self.received is None else (-self.received.mean,)
        return (-self.trained.mean, self.scalars.mean, *received)


def dominates(one: Point, two: Point) -> bool:
    """Return true where ``one`` is at least as good in everything that is known of either, and better in something.

    What is inconclusive, was not asked, or not by the attack adapted to a defense, is not known to be as good as anything.
    """
    if one.unadapted or len(one.costs) != len(two.costs):
        return False
    orders = [_order(one.answers.get(name), two.answers.get(name)) for name in one.answers.keys() | two.answers.keys()]
    orders += [(a > b) - (a < b) for a, b in zip(one.costs, two.costs, strict=True)]
    return all(order is not None and order <= 0 for order in orders) and any((order or 0) < 0 for order in orders)


def _order(answer: Answer | None, two: Answer | None) -> int | None:
    """Return -1 where the first answer leaks less, 0 for as much, 1 for more; None where that is not known."""
    grade, other = _grade(answer), _grade(two)
    if grade is None or other is None:
        return 0 if grade == 0 else None
    if grade == other == 1 and answer is not None and two is not None:
        a, b = answer.advantage or 0.0, two.advantage or 0.0
        return (a > b) - (a < b) if answer.target == two.target else None  # other targets have no common scale
    return (grade > other) - (grade < other)


def _grade(answer: Answer | None) -> int | None:
    """Return 0 for no leak, 1 for one, 2 for what is sent in clear; None where it is inconclusive or was not asked."""
    if answer is None or answer.verdict not in ("leak", "no leak detected"):
        return None
    return 0 if answer.verdict != "leak" else 1 + (answer.named is not None)


@dataclass(frozen=True)
class Frontier:
    """Points that may be compared with one another, the undominated (``best``) first, then by label; and their task."""

    task: Mapping[str, Any]
    points: tuple[Point, ...]
    best: tuple[bool, ...]

    @property
    def measured(self) -> tuple[Endpoint, ...]:
        """The endpoints on which some upload has an advantage to be drawn."""
        drawn = {name for point in self.points for name, a in point.answers.items() if a.advantage is not None}
        return tuple(name for name in ENDPOINTS if name in drawn)

    @property
    def locals(self) -> tuple[float, ...]:
        """Accuracies without any exchange, beside which some points stand."""
        return tuple(sorted({point.local for point in self.points if point.local is not None}))


def frontiers(
    results: Mapping[K, Result], answers: Sequence[Answer], known: Baselines | None = None
) -> tuple[Frontier, ...]:
    """Return one frontier for each task; ``known`` are accuracies without any exchange.

    Uploads of whose runs no attack records accuracy and communication have no point.
    """
    runs: dict[str, dict[int, About]] = {}
    tried: dict[str, list[Provenance]] = {}
    for about in map(about_of, results.values()):
        tried.setdefault(upload_key(about), []).append(about)
        if isinstance(about, About) and upload_size(about) is not None and "after_training" in about.run_accuracy:
            runs.setdefault(upload_key(about), {})[about.run_seed] = about
    tasks: dict[str, list[str]] = {}
    for key, seeds in runs.items():
        tasks.setdefault(json.dumps(_task(next(iter(seeds.values()))), sort_keys=True, default=str), []).append(key)
    return tuple(_frontier({key: runs[key] for key in keys}, tried, answers, known or {}) for keys in tasks.values())


def _task(made: Provenance) -> dict[str, Any]:
    group = {name: plain(getattr(made.run, name, None)) for name in _TASK}
    return group | {"dataset": made.dataset, "local work": local_work(made.run)}


def _frontier(
    uploads: Mapping[str, Mapping[int, About]],
    tried: Mapping[str, Sequence[Provenance]],
    answers: Sequence[Answer],
    known: Baselines,
) -> Frontier:
    abouts = {key: list(seeds.values()) for key, seeds in uploads.items()}
    labels = point_labels([runs[0] for runs in abouts.values()])
    points = []
    for label, (key, runs) in zip(labels, abouts.items(), strict=True):
        own = [one for one in answers if one.upload == key and one.verdict != "not asked"]
        missing = "; ".join(filter(None, (unadapted(one, runs[0].target, tried[key]) for one in runs[0].defenses)))
        points.append(_point(label, own, runs, missing, known))
    best = [not any(dominates(two, one) for two in points) for one in points]
    order = sorted(range(len(points)), key=lambda i: (not best[i], points[i].label))
    task = _task(next(iter(abouts.values()))[0])
    return Frontier(task, tuple(points[i] for i in order), tuple(best[i] for i in order))


def _point(label: str, answers: Sequence[Answer], runs: Sequence[About], unadapted: str, known: Baselines) -> Point:
    first, sizes = runs[0], [size for about in runs if (size := upload_size(about)) is not None]
    trained, received = (
        [about.run_accuracy[name].pooled for about in runs if name in about.run_accuracy] for name in MOMENTS
    )
    alone = [result.pooled for about in runs if (result := beside(about, known)) is not None]
    found = {name: most_severe([one for one in answers if one.endpoint == name]) for name in ENDPOINTS}
    return Point(
        label=label,
        method=first.method,
        target=first.target,
        defense=defense_label(first),
        answers={name: answer for name, answer in found.items() if answer is not None},
        trained=Spread.over(trained),
        received=Spread.over(received) if len(received) == len(runs) else None,
        local=fmean(alone) if len(alone) == len(runs) else None,
        gains={moment: gain_over_local(runs, moment, known) for moment in MOMENTS},
        scalars=Spread.over([size[1] for size in sizes]),
        bytes=Spread.over([size[2] for size in sizes]),
        seeds=tuple(sorted(about.run_seed for about in runs)),
        unadapted=unadapted,
    )


_AS_ACCURATE = 0.02
"""Difference of accuracies that a choice does not turn on."""


def recommended(frontier: Frontier) -> Point:
    """Return the point whose most severe answer is the least grave, with the fewest leaks, then the fewest inconclusive.

    Of several that are as accurate as the best, but for :data:`_AS_ACCURATE`, the one that sends the least.
    """
    there = [point for point, best in zip(frontier.points, frontier.best, strict=True) if best]
    order = ["no leak detected", "inconclusive", "leak"]

    def key(point: Point) -> tuple[float, int, int]:
        verdicts = [answer.verdict for answer in point.answers.values()]
        worst = max(map(order.index, verdicts), default=1)
        return worst, verdicts.count("leak"), verdicts.count("inconclusive")

    least = min(map(key, there))
    alike = [point for point in there if key(point) == least]
    highest = max(point.trained.mean for point in alike)
    accurate = [point for point in alike if point.trained.mean >= highest - _AS_ACCURATE]
    return min(accurate, key=lambda point: (point.bytes.mean, -point.trained.mean))


def recommendation(frontier: Frontier) -> tuple[str, str]:
    """Return which upload to prefer in a sentence, and its caveat."""
    point = recommended(frontier)
    worst = point.worst
    facts = f"accuracy {percent(point.trained.mean)}, {quantity(point.bytes.mean, 'B')} a client and round"
    if worst is None:
        return f"Of these, prefer {point.label}: {facts}.", "Nothing was asked of it."
    found = f"{worst.endpoint}, {threat_title(worst.threat, point.target)}: {SIGNS[worst.verdict][1]} {cell(worst)}"
    open_ = [name for name, answer in point.answers.items() if answer.verdict == "inconclusive"]
    caveats = [
        "It leaks all the same." if worst.verdict == "leak" else "",
        f"The attack adapted to its defense was not run: {point.unadapted}." if point.unadapted else "",
        f"Inconclusive: {', '.join(open_)}." if open_ else "",
    ]
    caveat = next(filter(None, caveats), "The attacks that were run bound themselves; they prove nothing safe.")
    if point.local is not None and point.local >= point.trained.mean:
        caveat += f" Clients alone reach {percent(point.local)}: taking part gained nothing."
    return f"Of these, prefer {point.label}: worst endpoint {found}; {facts}.", caveat


def frontier_items(frontiers: Sequence[Frontier]) -> Iterator[dict[str, Any]]:
    """Yield what rows of ``frontier.csv`` are made of: one a point."""
    for number, frontier in enumerate(frontiers, start=1):
        for point, best in zip(frontier.points, frontier.best, strict=True):
            seeds = ";".join(map(str, point.seeds))
            yield {"frontier": number, "point": point, "seeds": seeds, "dominated": not best}
