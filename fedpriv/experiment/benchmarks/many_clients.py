"""Memory of a federation by its number of clients, a tenth of which take part in a round."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from fedpriv.experiment.benchmarks.contract import QUICK, Asked, Case, Comparison, Goal, Side
from fedpriv.experiment.benchmarks.turns import MissingPeer, Turns

_WORK = "fedpriv.experiment.benchmarks.many_clients:peak"

FEWEST = 50
IMAGES = 2_000
"""Of all clients together, whatever their number, so that what grows is what is kept of clients."""


def _cases(asked: Asked) -> tuple[Case, ...]:
    def side(clients: int) -> Side:
        return Side(f"{clients} clients", _WORK, asked.settings(clients=clients, rounds=3 if asked.full else 1), True)

    return tuple(
        Case(
            name=f"{clients} clients",
            sides=(side(clients), side(FEWEST)),
            clock="MiB",
            faster=False,
            pairs=3 if asked.full else 1,
            goal=Goal(f"at most 1.1 of what {FEWEST} clients take", at_most=1.1) if clients == 500 else None,
            smaller="" if asked.full else QUICK,
        )
        for clients in ((100, 200, 500) if asked.full else (500,))
    )


COMPARISON = Comparison("memory from 50 to 500 clients of which a tenth take part in a round", _cases)


def peak(settings: dict[str, Any], turns: Turns) -> None:
    """Run a federation in this process and tell its memory at its peak in MiB, torch and images included."""
    import torch

    from fedpriv.datasets.federated import PartitionOptions
    from fedpriv.experiment.benchmarks.pictures import CLASSES, RANDOM
    from fedpriv.experiment.federation import prepare
    from fedpriv.federation.engines.local import run_clients
    from fedpriv.federation.rounds import run
    from fedpriv.federation.run_directory import RunConfig, RunDirectory

    torch.set_num_threads(1)
    config = RunConfig(
        method="fedproto",
        dataset=RANDOM,
        per_class=IMAGES // CLASSES,
        strangers=0.0,
        partition=PartitionOptions(name="iid", least_per_client=1),
        clients=settings["clients"],
        participation=0.1,
        rounds=settings["rounds"],
        models="small-cnn",
        seed=settings["seed"],
        capture="none",
    )
    for place, _ in enumerate(turns):
        directory = RunDirectory.create(Path(settings["scratch"]) / f"run-{place}", config)
        run(prepare(config, torch.device("cpu")), directory, run_clients)
        turns.instead(mib=_peak_memory())


def _peak_memory() -> float:
    """Return the memory of this process at its peak in MiB.

    Raises:
        MissingPeer: where the system does not tell it.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        told = dict(line.split(":", 1) for line in lines)
        return int(told["VmHWM"].split()[0]) / 1024
    except (OSError, KeyError):
        pass
    try:
        import resource
    except ImportError as error:
        raise MissingPeer("this system does not tell how much memory a process took") from error
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (1 << 20 if sys.platform == "darwin" else 1 << 10)
