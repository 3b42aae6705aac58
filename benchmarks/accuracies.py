"""Accuracy of every method on one division of CIFAR-10, over seeds, beside the reference library HtFLlib.

    python benchmarks/accuracies.py --data DIR/cifar10-jpeg/train --htfllib DIR --log accuracies.jsonl
    python benchmarks/accuracies.py --log accuracies.jsonl --table

The first 400 images of each class, all divided among 10 clients (Dirichlet 0.1, the division of seed 0), four-layer CNN, SGD
0.01, batches of 10 in stored order without tails, one local epoch, 10 rounds; seeds vary weights and server. Accuracy
is pooled over the clients' test images right after the last broadcast, which is when HtFLlib takes it. A line of the log is
one method under one seed by either; what is there already is not run again. HtFLlib
(https://github.com/TsingZ0/HtFLlib) is no dependency: without ``--htfllib`` only fedpriv is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from htfllib_peer import SERVERS
from rich.progress import track

from fedpriv.datasets.partition import PartitionOptions
from fedpriv.eval.intervals import compare
from fedpriv.federation.method import LocalTraining, Method
from fedpriv.federation.prepared import load_data
from fedpriv.federation.rounds import run, run_clients
from fedpriv.federation.run_directory import RunConfig, RunDirectory
from fedpriv.methods import METHODS
from fedpriv.sources.run import prepare

LIKE = {
    "fedmrl": ({"narrowing": "htfllib", "small_width": 128}, {}),
    "fedproto": ({"weight": 10.0}, {"lamda": 10.0}),
    "fml": ({"alpha": 0.5, "beta": 0.5}, {"alpha": 0.5, "beta": 0.5}),
}
"""Options that make both the same method: fedpriv's, HtFLlib's."""

NEAR = 0.02
"""A difference that both libraries' own repetitions reach."""

NAME = "fedpriv-cifar10"


def config_of(method: str, data: str, seed: int, rounds: int) -> RunConfig:
    """Return the run of a method under a seed."""
    found: Method = METHODS.load(method)
    return RunConfig(
        **{"method": method, "options": LIKE.get(method, ({}, {}))[0], "rounds": rounds, "seed": seed},
        **{"capture": "none", "checkpoint_every": rounds, "division_seed": 0, "per_class": 400, "auxiliary": 0.0},
        **{"dataset": "folder", "data_dir": data, "models": "cnn4", "public": 60 if found.needs_public else 0},
        partition=PartitionOptions(alpha=0.1),
        training=LocalTraining(drop_last=True, shuffle=False),
    )


def by_fedpriv(method: str, data: str, seed: int, rounds: int) -> float:
    """Return the accuracy of a method."""
    config = config_of(method, data, seed, rounds)
    federation = prepare(config, torch.device("cpu"))
    with tempfile.TemporaryDirectory() as folder:
        summary = run(federation, RunDirectory.create(Path(folder) / "run", config), run_clients)
    return summary.accuracy["after_broadcast"].pooled


def by_htfllib(method: str, folder: Path, seed: int, rounds: int) -> float:
    """Return the accuracy of a method of HtFLlib; NaN where it did not come to its end."""
    asked = {"algorithm": method, "seed": seed, "dataset": NAME, "rounds": rounds, "clients": 10}
    asked["options"] = LIKE.get(method, ({}, {}))[1]
    command = [sys.executable, str(Path(__file__).with_name("htfllib_peer.py").resolve()), json.dumps(asked)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, cwd=folder / "system", env=environment, capture_output=True, text=True)
    told = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not told:
        print(f"HtFLlib's {method}, seed {seed}: {(done.stderr.strip().splitlines() or ['?'])[-1]}", file=sys.stderr)
        return float("nan")
    return float(json.loads(told[0].removeprefix("RESULT "))["accuracy"])


