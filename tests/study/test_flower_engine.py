"""Flower's nodes compute what the local engine does, bit for bit; what fails, is late or does not fit is told."""

import contextlib
import json
from dataclasses import replace

import pytest
from federations import DIGITS, files, small, train_small
from flower_cases import ClientApp, LocalGrid

import fedpriv
from fedpriv.cli import main as command
from fedpriv.federation.method import LocalTraining
from fedpriv.federation.run_directory import DefenseChoice, EngineChoice
from fedpriv.integrations import flower_engine
from fedpriv.integrations.flower_engine import FlowerEngine
from fedpriv.study import training
from fedpriv.util.compute import pick_device
from fedpriv.util.errors import UserError

pytestmark = pytest.mark.frameworks

CONFIG = small("fedproto", per_class=20, clients=4, participation=0.5, rounds=3, keep=(1, 2))
NODES = {7: 0, 9: 1}


@pytest.fixture(autouse=True)
def one_thread():
    """Bits are equal with one thread, which every command and every node fixes."""
    pick_device("cpu")


def grid(**options):
    app = ClientApp()
    app.train()(training.answer)
    return LocalGrid(app, NODES, **options)


def equal_runs(left, right):
    one, two = files(left.path), files(right.path)
    del one["config.json"], two["config.json"]  # it names the engine
    assert one == two


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        small(
            "fedavg",
            per_class=20,
            clients=3,
            rounds=2,
            models="small-mlp",
            defenses=(DefenseChoice("dp-sgd", {"noise_multiplier": 1.0}),),
        ),
        small("fedre", per_class=20, clients=3, rounds=3, defenses=(DefenseChoice("upload-interval", {"k": 2}),)),
        small("fedkd", per_class=20, clients=2, rounds=1),
    ],
    ids=["prototypes-half", "private-gradients", "mixtures-seldom", "factors"],
)
def test_a_run_on_nodes_is_the_local_run_bit_for_bit(config, tmp_path):
    local, _ = train_small(tmp_path / "local", config)
    engine = FlowerEngine(grid(), "cpu", nodes=2)
    there, _ = train_small(tmp_path / "flower", replace(config, engine=EngineChoice("flower")), engine)
    equal_runs(local, there)
    assert (local.summary.engine, there.summary.engine) == ("local", "flower")
    assert there.summary.accuracy == local.summary.accuracy
    assert there.ledger() == local.ledger()


def test_a_refusal_ends_the_run_with_the_nodes_own_words(tmp_path):
    config = replace(CONFIG, training=LocalTraining(learning_rate=1e6))
    with pytest.raises(UserError, match="training diverged"):
        train_small(tmp_path / "run", config, FlowerEngine(grid(), "cpu"))


@pytest.fixture
def simulated(monkeypatch):
    """Nodes in this process in place of Flower's simulation."""
    nodes = grid()

    @contextlib.contextmanager
    def here(number, answer):
        yield FlowerEngine(nodes, "cpu")

    monkeypatch.setattr(flower_engine, "require_flower", lambda: None)
    monkeypatch.setattr(flower_engine, "simulated", here)
    return nodes


TRAIN = ["train", "--method", "fedproto", *DIGITS, "--per-class", "20", "--clients", "4", "--partition", "iid"]
TRAIN += ["--rounds", "2", "--out", "run", "--quiet"]


def test_a_node_that_fails_is_one_line_and_exit_1_and_the_run_is_resumed(simulated, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command.run([*TRAIN[:-3], "--out", "whole", "--quiet"]) == 0
    simulated.failing = (9,)
    assert command.run([*TRAIN, "--engine", "flower"]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "client 1 failed: out of memory; go on with: " in err
    assert "fedpriv train --resume --out run" in err
    simulated.failing = ()
    assert command.run(["train", "--resume", "--out", "run", "--quiet"]) == 0
    assert fedpriv.train(resume=True, out="run").summary.engine == "flower"
    one, two = files(tmp_path / "whole"), files(tmp_path / "run")
    assert json.loads(two.pop("config.json"))["engine"]["name"] == "flower"
    del one["config.json"]
    assert one == two


@pytest.mark.slow
def test_flowers_own_simulation_gives_the_local_run(tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'fedpriv[flower]'")
    settings = {"dataset": "digits", "auxiliary": 0.0, "per_class": 20, "clients": 3, "rounds": 2, "lr": 0.1}
    local = fedpriv.train("fedproto", out=tmp_path / "local", **settings)
    there = fedpriv.train("fedproto", out=tmp_path / "flower", engine="flower", **settings)
    one, two = files(local.path), files(there.path)
    assert json.loads(two.pop("config.json"))["engine"]["name"] == "flower"
    del one["config.json"]
    assert one == two
