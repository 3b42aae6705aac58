"""Clients that fail leave the round, are named in its line, and come back with the state they had."""

from dataclasses import replace

import pytest
from federations import CPU, files, small, train_small

from fedpriv.federation.rounds import run, run_clients
from fedpriv.federation.run_directory import EngineChoice, RunDirectory
from fedpriv.federation.summary import ClientFailure
from fedpriv.sources.run import prepare
from fedpriv.util.errors import WorkError

CONFIG = small("fedproto", per_class=20, clients=4, rounds=3, keep=(1, 2))


def losing(client, round_):
    """An engine that loses one client in one round."""

    def engine(federation, jobs):
        for job in jobs:
            if (job.client, job.round) == (client, round_):
                yield ClientFailure(client=client, why="timed out", told="no answer in 1 s")
            else:
                yield from run_clients(federation, [job])

    return engine


def test_a_client_that_fails_leaves_the_round_and_comes_back_with_its_state(tmp_path):
    directory, _ = train_small(tmp_path / "run", CONFIG, losing(1, 2))
    lines = directory.rounds()
    assert [line.participants for line in lines] == [(0, 1, 2, 3), (0, 2, 3), (0, 1, 2, 3)]
    assert [len(line.failures) for line in lines] == [0, 1, 0]
    assert lines[1].failures[0] == ClientFailure(client=1, why="timed out", told="no answer in 1 s")
    assert directory.summary.failures == 1
    assert directory.captured_rounds() == {1: (0, 1, 2, 3), 2: (0, 2, 3), 3: (0, 1, 2, 3)}
    # It was sent the broadcast, answered nothing, and kept its state; the others' went on.
    wire = {(row.round, row.client, row.direction) for row in directory.ledger()}
    assert (2, 1, "broadcast") in wire
    assert (2, 1, "upload") not in wire
    paths = {k: [directory.state_path(round_, k).read_bytes() for round_ in (1, 2, 3)] for k in (0, 1)}
    assert paths[1][0] == paths[1][1] != paths[1][2]
    assert paths[0][0] != paths[0][1]
    trained = "after_training"
    assert lines[1].clients[trained][1] == lines[0].clients[trained][1]


def test_too_few_clients_end_the_run_and_what_is_done_goes_on(tmp_path):
    config = replace(CONFIG, engine=EngineChoice(min_clients=4))
    directory = RunDirectory.create(tmp_path / "run", config)
    with pytest.raises(WorkError, match=r"round 3: 3 of 4 clients answered, and at least 4 should; client 0 timed out"):
        run(prepare(config, CPU), directory, losing(0, 3))
    assert directory.newest_checkpoint() == 2
    assert len(directory.rounds()) == 2
    run(prepare(config, CPU), RunDirectory.open(directory.path), run_clients)
    whole, _ = train_small(tmp_path / "whole", config)
    assert files(directory.path) == files(whole.path)
