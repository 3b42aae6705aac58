"""Clients of a round run by several processes: the same files whatever their number, whoever fails, whenever they end.

Most start a worker, which takes some seconds to load torch.
"""

import os
import threading
import time

import pytest
import torch
from federations import CPU, files, small, train_small

from fedpriv.experiment import client_crew as module
from fedpriv.experiment.client_crew import client_crew
from fedpriv.federation.engine import ClientJob, run_clients
from fedpriv.federation.method import LocalTraining
from fedpriv.sources.federation import prepare
from fedpriv.util.errors import UserError
from fedpriv.util.listener import Listener


class Heard(Listener):
    """Notes what is said."""

    def __init__(self):
        self.said = []

    def say(self, text):
        self.said.append(text)


def slowed(monkeypatch):
    """Keep this process from doing everything before a worker is there: it takes a job only when all others are taken."""
    taken = module._Turn.take

    def take(self):
        if threading.current_thread() is threading.main_thread() and self._next <= self._handed and not self._returned:
            return taken(self)
        if threading.current_thread() is threading.main_thread():
            time.sleep(0.05)
            return self._returned.pop() if self._returned else None
        return taken(self)

    monkeypatch.setattr(module._Turn, "take", take)


def test_files_are_those_of_one_process(tmp_path, monkeypatch):
    config = small(
        "fedre",
        alpha=0.5,
        per_class=12,
        clients=4,
        rounds=2,
        models="small-cnn,small-mlp",
        convergence=2,
        capture="all",
    )
    train_small(tmp_path / "alone", config)
    by = []
    run_here = module.client_part
    monkeypatch.setattr(module, "client_part", lambda *given: by.append(given[1].client) or run_here(*given))
    slowed(monkeypatch)
    with client_crew(prepare(config, CPU), 2, Heard()) as crew:
        train_small(tmp_path / "together", config, crew)
    assert files(tmp_path / "together") == files(tmp_path / "alone")
    assert len(by) < 8  # the worker did the others


@pytest.mark.parametrize("ended", ["at its start", "by a signal", "by other images"])
def test_a_worker_that_fails_leaves_its_clients_to_the_others(tmp_path, monkeypatch, ended):
    config = small("fedavg", models="small-mlp", per_class=10, clients=3, rounds=2)
    train_small(tmp_path / "alone", config)
    if ended != "by other images":
        monkeypatch.setattr(module, "WORKER", "no_such_module" if ended == "at its start" else "dying_worker")
        monkeypatch.syspath_prepend(os.path.dirname(os.path.dirname(__file__)))
    else:
        monkeypatch.setattr(module, "fingerprint", lambda setup: "other")
    slowed(monkeypatch)
    heard = Heard()
    with client_crew(prepare(config, CPU), 2, heard) as crew:
        train_small(tmp_path / "together", config, crew)
    assert files(tmp_path / "together") == files(tmp_path / "alone")
    assert len(heard.said) == 1
    why = {"at its start": "exit code 1", "by a signal": "SIGKILL", "by other images": "other images of client"}
    assert why[ended] in heard.said[0]


def test_training_that_diverges_ends_in_the_same_words(monkeypatch):
    config = small("fedavg", models="small-mlp", per_class=10, clients=3, training=LocalTraining(learning_rate=1e30))
    federation = prepare(config, CPU)
    _, broadcast = federation.method.start(federation.server, torch.Generator().manual_seed(0))
    jobs = [ClientJob(1, k, federation.initial_state(k), broadcast) for k in range(3)]
    with pytest.raises(UserError) as alone:
        list(run_clients(federation, jobs))
    slowed(monkeypatch)
    with client_crew(federation, 2, Heard()) as crew, pytest.raises(UserError) as together:
        list(crew(federation, jobs))
    assert str(together.value) == str(alone.value)


def test_workers_end_with_the_block_and_results_wait_for_their_turn():
    config = small("local", models="small-mlp", per_class=10, clients=6)
    federation = prepare(config, CPU)
    jobs = [ClientJob(1, k, federation.initial_state(k), ()) for k in range(6)]
    with client_crew(federation, 2, Heard()) as crew:
        given = crew(federation, jobs)
        assert next(given).client == 0
        given.close()  # whoever asked has had enough
        assert [result.client for result in crew(federation, jobs)] == [0, 1, 2, 3, 4, 5]
        processes = [one for one in crew._workers if one is not None]
    assert all(one.poll() is not None for one in processes)


def test_nobody_takes_more_than_a_few_places_ahead():
    turn = module._Turn(10, 3)
    assert [turn.take() for _ in range(4)] == [0, 1, 2, None]
    turn.give_back(1)
    assert turn.take() == 1
    turn.put(0, UserError("late"))
    assert turn.has(0)
    assert str(turn.hand_over(0)) == "late"
    assert (turn.take(), turn.take()) == (3, None)
    turn.end()
    assert turn.take() is None


def test_never_more_processes_than_clients_of_a_round():
    federation = prepare(small("local", per_class=10, clients=4, participation=0.5), CPU)
    for asked, others in ((1, 0), ("2", 1), (8, 1)):
        with client_crew(federation, asked, Heard()) as crew:
            assert len(crew._workers) == others
    with pytest.raises(UserError, match="expected auto or a whole number"), client_crew(federation, 0, Heard()):
        pass
