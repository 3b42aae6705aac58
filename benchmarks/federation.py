"""Accuracy and CPU seconds a round of every method, as a ratio to local training in the same run.

    python benchmarks/federation.py --data DIR [--methods local,fedre,...] [--rounds 20] [--seeds 0,1,2]
    python benchmarks/federation.py --data fashion

DIR holds one folder of CIFAR-10 images per class; the first 400 of each are used, all divided among clients, with the
4-layer CNN, SGD 0.01 and the habits of the reference library (stored order, tail batch left out). On embedded images: the
small family (``small-cnn`` for methods that need one architecture), SGD 0.1, half of the images with strangers. 10 clients,
Dirichlet 0.1, batch 10, one local epoch. CPU seconds are of this one-threaded process, start-up left out; figures are means
over seeds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from fedpriv.datasets.partition import PartitionOptions
from fedpriv.federation.method import LocalTraining, Method
from fedpriv.federation.rounds import run, run_clients
from fedpriv.federation.run_directory import RunConfig, RunDirectory
from fedpriv.methods import METHODS as METHODS_TABLE
from fedpriv.sources.run import prepare

LIKE_HTFLLIB = {"fedmrl": {"narrowing": "htfllib"}}
"""The small model that the reference figures were measured with."""

METHODS = ("local", "lg-fedavg", "fedproto", "fedgh", "fedre", "fedgen", "fedtgp", "fedmrl", "fml", "fedkd")


def main() -> None:
    """Run every method and print one line each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--alpha", type=float, default=0.1)
    parser.add_argument("--per-class", type=int, help="keep only the first so many embedded images of each class")
    parser.add_argument("--options", type=json.loads, default={}, help='per method, e.g. {"fedproto": {"weight": 1}}')
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    baseline = None
    print(f"{'method':20} {'after training':>14} {'after broadcast':>15} {'CPU s / round':>13} {'ratio to local':>14}")
    for method in arguments.methods.split(","):
        rows = [one(method, arguments, int(seed)) for seed in arguments.seeds.split(",")]
        trained, received, seconds = (sum(column) / len(rows) for column in zip(*rows, strict=True))
        baseline = baseline or seconds
        print(f"{method:20} {trained:14.4f} {received:15.4f} {seconds:13.2f} {seconds / baseline:14.2f}", flush=True)


def one(method: str, arguments: argparse.Namespace, seed: int) -> tuple[float, float, float]:
    """Run one method; return accuracy after training, after broadcast, and CPU seconds a round."""
    found: Method = METHODS_TABLE.load(method)
    config = RunConfig(
        method=method,
        options={**LIKE_HTFLLIB.get(method, {}), **arguments.options.get(method, {})},
        rounds=arguments.rounds,
        capture="none",
        checkpoint_every=arguments.rounds,
        seed=seed,
        partition=PartitionOptions(alpha=arguments.alpha),
        public=60 if found.needs_public else 0,
    )
    if arguments.data in ("fashion", "digits"):
        models = "small-cnn" if found.homogeneous else "small"
        config = replace(config, models=models, training=LocalTraining(learning_rate=0.1))
        config = replace(config, dataset=arguments.data, per_class=arguments.per_class)
    else:
        training = LocalTraining(drop_last=True, shuffle=False)
        config = replace(
            config,
            dataset="folder",
            data_dir=arguments.data,
            per_class=400,
            auxiliary=0.0,
            models="cnn4",
            training=training,
        )
    federation = prepare(config, torch.device("cpu"))
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        summary = run(federation, RunDirectory.create(Path(folder) / "run", config), run_clients)
        seconds = (time.process_time() - began) / arguments.rounds
    reached = summary.accuracy
    return reached["after_training"].pooled, reached["after_broadcast"].pooled, seconds


if __name__ == "__main__":
    main()
