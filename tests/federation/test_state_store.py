"""Memory holds the states of a round's clients and no others; files give back what was put in them."""

import gc
import re
import weakref
from dataclasses import replace

import pytest
import torch
from federations import CPU, files, small, train_small

from fedpriv.federation import state_store as module
from fedpriv.federation.engine import run_clients
from fedpriv.federation.prepared import Federation
from fedpriv.federation.rounds import run
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.federation.state_store import state_store
from fedpriv.sources.federation import prepare

CONFIG = small("fedproto", per_class=20, clients=8, participation=0.25, rounds=4, checkpoint_every=3)


@pytest.mark.parametrize("held", [0, module.BYTES_IN_MEMORY])
def test_during_a_round_only_states_of_its_clients_are_in_memory_and_no_more_than_may(tmp_path, monkeypatch, held):
    seen = []

    def watched(client, state):
        seen.extend((client, weakref.ref(value)) for value in state.values())
        return state

    load, first = module.load_state, Federation.initial_state
    number = re.compile(r"client-(\d+)")
    monkeypatch.setattr(module, "BYTES_IN_MEMORY", held)
    monkeypatch.setattr(module, "load_state", lambda path: watched(int(number.search(path.name)[1]), load(path)))
    monkeypatch.setattr(Federation, "initial_state", lambda self, client: watched(client, first(self, client)))
    found = []

    def engine(federation, jobs):
        for place in range(len(jobs)):
            job = jobs[place]
            gc.collect()
            found.append(({client for client, one in seen if one() is not None}, {*jobs.clients}))
            (result,) = run_clients(federation, [job])
            watched(result.client, result.state)
            yield result

    own = replace(CONFIG, participation=0.5)
    run(prepare(own, CPU), RunDirectory.create(tmp_path / "run", own), engine)
    assert len(found) == 16
    assert all(alive <= chosen for alive, chosen in found)
    # Of the round before and of this one, as many as may be; else whose turn it is, and the one before it.
    assert max(len(alive) for alive, _ in found) == (2 if held == 0 else 4)
    assert {client for client, _ in seen} == set(range(8))  # all were read, and let go of


def test_what_memory_may_hold_changes_no_result(tmp_path, monkeypatch):
    train_small(tmp_path / "held", CONFIG)
    monkeypatch.setattr(module, "BYTES_IN_MEMORY", 0)
    train_small(tmp_path / "spilled", CONFIG)
    assert files(tmp_path / "spilled") == files(tmp_path / "held")


def test_states_come_back_as_they_were_put_in(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", CONFIG)
    drawn = []

    def first(client):
        drawn.append(client)
        return {"model.weight": torch.full((2,), float(client))}

    with state_store(directory, 3, first, CPU) as states:
        assert [states[k]["model.weight"].tolist() for k in (0, 0, 2)] == [[0, 0], [0, 0], [2, 2]]
        assert drawn == [0, 2]
        states.begin([0])
        states.change(0, {"model.weight": torch.tensor([0.1, torch.pi])})
        assert (states.in_memory, set(states.files)) == ({0}, {2})
        states.begin([1])
        assert (states.in_memory, set(states.files)) == (set(), {0, 2})
        assert torch.equal(states[0]["model.weight"], torch.tensor([0.1, torch.pi]))
        states.begin([0])
        states.change(0, {"model.weight": torch.tensor([5.0, 5.0])})
        states.begin([])
        assert states[0]["model.weight"].tolist() == [5, 5]
        assert len(list(states)) == 3
        with pytest.raises(IndexError):
            states[3]
    assert not [path for path in directory.path.iterdir() if path.is_dir()]


def test_a_kill_leaves_no_states_behind_and_the_run_goes_on_as_if_nothing_was(tmp_path):
    class Killed(Exception):
        pass

    whole = RunDirectory.create(tmp_path / "whole", CONFIG)
    run(prepare(CONFIG, CPU), whole, run_clients)

    def die(done, planned, what):
        if done == 7:
            raise Killed

    killed = RunDirectory.create(tmp_path / "killed", CONFIG)
    with pytest.raises(Killed):
        run(prepare(CONFIG, CPU), killed, run_clients, die)
    assert {path.name for path in killed.path.iterdir() if path.is_dir()} <= {
        *("uploads", "broadcasts", "truth", "checkpoints"),
    }
    run(prepare(CONFIG, CPU), killed, run_clients)
    assert files(killed.path) == files(whole.path)
