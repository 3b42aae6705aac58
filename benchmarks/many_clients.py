"""Peak memory of a run in which ten clients take part in a round, by the number of clients.

    python benchmarks/many_clients.py [--clients 100,1000] [--rounds 3] [--method fedproto] [--models cnn4]

Every count in a process of its own. Images are 4,000 embedded ones whatever the count, so what grows is what is kept of
clients. *states* is what all private models take together, which none of the processes should hold.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TAKING_PART = 10


def main() -> None:
    """Measure every count and print one line each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", default="100,1000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--method", default="fedproto")
    parser.add_argument("--models", default="cnn4")
    parser.add_argument("--alone", action="store_true", help="measure one count in this process and print JSON")
    arguments = parser.parse_args()
    if arguments.alone:
        print(json.dumps(alone(int(arguments.clients), arguments.rounds, arguments.method, arguments.models)))
        return
    print(f"{'clients':>7} {'prepared MiB':>12} {'peak MiB':>9} {'states MiB':>10} {'seconds / round':>15}")
    for clients in arguments.clients.split(","):
        asked = ["--clients", clients, "--rounds", str(arguments.rounds), "--method", arguments.method]
        command = [sys.executable, __file__, "--alone", *asked, "--models", arguments.models]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        print(
            f"{clients:>7} {found['prepared']:12.0f} {found['peak']:9.0f} {found['states']:10.0f} {found['seconds']:15.2f}",
            flush=True,
        )


def alone(clients: int, rounds: int, method: str, models: str) -> dict[str, float]:
    """Run one federation; return MiB of memory at its peak, before it began, and of all states, and seconds a round."""
    import torch

    from fedpriv.datasets.federated import PartitionOptions
    from fedpriv.experiment.federation import prepare
    from fedpriv.federation.engines.local import run_clients
    from fedpriv.federation.rounds import run
    from fedpriv.federation.run_directory import RunConfig, RunDirectory

    torch.set_num_threads(1)
    config = RunConfig(
        method=method,
        per_class=400,
        strangers=0.0,
        partition=PartitionOptions(name="iid", least_per_client=1),
        clients=clients,
        participation=TAKING_PART / clients,
        rounds=rounds,
        models=models,
        capture="none",
    )
    federation = prepare(config, torch.device("cpu"))
    states = clients * sum(value.nbytes for value in federation.initial_state(0).values())
    prepared = _peak()
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run(federation, RunDirectory.create(Path(folder) / "run", config), run_clients)
        seconds = (time.perf_counter() - began) / rounds
    return {"prepared": prepared, "peak": _peak(), "states": states / 2**20, "seconds": seconds}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
