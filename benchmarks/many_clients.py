"""Peak memory of a run, CPU seconds and MB written of a round, by the number of clients.

    python benchmarks/many_clients.py [--clients 100,1000] [--rounds 3] [--method fedproto] [--models cnn4]
        [--participation 0.1] [--evaluate-every 1]

Ten clients take part in a round, or a share of all. CPU seconds and MB are of the second round to the last but one: every
client's first state is written once, in the first; the last is always evaluated.

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
from collections.abc import Iterator, Sequence
from pathlib import Path

TAKING_PART = 10


def main() -> None:
    """Measure every count and print one line each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", default="100,1000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--method", default="fedproto")
    parser.add_argument("--models", default="cnn4")
    parser.add_argument("--participation", type=float, help="share of the clients in a round (default: ten clients)")
    parser.add_argument("--evaluate-every", type=int, default=1)
    parser.add_argument("--alone", action="store_true", help="measure one count in this process and print JSON")
    arguments = parser.parse_args()
    if arguments.alone:
        print(json.dumps(alone(arguments)))
        return
    print(
        f"{'clients':>7} {'prepared MiB':>12} {'peak MiB':>9} {'states MiB':>10} {'CPU s / round':>13} {'MB / round':>10}"
    )
    for clients in arguments.clients.split(","):
        asked = ["--clients", clients, "--rounds", str(arguments.rounds), "--method", arguments.method]
        asked += ["--models", arguments.models, "--evaluate-every", str(arguments.evaluate_every)]
        asked += [] if arguments.participation is None else ["--participation", str(arguments.participation)]
        command = [sys.executable, __file__, "--alone", *asked]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        row = (found[name] for name in ("prepared", "peak", "states", "seconds", "written"))
        print("{:>7} {:12.0f} {:9.0f} {:10.0f} {:13.2f} {:10.1f}".format(clients, *row), flush=True)


def alone(asked: argparse.Namespace) -> dict[str, float]:
    """Run one federation; return MiB of memory at its peak, before it began, and of all states; CPU s and MB a round."""
    import torch

    from fedpriv.datasets.partition import PartitionOptions
    from fedpriv.federation.prepared import Federation
    from fedpriv.federation.rounds import ClientJob, ClientResult, run, run_clients
    from fedpriv.federation.run_directory import RunConfig, RunDirectory
    from fedpriv.sources.run import prepare

    torch.set_num_threads(1)
    clients = int(asked.clients)
    config = RunConfig(
        method=asked.method,
        per_class=400,
        auxiliary=0.0,
        partition=PartitionOptions(name="iid", least_per_client=1),
        clients=clients,
        participation=asked.participation or TAKING_PART / clients,
        rounds=asked.rounds,
        models=asked.models,
        evaluate_every=asked.evaluate_every,
        capture="none",
    )
    federation = prepare(config, torch.device("cpu"))
    states = clients * sum(value.nbytes for value in federation.initial_state(0).values())
    prepared, begun = _peak(), []

    def timed(prepared: Federation, jobs: Sequence[ClientJob]) -> Iterator[ClientResult]:
        begun.append((time.process_time(), _written()))
        return run_clients(prepared, jobs)

    with tempfile.TemporaryDirectory() as folder:
        run(federation, RunDirectory.create(Path(folder) / "run", config), timed)
    rounds = max(1, len(begun) - 2)
    seconds, written = ((last - first) / rounds for first, last in zip(begun[1], begun[-1], strict=True))
    return {
        **{"prepared": prepared, "peak": _peak(), "states": states / 2**20},
        **{"seconds": seconds, "written": written / 1e6},
    }


def _written() -> int:
    """Return the bytes that this process had written to files so far, by Linux's count."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("wchar:")).split()[1])


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
