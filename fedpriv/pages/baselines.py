"""Accuracy without any exchange: what the same clients reach alone, beside which every federation stands."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedpriv.federation.run_directory import RunConfig, RunDirectory
from fedpriv.pages.alike import NOT_THE_UPLOAD
from fedpriv.scoring.records import About
from fedpriv.util.config import plain

ALONE = "local"
"""The method without any exchange."""

Baselines = Mapping[str, Sequence[float]]
"""Accuracies after training, one a seed, by what a run has in common with its baseline."""

_MAY_DIFFER = (*NOT_THE_UPLOAD, "method", "options", "defenses")


def baselines(runs: Sequence[Path]) -> Baselines:
    """Return the accuracies of those of some finished runs that are of clients which exchange nothing."""
    found: dict[str, list[float]] = {}
    for path in runs:
        run = RunDirectory.open(path)
        if run.config.method == ALONE:
            found.setdefault(same_clients(run.config), []).append(run.summary.accuracy["after_training"].pooled)
    return found


def local_accuracy(about: About, known: Baselines) -> float | None:
    """Return the mean over seeds of what a run's clients reach without any exchange; None where no such run is known."""
    reached = () if about.run is None else known.get(same_clients(about.run), ())
    return sum(reached) / len(reached) if reached else None


def same_clients(run: RunConfig) -> str:
    """Return the key of runs, of any seed, in which the same clients train as much on the same images."""
    own = {name: value for name, value in plain(run).items() if name not in _MAY_DIFFER}
    return json.dumps(own, sort_keys=True, default=str)
