"""States of clients between rounds: files give back what was put in them, and a kill leaves none behind."""

import pytest
import torch
from federations import CPU, files, small, train_small

from fedpriv.federation.rounds import run, run_clients
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.federation.states import StateStore
from fedpriv.sources.run import prepare

CONFIG = small("fedproto", per_class=20, clients=8, participation=0.25, rounds=4, checkpoint_every=3)


def test_states_come_back_as_they_were_put_in(tmp_path):
    drawn = []

    def first(client):
        drawn.append(client)
        return {"weight": torch.full((3, 2), float(client)), "count": torch.tensor(client)}

    states = StateStore((), 4, first, CPU, tmp_path)
    for round_ in range(3):
        for client in range(0, 4, 1 + round_):
            states.change(client, {"weight": states[client]["weight"] + 10})
    assert [float(state["weight"][0, 0]) for state in states] == [30.0, 11.0, 22.0, 23.0]
    assert drawn == [0, 1, 2, 3]
    with pytest.raises(IndexError):
        states[4]


def test_a_kill_leaves_no_states_behind_and_the_run_goes_on_as_if_nothing_was(tmp_path):
    whole, federation = train_small(tmp_path / "whole", CONFIG)
    directory, steps = RunDirectory.create(tmp_path / "killed", CONFIG), iter(range(7))

    def die(done, planned, what):
        if next(steps, None) is None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(federation, directory, run_clients, die)
    assert directory.newest_checkpoint() == 3
    run(prepare(CONFIG, CPU), directory, run_clients)
    assert files(directory.path) == files(whole.path)
    assert not [path for path in directory.path.iterdir() if "states" in path.name]
