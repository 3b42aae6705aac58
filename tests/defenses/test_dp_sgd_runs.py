"""DP-SGD in whole runs: what is accounted for is what was done, and what is refused."""

import math
from dataclasses import replace

from federations import CPU, small

from fedpriv.defenses import parse_choice
from fedpriv.defenses.shared.accounting import epsilon
from fedpriv.federation.rounds import run, run_clients
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.sources.run import prepare

CONFIG = small(
    "fedavg",
    models="small-mlp",
    per_class=10,
    clients=3,
    rounds=2,
)


def test_a_run_is_accounted_for_with_the_steps_that_it_took(tmp_path, monkeypatch):
    config = replace(
        CONFIG, method="fedrep", options={"head_epochs": 3}, defenses=(parse_choice("dp-sgd:noise_multiplier=3"),)
    )
    federation = prepare(config, CPU)
    taken = []

    def counting(step):
        def count(work, images, labels):
            taken.append(len(labels))
            return step(work, images, labels)

        return count

    (guard,) = federation.clients[0].training.guards
    spied = replace(federation.clients[0].training, guards=(guard, counting))
    clients = tuple(replace(setup, training=spied) for setup in federation.clients)
    directory = RunDirectory.create(tmp_path / "run", config)
    run(replace(federation, clients=clients), directory, run_clients)
    record = directory.summary.privacy[0]
    smallest = min(len(setup.train) for setup in federation.clients)
    assert record["releases"] * 3 == len(taken) == 3 * 2 * (3 + 1) * math.ceil(smallest / 10)
    assert record["epsilon"] == epsilon(3.0, record["releases"], 1e-5, 10 / smallest)
    assert len(set(taken)) > 1
