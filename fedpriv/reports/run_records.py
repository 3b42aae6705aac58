"""A finished run as a report needs it: accuracy per client and round, traffic, and accuracy without any exchange."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from fedpriv.eval.answers import NOT_THE_UPLOAD
from fedpriv.eval.intervals import combine, compare
from fedpriv.eval.records import About, Comparison
from fedpriv.federation.run_directory import RunConfig, RunDirectory, dataset_title
from fedpriv.federation.summary import ReachedAccuracy, RoundLine, RunSummary
from fedpriv.reports.labels import partition_words
from fedpriv.util.config import plain
from fedpriv.util.errors import UserError

COUNTS, UNITS = ("paper", "full"), ("scalars", "bytes")
MOMENTS = {"after_training": "after training", "after_broadcast": "after broadcast"}
"""Moments of a round at which accuracy is taken, and their names."""


@dataclass(frozen=True)
class Accuracy:
    """Correctly classified test images of every client in every round, ``(rounds, clients)``."""

    correct: np.ndarray
    total: np.ndarray

    @property
    def per_client(self) -> np.ndarray:
        """``(rounds, clients)`` in [0, 1]."""
        return np.asarray(self.correct / self.total)

    @property
    def pooled(self) -> np.ndarray:
        """``(rounds,)``: over all test images of all clients, so a client counts as much as it has images."""
        return np.asarray(self.correct.sum(axis=1) / self.total.sum(axis=1))

    @property
    def mean(self) -> np.ndarray:
        """``(rounds,)``: mean over clients, every client counting the same."""
        return np.asarray(self.per_client.mean(axis=1))

    @property
    def spread(self) -> np.ndarray:
        """``(rounds,)``: standard deviation over clients (of these clients, so divided by their number)."""
        return np.asarray(self.per_client.std(axis=1))


@dataclass(frozen=True)
class RunRecord:
    """A finished run."""

    directory: RunDirectory = field(repr=False)
    label: str  # what it is called beside others
    config: RunConfig
    rounds: np.ndarray  # ``(rounds,)`` numbers, from 1, of those that were evaluated; the last of a run always is
    accuracy: Mapping[str, Accuracy]  # by moment, and by moment with ``_NAME`` for every further way to predict
    traffic: Mapping[tuple[str, str], np.ndarray]  # by count and unit ``(rounds,)`` since the round evaluated before
    summary: RunSummary = field(repr=False)

    @property
    def predictors(self) -> tuple[str, ...]:
        """Ways to predict: ``""``, the method's own, and the names of others."""
        first = "after_training"
        return tuple(name[len(first) + 1 :] for name in self.accuracy if name.startswith(first))

    def at(self, moment: str, predictor: str = "") -> Accuracy:
        """Return the accuracy at a moment of the round by a way to predict."""
        return self.accuracy[f"{moment}_{predictor}" if predictor else moment]

    def cumulative(self, count: str, unit: str) -> np.ndarray:
        """Return ``(rounds,)``: all that was sent up to and with each round, counted as in :data:`COUNTS`."""
        return np.asarray(np.cumsum(self.traffic[count, unit]))


def load_runs(directories: Sequence[Path]) -> tuple[RunRecord, ...]:
    """Read finished runs, each in full and checked."""
    opened = [RunDirectory.open(directory) for directory in directories]
    for run in opened:
        run.require_complete()
    summaries = [run.summary for run in opened]
    names = [
        " + ".join([run.config.method, *(defense.label for defense in summary.defenses)])
        for run, summary in zip(opened, summaries, strict=True)
    ]
    labels = run_labels(names, [run.path for run in opened])
    return tuple(_load(*item) for item in zip(opened, labels, summaries, strict=True))


def run_labels(methods: Sequence[str], paths: Sequence[Path]) -> tuple[str, ...]:
    """Name runs by method and defense; where several share these, by as much of the path as tells them apart too."""
    parts = [path.resolve().parts for path in paths]
    longest = max((len(part) for part in parts), default=1)
    labels = []
    for method, current in zip(methods, parts, strict=True):
        same = [part for name, part in zip(methods, parts, strict=True) if name == method]
        depth = next((n for n in range(1, longest) if len({p[-n:] for p in same}) == len(set(same))), longest)
        labels.append(method if len(same) == 1 else f"{method} ({'/'.join(current[-depth:])})")
    return tuple(labels)


def _load(run: RunDirectory, label: str, summary: RunSummary) -> RunRecord:
    path, lines, last = run.path / "metrics.jsonl", run.rounds(), run.config.rounds
    if [line.round for line in lines] != list(range(1, last + 1)):
        raise UserError(
            f"{path}: expected a line for each round from 1 to {last}, in order; got {len(lines)} lines; train the run again"
        )
    evaluated = [line for line in lines if line.clients]
    rounds = np.array([line.round for line in evaluated], dtype=np.int64)
    if not len(rounds) or rounds[-1] != last:
        raise UserError(f"{path}: the accuracy of the last round is missing; train the run again")
    try:
        accuracy = {n: _accuracy([line.clients[n] for line in evaluated]) for n in evaluated[0].clients}
        if not MOMENTS.keys() <= accuracy.keys():
            raise KeyError(" or ".join(MOMENTS))
    except (KeyError, ValueError) as error:
        raise UserError(
            f"{path}: accuracy of clients is missing or not counts ({error}); train the run again"
        ) from error
    starts = np.concatenate([[0], rounds[:-1]])
    traffic = {
        (count, unit): np.add.reduceat([_sent(line, count, unit) for line in lines], starts)
        for count in COUNTS
        for unit in UNITS
    }
    return RunRecord(run, label, run.config, rounds, accuracy, traffic, summary)


