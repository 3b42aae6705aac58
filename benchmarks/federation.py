"""Accuracy and CPU seconds a round of every method on 4,000 CIFAR-10 images, as a ratio to local training.

    python benchmarks/federation.py --data DIR [--methods local,fedre,...] [--rounds 20]

DIR holds one folder of images per class; the first 400 of each are used. 10 clients, Dirichlet 0.1, 4-layer CNN, batch 10
without tail, stored order, SGD 0.01, one local epoch. CPU seconds are of this one-threaded process, start-up left out.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from fedpriv.engines.local import run_clients
from fedpriv.federation import prepare, run
from fedpriv.methods.contract import LocalTraining
from fedpriv.runs import RunConfig, RunDirectory

METHODS = ("local", "lg-fedavg", "fedproto", "fedgh", "fedre", "fedgen", "fedtgp", "fedmrl", "fml", "fedkd")


def main() -> None:
    """Run every method and print one line each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--options", type=json.loads, default={}, help='per method, e.g. {"fedproto": {"weight": 1}}')
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    base = RunConfig(
        dataset="folder",
        data_dir=arguments.data,
        per_class=400,
        models="cnn4",
        rounds=arguments.rounds,
        training=LocalTraining(drop_last=True, shuffle=False),
        capture="none",
        checkpoint_every=arguments.rounds,
        seed=arguments.seed,
    )
    baseline = None
    print(f"{'method':12} {'after training':>14} {'after broadcast':>15} {'CPU s / round':>13} {'ratio to local':>14}")
    for method in arguments.methods.split(","):
        config = replace(base, method=method, options=arguments.options.get(method, {}))
        federation = prepare(config, torch.device("cpu"))
        with tempfile.TemporaryDirectory() as folder:
            began = time.process_time()
            summary = run(federation, RunDirectory.create(Path(folder) / "run", config), run_clients)
            seconds = (time.process_time() - began) / arguments.rounds
        baseline = baseline or seconds
        trained, received = (summary["accuracy"][when]["final"] for when in ("after_training", "after_broadcast"))
        print(f"{method:12} {trained:14.4f} {received:15.4f} {seconds:13.2f} {seconds / baseline:14.2f}", flush=True)


if __name__ == "__main__":
    main()
