"""Accuracy without any exchange: what the same clients reach alone, beside which every federation stands."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedpriv.federation.run_directory import RunConfig, RunDirectory, dataset_title
from fedpriv.federation.summary import ReachedAccuracy
from fedpriv.pages.alike import NOT_THE_UPLOAD
from fedpriv.scoring.intervals import combine, compare
from fedpriv.scoring.records import About, Comparison
from fedpriv.util.config import plain

ALONE = "local"
"""The method without any exchange."""

Baselines = Mapping[tuple[str, int], ReachedAccuracy]
"""Accuracies of clients that exchange nothing, by who they are (:func:`same_clients`) and the seed."""

_MAY_DIFFER = (*NOT_THE_UPLOAD, "method", "options", "defenses")


def same_clients(run: RunConfig) -> str:
    """Return the key of runs, of any seed, in which the same clients train as much on the same images."""
    group = {name: value for name, value in plain(run).items() if name not in _MAY_DIFFER}
    return json.dumps(group | {"dataset": dataset_title(run)}, sort_keys=True, default=str)


def baselines(runs: Sequence[Path]) -> Baselines:
    """Return the accuracies of those of some finished runs that are of clients which exchange nothing."""
    opened = [RunDirectory.open(path) for path in runs]
    return {
        (same_clients(run.config), run.config.seed): run.summary.accuracy["after_training"]
        for run in opened
        if run.config.method == ALONE
    }


def beside(about: About, known: Baselines) -> ReachedAccuracy | None:
    """Return the accuracy of a run's clients without any exchange, of the same seed; None where no such run is known."""
    return None if about.run is None else known.get((same_clients(about.run), about.run.seed))


def gain_over_local(runs: Sequence[About], moment: str, known: Baselines) -> Comparison | None:
    """Return the accuracy of runs of one upload, one a seed, less that of the same clients without any exchange.

    Both after the last round, over all test images. The interval is over clients; seeds are combined
    (:func:`fedpriv.scoring.intervals.combine`).

    Args:
        runs: at least one.
        moment: ``after_training`` or ``after_broadcast``, of the runs; clients that exchange nothing have but one.
        known: accuracies without any exchange.

    Returns:
        The gain as a share of the test images; None where some seed lacks either run. It has no interval where a run
        did not record its clients one by one.
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
    """Return a gain in points of a hundred as a table shows it, with its interval; "–" for None.

    >>> gain_words(compare([0.1, 0.2, 0.1], [0, 1, 2], measure="accuracy", against="local", least=0.0))
    '+13.3 [-1.0, +27.7]'
    """
    if comparison is None or comparison.mean is None:
        return "–"
    interval = "" if comparison.ci95 is None else " [{:+.1f}, {:+.1f}]".format(*(100 * end for end in comparison.ci95))
    return f"{100 * comparison.mean:+.1f}{interval}"
