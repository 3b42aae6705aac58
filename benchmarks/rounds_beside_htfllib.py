"""CPU seconds of a federated round beside the reference library HtFLlib, and beside what the arithmetic takes at least.

    OMP_NUM_THREADS=1 python benchmarks/rounds_beside_htfllib.py --data DIR/cifar10-jpeg/train --htfllib DIR [--rounds 3]
        [--methods local,fedproto] [--json FILE]

The federation of ``accuracies.py``: the first 400 images of each CIFAR-10 class, 10 clients (Dirichlet 0.1), four-layer
CNN, batches of 10, one local epoch, all clients evaluated in every round. Both libraries run at once and take turns, a round
each, so that every ratio is of two rounds that followed one another; the first rounds are not counted. A round is everything
between two beginnings of local work: training, server, evaluation, what is written. fedpriv runs with a checkpoint and the
ledger of every round, as ``train`` does; messages are not stored. Figures are min-median-max over rounds.

The least that a round can take is its multiplications at the speed of this machine's matrix products, measured here, between
rounds. HtFLlib (https://github.com/TsingZ0/HtFLlib) is no dependency.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accuracies import LIKE, NAME, config_of, hand_over
from htfllib_peer import pause

from fedpriv.experiment.federation import prepare
from fedpriv.federation.client_part import ClientJob, ClientResult
from fedpriv.federation.engines.local import run_clients
from fedpriv.federation.operations import client_operations
from fedpriv.federation.prepared import Federation
from fedpriv.federation.rounds import run
from fedpriv.federation.run_directory import RunDirectory

METHODS = ("local", "lg-fedavg", "fedgh", "fedproto", "fedmrl", "fedkd")


class Side:
    """A library that runs a federation in a process of its own and waits at the beginning of every round."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=folder, env=environment, stdin=pipe, stdout=pipe, text=True)
        self._wait()

    def round(self) -> float:
        """Have it go through a round; return its CPU seconds."""
        before, stdin = self._at, self.process.stdin
        assert stdin is not None
        stdin.write("go\n")
        stdin.flush()
        self._wait()
        return self._at - before

    def _wait(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("AT "):
                self._at = float(line.removeprefix("AT "))
                return
        raise SystemExit(f"a library ended before its rounds did: {self.process.args}")


def ours(asked: dict[str, Any]) -> None:
    """Run fedpriv's federation, waiting at every round's beginning."""
    torch.set_num_threads(1)
    config = config_of(asked["method"], asked["data"], 0, asked["rounds"] + 2)
    config = replace(config, checkpoint_every=1)
    federation = prepare(config, torch.device("cpu"))

    def waiting(prepared: Federation, jobs: Sequence[ClientJob]) -> Iterator[ClientResult]:
        pause()
        return run_clients(prepared, jobs)

    with tempfile.TemporaryDirectory() as folder:
        run(federation, RunDirectory.create(Path(folder) / "run", config), waiting)


def least(method: str, data: str) -> float:
    """Return the operations, in 10^9, of a round's training and of one classification of all test images."""
    federation = prepare(config_of(method, data, 0, 1), torch.device("cpu"))
    found = client_operations(federation.method, federation.clients, federation.server)
    tested = sum(len(test) * each for test, each in zip(federation.tests, found.prediction_per_image, strict=True))
    return (sum(found.per_client_round) + tested) / 1e9


def peak() -> float:
    """Return this machine's speed at matrix products of one thread now, in 10^9 operations a CPU second."""
    side = 768
    left, right = torch.rand(side, side), torch.rand(side, side)
    left @ right
    began = time.process_time()
    for _ in range(40):
        left @ right
    return 40 * 2 * side**3 / 1e9 / (time.process_time() - began)


def main() -> None:
    """Measure every method and print one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="one folder of CIFAR-10 images per class")
    parser.add_argument("--htfllib", type=Path, help="a checkout of HtFLlib")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write what was measured there")
    parser.add_argument("--alone", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        ours(given.alone)
        return
    if not given.data or not given.htfllib:
        parser.error("--data and --htfllib are needed")
    torch.set_num_threads(1)
    if not (given.htfllib / "dataset" / NAME).is_dir():
        hand_over(given.data, given.htfllib)
    print("| method | fedpriv, CPU s | HtFLlib, CPU s | fedpriv / HtFLlib | GFLOP | at this machine's peak, CPU s |")
    print("| --- | --- | --- | --- | ---: | --- |")
    rows = [measured(method, given) for method in given.methods.split(",")]
    if given.json:
        given.json.write_text(json.dumps(rows, indent=2) + "\n")


def measured(method: str, given: argparse.Namespace) -> dict[str, Any]:
    """Measure one method, print its line and return its figures."""
    here = Path(__file__).resolve()
    own = {"method": method, "data": given.data, "rounds": given.rounds}
    asked = {"algorithm": method, "seed": 0, "dataset": NAME, "rounds": given.rounds + 2, "clients": 10, "paced": True}
    asked["options"] = {**LIKE.get(method, ({}, {}))[1]}
    peer = [sys.executable, str(here.with_name("htfllib_peer.py")), json.dumps(asked)]
    sides = (
        Side([sys.executable, str(here), "--alone", json.dumps(own)], Path.cwd()),
        Side(peer, given.htfllib / "system"),
    )
    try:
        for side in sides:
            side.round()
        speeds, pairs = [], []
        for _ in range(given.rounds):
            pairs.append([side.round() for side in sides])
            speeds.append(peak())
    finally:
        for side in sides:
            side.process.kill()
            side.process.wait()
    operations = least(method, given.data)
    row: dict[str, Any] = {
        "method": method,
        "fedpriv": [own for own, _ in pairs],
        "htfllib": [peer for _, peer in pairs],
    }
    row |= {"ratio": [own / peer for own, peer in pairs], "gflop": operations, "gflop_per_second": speeds}
    floor = [operations / speed for speed in speeds]
    shown = [_spread(row[name]) for name in ("fedpriv", "htfllib", "ratio")]
    print(f"| {' | '.join([method, *shown, f'{operations:.0f}', _spread(floor)])} |", flush=True)
    return row


def _spread(values: Sequence[float]) -> str:
    ordered = sorted(values)
    return "-".join(f"{value:.2f}" for value in (ordered[0], ordered[len(ordered) // 2], ordered[-1]))


if __name__ == "__main__":
    main()