def _sent(line: RoundLine, count: str, unit: str) -> int:
    item = getattr(line.communication, count)
    return int(getattr(item, f"upload_{unit}") + getattr(item, f"broadcast_{unit}"))


def _accuracy(pairs: Sequence[Sequence[Sequence[int]]]) -> Accuracy:
    both = np.array(pairs, dtype=np.int64)
    if both.ndim != 3 or both.shape[2] != 2 or (both[..., 1] < 1).any():
        raise ValueError("expected [correct, total] of every client in every round")
    if (both[..., 0] < 0).any() or (both[..., 0] > both[..., 1]).any():
        raise ValueError("expected at most as many correct as there are")
    return Accuracy(both[..., 0], both[..., 1])


_NOT_SHOWN = ("method", "options", "dataset", "data_dir", "partition", "training", *NOT_THE_UPLOAD, "defenses")


def settings(config: RunConfig, images: str = "") -> dict[str, str]:
    """Return the choices made for a run, and what was done to its images, in words; those left at nothing are left out."""
    values: dict[str, Any] = {"data set": dataset_title(config), "images": images}
    values |= {"partition": partition_words(config.partition), "train fraction": config.partition.train_fraction}
    values |= {"least per client": config.partition.least_per_client}
    values |= {name: value for name, value in plain(config).items() if name not in _NOT_SHOWN}
    values |= {**plain(config.training), **config.options, "seed": config.seed}
    named = {name.replace("_", " "): value for name, value in values.items() if value is not None and value != ""}
    return {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in named.items()}


TEST_IMAGES = (
    *("data set", "per class", "image size", "partition", "train fraction", "clients", "public"),
    *("least per client", "auxiliary", "seed", "division seed"),
)
"""Settings that decide which images a client is tested on."""


ALONE = "local"  # the method without any exchange

Baselines = Mapping[tuple[str, int], ReachedAccuracy]
"""Accuracies of clients that exchange nothing, by who they are (:func:`same_clients` of any rate) and the seed."""

_MAY_DIFFER = (*NOT_THE_UPLOAD, "method", "options", "defenses")


def same_clients(run: RunConfig, *, any_rate: bool = False) -> str:
    """Return the key of runs, of any seed (and rate), in which the same clients train as much on the same images."""
    group = {name: value for name, value in plain(run).items() if name not in _MAY_DIFFER}
    if any_rate:
        group["training"] = {name: value for name, value in group["training"].items() if name != "learning_rate"}
    return json.dumps(group | {"dataset": dataset_title(run)}, sort_keys=True, default=str)


def baselines(runs: Sequence[Path]) -> Baselines:
    """Return the accuracies of finished runs of clients alone: of several rates the best over the seeds that all have."""
    rates: dict[str, dict[float, dict[int, ReachedAccuracy]]] = {}
    for run in map(RunDirectory.open, runs):
        if run.config.method == ALONE:
            of_rate = rates.setdefault(same_clients(run.config, any_rate=True), {})
            seeds = of_rate.setdefault(run.config.training.learning_rate, {})
            seeds[run.config.seed] = run.summary.accuracy["after_training"]
    found: dict[tuple[str, int], ReachedAccuracy] = {}
    for who, of_rate in rates.items():
        common = set.intersection(*map(set, of_rate.values()))
        levels = {rate: fmean(own[seed].pooled for seed in common or own) for rate, own in of_rate.items()}
        for _, rate in sorted((level, -rate) for rate, level in levels.items()):
            found |= {(who, seed): reached for seed, reached in of_rate[-rate].items()}
    return found


def beside(about: About, known: Baselines) -> ReachedAccuracy | None:
    """Return the accuracy of a run's clients without any exchange, of the same seed; None where no such run is known."""
    return None if about.run is None else known.get((same_clients(about.run, any_rate=True), about.run.seed))


def gain_over_local(runs: Sequence[About], moment: str, known: Baselines) -> Comparison | None:
    """Return the accuracy of runs of one upload, one a seed, less that of the same clients without any exchange.

    Both after the last round, as a share of all test images; the interval is over clients, seeds combined. None where a seed
    lacks either run; without an interval where a run did not record its clients one by one.
    """
    results = []
    for about in runs:
        current, alone = about.run_accuracy.get(moment), beside(about, known)
        if current is None or alone is None:
            return None
        results.append(_difference(current, alone))
    return combine(results)


def _difference(current: ReachedAccuracy, alone: ReachedAccuracy) -> Comparison:
    if not current.clients or len(current.clients) != len(alone.clients):
        facts = {"measure": "accuracy", "stratum": "all", "against": ALONE, "least": 0.0, "p_value": None, "ci95": None}
        return Comparison.model_validate(facts | {"mean": current.pooled - alone.pooled, "n": 1, "n_clients": 1})
    (right, total), (right_alone, _) = np.array([current.clients, alone.clients], dtype=np.float64).swapaxes(1, 2)
    values, clients = (right - right_alone) / total, range(len(total))
    return compare(values, clients, measure="accuracy", against=ALONE, least=0.0, weights=total)


def gain_words(comparison: Comparison | None) -> str:
    """Return a gain in points of a hundred as a table shows it: ``+13.3 [-1.0, +27.7]``; "–" for None."""
    if comparison is None or comparison.mean is None:
        return "–"
    interval = "" if comparison.ci95 is None else " [{:+.1f}, {:+.1f}]".format(*(100 * end for end in comparison.ci95))
    return f"{100 * comparison.mean:+.1f}{interval}"
