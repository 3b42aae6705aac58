"""The Flower recorder: untouched apps are seen as their server sees them, and not one byte of theirs changes."""

import random

import numpy as np
import pytest
from flower_cases import Array, ArrayRecord, ClientApp, ConfigRecord, LocalGrid, Message, RecordDict, adding_client
from flwr.app import Context
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

import fedpriv
from fedpriv.integrations.run import RecordedRun, read_partitions

pytestmark = pytest.mark.frameworks

NODES = {8123: 0, 77: 1, 51: 2}


def initial():
    return ArrayRecord({"w": Array(np.zeros((2, 3), np.float32)), "b": Array(np.zeros(3, np.float32))})


def strategy_main(grid, context):
    FedAvg(min_train_nodes=3, min_available_nodes=3, min_evaluate_nodes=3).start(
        grid=grid, initial_arrays=initial(), num_rounds=2, train_config=ConfigRecord({"lr": 0.25})
    )


def played(main, client=None, **grid):
    random.seed(5)  # Flower's strategies sample nodes by it
    app, used = ServerApp(), LocalGrid(client or adding_client(), NODES, **grid)
    app.main()(main)
    app(used, Context(1, 0, {}, RecordDict(), {}))
    return used


def recorded(main, path, client=None, **grid):
    return played(fedpriv.flower.record(path)(main), client, **grid)


def test_not_one_byte_that_crosses_changes(tmp_path):
    assert recorded(strategy_main, tmp_path / "run").wire == played(strategy_main).wire
    assert len(RecordedRun.open(tmp_path / "run").rounds()) == 2


def test_a_strategys_rounds_are_recorded(tmp_path):
    recorded(strategy_main, tmp_path / "run")
    run = RecordedRun.open(tmp_path / "run")
    assert run.rounds() == (1, 2)
    assert run.framework.startswith("flwr 1.")
    assert not run.notes()
    for number, start in ((1, 0.0), (2, (10 + 22 + 36) / 33)):  # 0 + 1, 2, 3 with the weights 10, 11, 12
        seen = run.messages(number)
        train = [one for one in seen if one.phase == "train"]
        assert [one.direction for one in train] == ["down", "up", "up", "up"]
        assert set(train[0].clients) == {"8123", "77", "51"}
        assert train[0].facts == {"lr": 0.25, "server-round": number}
        before = run.arrays(train[0])["arrays"]
        assert before["w"].flatten()[0].item() == pytest.approx(start)
        for one in train[1:]:
            partition = NODES[int(one.clients[0])]
            assert bool((run.arrays(one)["arrays"]["w"] == before["w"] + (partition + 1)).all())
            assert one.facts == {"num-examples": 10 + partition}
        evaluated = [one for one in seen if one.phase == "evaluate"]
        assert [one.file for one in evaluated] == [""] * 4  # numbers alone
        assert evaluated[1].facts["acc"] == 0.5
    assert len(list(run.path.rglob("*.safetensors"))) == 8


def test_errors_and_silence_are_recorded_and_the_rest_goes_on(tmp_path, capsys):
    def main(grid, context):
        for number in (1, 2):
            record = RecordDict({"arrays": initial(), "config": ConfigRecord({"server-round": number})})
            grid.send_and_receive([Message(record, node, "train") for node in NODES], timeout=1)

    recorded(main, tmp_path / "run", failing=(77,), silent=(51,))
    run = RecordedRun.open(tmp_path / "run")
    assert [one.error for one in run.messages(1)] == ["", "", "code 1: out of memory"]
    assert [(note.code, note.round) for note in run.notes()] == [
        ("error", 1),
        ("silent", 1),
        ("error", 2),
        ("silent", 2),
    ]
    recorded(main, tmp_path / "none", silent=NODES)
    assert "nobody of 3 answered" in RecordedRun.open(tmp_path / "none").notes()[0].told
    assert capsys.readouterr().err.count("nobody of 3") == 1


def test_a_fault_of_the_recorder_leaves_the_federation_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        RecordedRun, "store", lambda *given: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    assert recorded(strategy_main, tmp_path / "run").wire == played(strategy_main).wire
    assert capsys.readouterr().err.count("recording stops") == 1
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "file").write_text("x")
    assert recorded(strategy_main, tmp_path / "theirs").wire == played(strategy_main).wire
    assert capsys.readouterr().err.count("already exists") == 1


class AddingClient(NumPyClient):
    def __init__(self, partition):
        self.partition = partition

    def fit(self, parameters, config):
        return [one + np.float32(0.1 * (self.partition + 1)) for one in parameters], 10, {}


def test_of_flowers_secure_aggregation_the_masked_answers_and_the_means_are_seen(tmp_path):
    def main(grid, context):
        start = ndarrays_to_parameters([np.zeros((2, 3), np.float32)])
        strategy = LegacyFedAvg(
            fraction_evaluate=0.0, min_fit_clients=3, min_available_clients=3, initial_parameters=start
        )
        legacy = LegacyContext(context=context, config=ServerConfig(num_rounds=2), strategy=strategy)
        DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2))(grid, legacy)

    app = ClientApp(
        client_fn=lambda context: AddingClient(context.node_config["partition-id"]).to_client(), mods=[secaggplus_mod]
    )
    recorded(main, tmp_path / "run", app)
    run = RecordedRun.open(tmp_path / "run")
    assert run.rounds() == (1, 2)
    for number in (1, 2):
        train = [one for one in run.messages(number) if one.phase == "train"]
        down, up = ([one for one in train if one.direction == way] for way in ("down", "up"))
        assert {client for one in down for client in one.clients} == {client for one in up for client in one.clients}
        assert len(up) == 3
        assert all(one.facts["masked"] is True and not one.file for one in up)
        (start,) = run.arrays(down[0])["fitins.parameters"].values()
        assert start.flatten().tolist() == pytest.approx([0.2 * (number - 1)] * 6, abs=1e-3)  # the mean, quantised
    assert [note.told[:18] for note in run.notes() if note.code == "told"] == ["secure aggregation"]


def test_truth_is_written_on_the_clients_side_and_nothing_is_sent(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPRIV_TRUTH", str(tmp_path / "truth"))
    wire = recorded(strategy_main, tmp_path / "run", adding_client(fedpriv.flower.truth)).wire
    assert wire == played(strategy_main).wire
    assert read_partitions(tmp_path / "truth") == {"8123": 0, "77": 1, "51": 2}
    assert read_partitions(tmp_path / "nowhere") == {}