def hand_over(data: str, folder: Path) -> None:
    """Write the division in HtFLlib's layout, images in its range [-1, 1]."""
    federated, _ = load_data(config_of("local", data, 0, 1))
    for client in range(10):
        for part, samples in (("train", federated.train(client)), ("test", federated.test(client))):
            images, labels = samples.images.float(), samples.labels.numpy()
            scaled = ((images / 255 if images.max() > 1 else images) - 0.5) / 0.5
            place = folder / "dataset" / NAME / part
            place.mkdir(parents=True, exist_ok=True)
            np.savez_compressed(place / f"{client}.npz", data=np.array({"x": scaled.numpy(), "y": labels}))


def wanted(given: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """Yield (library, method, seed) in the order in which they are run: a seed of everything first."""
    for seed in given.seeds:
        for method in given.methods:
            yield "fedpriv", method, seed
            if given.htfllib is not None and method in SERVERS:
                yield "HtFLlib", method, seed


def read(log: Path) -> dict[tuple[str, str, int], float]:
    """Return what is known."""
    lines = log.read_text().splitlines() if log.is_file() else []
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return {(row["library"], row["method"], row["seed"]): row["accuracy"] for row in rows}


def table(known: dict[tuple[str, str, int], float]) -> None:
    """Print a line a method: both means, and the difference with its interval over seeds."""
    print("| method | seeds | fedpriv | HtFLlib | difference [95 %] | meets ±0.02 |")
    print("| --- | ---: | ---: | ---: | ---: | --- |")
    for method in dict.fromkeys(method for _, method, _ in known):
        ours = {seed: value for (library, name, seed), value in known.items() if (library, name) == ("fedpriv", method)}
        theirs = {s: value for (library, name, s), value in known.items() if (library, name) == ("HtFLlib", method)}
        both = sorted(seed for seed in set(ours) & set(theirs) if not np.isnan([ours[seed], theirs[seed]]).any())
        diverged = sum(np.isnan(value) for value in theirs.values())
        line = [method, str(len(ours)), f"{np.mean(list(ours.values())):.4f}" if ours else "–"]
        if not both:
            print(
                f"| {' | '.join([*line, f'not finite ({diverged} of {len(theirs)})' if diverged else '–', '–', '–'])} |"
            )
            continue
        gaps = [ours[seed] - theirs[seed] for seed in both]
        found = compare(gaps, range(len(gaps)), measure="images", against="", least=0.0)
        ends = found.ci95
        shown = f"{np.mean(gaps):+.4f}" + (f" [{ends[0]:+.4f}, {ends[1]:+.4f}]" if ends else "")
        meets = "–" if ends is None else "yes" if ends[0] <= NEAR and ends[1] >= -NEAR else "no"
        print(f"| {' | '.join([*line, f'{np.mean([theirs[seed] for seed in both]):.4f}', shown, meets])} |")


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="one folder of CIFAR-10 images per class")
    parser.add_argument("--htfllib", type=Path, help="a checkout of HtFLlib")
    parser.add_argument("--methods", type=lambda text: text.split(","), default=list(METHODS))
    parser.add_argument("--seeds", type=lambda text: [int(one) for one in text.split(",")], default=list(range(5)))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="only print what is known")
    given = parser.parse_args()
    torch.set_num_threads(1)
    known = read(given.log)
    missing = [] if given.table else [one for one in wanted(given) if one not in known]
    if missing and given.data is None:
        parser.error("--data is missing")
    if missing and given.htfllib is not None:
        hand_over(given.data, given.htfllib)
    for library, method, seed in track(missing, "federations"):
        began = time.process_time()
        if library == "fedpriv":
            accuracy = by_fedpriv(method, given.data, seed, given.rounds)
        else:
            accuracy = by_htfllib(method, given.htfllib, seed, given.rounds)
        row = {"library": library, "method": method, "seed": seed, "accuracy": accuracy, "rounds": given.rounds}
        row["seconds"] = round(time.process_time() - began, 1) if library == "fedpriv" else None
        with given.log.open("a") as log:
            log.write(json.dumps(row) + "\n")
        known[library, method, seed] = accuracy
    table(known)


if __name__ == "__main__":
    main()
