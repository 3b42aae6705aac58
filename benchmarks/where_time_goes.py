"""Kernels that a federated round, or a search by deep image priors, spends its time in: one thread, by torch's profiler.

    python benchmarks/where_time_goes.py local
    python benchmarks/where_time_goes.py dip

The work is that of ``fedpriv benchmark``: the second round of ten clients with a 4-layer CNN on random images, or a hundred
steps of eight targets. Shares are of the processor's time in kernels; what Python takes between them is in no kernel.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from fedpriv.attacks.invert.inversion import DipInversion
from fedpriv.attacks.observation import Knowledge, KnowledgeCard, Observation
from fedpriv.attacks.read.target_features import list_targets
from fedpriv.experiment.benchmarks.federated_round import config_of
from fedpriv.experiment.benchmarks.many_searches import _problem
from fedpriv.experiment.federation import prepare
from fedpriv.federation.client_part import ClientJob, ClientResult
from fedpriv.federation.engines.local import run_clients
from fedpriv.federation.prepared import Federation
from fedpriv.federation.rounds import run
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.wire.payloads import Representations

CPU = torch.device("cpu")
STEPS, TARGETS, LINES = 100, 8, 12
LIBRARY = ("aten::", "mkldnn::")


class Over(Exception):
    """The round that is looked at has ended."""


def of_round(method: str, profiler: profile) -> None:
    """Look at the second round of a federation."""
    config = config_of({"images": None, "method": method, "per_class": 400, "seed": 0, "device": "cpu"})
    federation, begun = prepare(config, CPU), 0

    def engine(federation: Federation, jobs: Sequence[ClientJob]) -> Iterator[ClientResult]:
        nonlocal begun
        begun += 1
        if begun == 2:
            profiler.start()
        elif begun == 3:
            profiler.stop()
            raise Over
        yield from run_clients(federation, jobs)

    with tempfile.TemporaryDirectory() as folder:
        try:
            run(federation, RunDirectory.create(Path(folder) / "run", config), engine)
        except Over:
            return


def of_search(profiler: profile) -> None:
    """Look at steps of a search for several targets side by side."""
    model, labels, features = _problem({"images": None, "targets": TARGETS, "seed": 0}, CPU)
    seen = (Observation(0, 0, (Representations(features, labels),), ()),)
    knowledge = Knowledge(KnowledgeCard(), (3, 32, 32), model.head.out_features, extractors={0: model.represent})

    def search(steps: int) -> None:
        attack = DipInversion(iterations=steps, tolerance=0.0, patience=steps + 1)
        attack(seen, knowledge, list_targets(seen, "representation"), seed=0, device=CPU, chunk_rows=TARGETS)

    search(3)
    profiler.start()
    search(STEPS)
    profiler.stop()


def main(what: str) -> None:
    """Print the kernels that take longest."""
    torch.set_num_threads(1)
    profiler = profile(activities=[ProfilerActivity.CPU])
    if what == "dip":
        of_search(profiler)
    else:
        of_round(what, profiler)
    everything = profiler.key_averages()
    kernels = [one for one in everything if one.key.startswith(LIBRARY)]
    total = sum(one.self_cpu_time_total for one in kernels)
    steps = STEPS if what == "dip" else 1
    for one in sorted(kernels, key=lambda one: -one.self_cpu_time_total)[:LINES]:
        spent = one.self_cpu_time_total
        print(f"{spent / total:5.1%}  {spent / steps / 1000:6.2f} ms  {one.count:6,} x {one.key.split('::')[1]}")
    rest = sum(one.self_cpu_time_total for one in everything) - total
    unit = "a step" if what == "dip" else "the round"
    print(
        f"{unit}: {total / steps / 1000:.1f} ms in kernels of the library, {rest / steps / 1000:.1f} ms in what calls them"
    )


if __name__ == "__main__":
    main(sys.argv[1])
