"""DP-SGD in whole runs: what is accounted for is what was done, and what is refused."""

import math
from dataclasses import replace

from compare import expect_same
from federations import CPU, small, trained_small

from fedpriv.attacks.observation import ThreatModel
from fedpriv.defenses import parse_choice
from fedpriv.defenses.shared.accounting import epsilon
from fedpriv.federation.engine import run_clients
from fedpriv.federation.method import LocalTraining
from fedpriv.federation.rounds import run
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.sources.case import build_case
from fedpriv.sources.federation import prepare
from fedpriv.sources.run import RunSource

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


def test_only_clients_that_drew_an_image_are_attacked(tmp_path):
    config = replace(
        CONFIG,
        clients=6,
        rounds=1,
        training=LocalTraining(learning_rate=0.1, batch_size=1, max_steps=1),
        defenses=(parse_choice("dp-sgd:noise_multiplier=1"),),
    )
    directory, federation = trained_small(tmp_path / "run", config)
    drawn = {k: RunSource(directory, federation, "model").used(1, k) for k in range(6)}
    found = build_case(RunSource(directory, federation, "model"), ThreatModel(labels="given"), n_targets=10, seed=0)
    assert {target.client for target in found.targets} == {k for k, batch in drawn.items() if len(batch)}
    assert 0 < len(found.targets) < 6
    assert found.knowledge.batch.batch_size == 1
    assert {k: facts.batch_size for k, facts in found.knowledge.batches.items()} == {
        k: len(b) for k, b in drawn.items() if len(b)
    }
    for target in found.targets:
        labels = federation.clients[target.client].train.labels[drawn[target.client]]
        expect_same(found.knowledge.labels[1, target.client], labels)
