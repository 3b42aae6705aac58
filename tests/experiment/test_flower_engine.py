"""Flower's nodes compute what the local engine does, bit for bit; what fails, is late or does not fit is told."""

import ast
import contextlib
import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from federations import CPU, DIGITS, files, small, train_small
from flower_cases import Array, ArrayRecord, ClientApp, LocalGrid, Message, RecordDict

import fedpriv
from fedpriv.cli import main as command
from fedpriv.experiment.flower import client, deployment, simulation, switches, wire
from fedpriv.experiment.flower.engine import FlowerEngine
from fedpriv.federation.engine import ClientJob, client_part
from fedpriv.federation.run_directory import DefenseChoice, EngineChoice
from fedpriv.methods import METHODS
from fedpriv.sources.federation import prepare
from fedpriv.util.device import pick_device
from fedpriv.util.errors import UserError, WorkError

pytestmark = pytest.mark.frameworks

CONFIG = small("fedproto", per_class=20, clients=4, participation=0.5, rounds=3, keep=(1, 2))
NODES = {7: 0, 9: 1}


@pytest.fixture(autouse=True)
def one_thread():
    """Bits are equal with one thread, which every command and every node fixes."""
    pick_device("cpu")


def grid(**options):
    app = ClientApp()
    app.train()(client.answer)
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


def test_the_upload_on_the_wire_is_the_protected_one():
    config = small("fedavg", per_class=20, clients=2, models="small-mlp", defenses=(DefenseChoice("sign"),))
    federation, bare = prepare(config, CPU), prepare(replace(config, defenses=()), CPU)
    _, broadcast = federation.method.start(federation.server, torch.Generator().manual_seed(0))
    job = ClientJob(1, 0, federation.initial_state(0), broadcast)
    sent, plain = client_part(federation, job).upload[0], client_part(bare, job).upload[0]
    assert any(not torch.equal(value, plain.tensors()[name]) for name, value in sent.tensors().items())
    packed = wire.pack_job(config, "cpu", job, wire.fingerprint(federation.clients[0]))
    reply = client.answer(Message(packed, dst_node_id=7, message_type="train"), grid().contexts[7])
    found = {name: array.numpy() for name, array in reply.content["upload"].items()}
    assert {name.removeprefix("0/") for name in found if name.startswith("0/")} == set(sent.tensors())
    assert all(np.array_equal(found[f"0/{name}"], value.numpy()) for name, value in sent.tensors().items())


def test_a_node_that_fails_loses_its_clients_their_round_and_nothing_else(tmp_path):
    config = replace(CONFIG, participation=1.0, engine=EngineChoice("flower", client_timeout=60))
    nodes = grid()
    engine = FlowerEngine(nodes, "cpu", nodes=2)

    def second_round_fails(federation, jobs):
        nodes.failing = (9,) if jobs[0].round == 2 else ()
        return engine(federation, jobs)

    directory, _ = train_small(tmp_path / "run", config, second_round_fails)
    lines = directory.rounds()
    assert [line.participants for line in lines] == [(0, 1, 2, 3), (0, 2), (0, 1, 2, 3)]
    assert [(one.client, one.why, one.told) for one in lines[1].failures] == [
        (1, "failed", "out of memory"),
        (3, "failed", "out of memory"),
    ]
    states = [directory.state_path(round_, 1).read_bytes() for round_ in (1, 2, 3)]
    assert states[0] == states[1] != states[2]


def test_a_silent_node_is_awaited_for_the_time_that_was_said(tmp_path):
    config = replace(CONFIG, rounds=1, keep=(), participation=1.0, engine=EngineChoice("flower", client_timeout=1.5))
    federation = prepare(config, CPU)
    _, broadcast = federation.method.start(federation.server, torch.Generator().manual_seed(0))
    jobs = [ClientJob(1, k, federation.initial_state(k), broadcast) for k in range(4)]
    ticks = iter(np.arange(0, 100, 0.25))
    engine = FlowerEngine(grid(silent=(7,)), "cpu", nodes=2, clock=lambda: float(next(ticks)))
    found = list(engine(federation, jobs))
    assert [one.client for one in found] == [0, 1, 2, 3]
    assert [getattr(one, "told", "answered") for one in found] == ["no answer in 1.5 s", "answered"] * 2
    assert float(next(ticks)) < 4


def test_without_nodes_everybody_left():
    config = replace(CONFIG, engine=EngineChoice("flower", client_timeout=0.01))
    federation = prepare(config, CPU)
    nodes = grid()
    nodes.contexts = {}
    found = list(FlowerEngine(nodes, "cpu")(federation, [ClientJob(1, 2, {}, ())]))
    assert [(one.client, one.why, one.told) for one in found] == [(2, "failed", "no node is there")]


def test_what_broke_down_behind_the_grid_ends_the_run_at_once():
    federation = prepare(CONFIG, CPU)
    engine = FlowerEngine(grid(), "cpu", fault=lambda: "Flower's simulation ended: no memory")
    with pytest.raises(WorkError, match="simulation ended: no memory"):
        list(engine(federation, [ClientJob(1, 0, {}, ())]))


# ---------------------------------------------------------------- what does not fit


def asked(**changes):
    federation = prepare(CONFIG, CPU)
    _, broadcast = federation.method.start(federation.server, torch.Generator().manual_seed(0))
    job = ClientJob(1, 0, federation.initial_state(0), broadcast)
    packed = wire.pack_job(CONFIG, "cpu", job, wire.fingerprint(federation.clients[0]))
    for name, value in changes.items():
        packed["about"][name] = value
    return federation, packed


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"fedpriv": "0.0.1"}, r"the node has fedpriv .*, the server 0\.0\.1; install the same"),
        ({"data": "0" * 64}, "client 0: its images on the node are not those on the server"),
        ({"client": 4}, "client 4: the run has 4"),
        ({"round": "one"}, "round: expected int, got 'one'"),
        ({"config": "{"}, "configuration of the run: no JSON"),
        ({"kinds": "prototype,classifier"}, "classifier|tensor '0/features'"),
    ],
)
def test_a_node_refuses_what_it_would_compute_differently(changes, told):
    _, packed = asked(**changes)
    reply = client.answer(Message(packed, dst_node_id=7, message_type="train"), grid().contexts[7])
    with pytest.raises(wire.RefusedError, match=told):
        wire.read_result(reply.content, 0, CPU)


def test_a_refusal_ends_the_run_with_the_nodes_own_words(tmp_path, monkeypatch):
    monkeypatch.setattr(wire, "fingerprint", lambda setup: "other")
    monkeypatch.setattr("fedpriv.experiment.flower.engine.fingerprint", lambda setup: "another")
    with pytest.raises(UserError, match="are not those on the server; give the node the same data set"):
        train_small(tmp_path / "run", CONFIG, FlowerEngine(grid(), "cpu"))


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"nonsense", "not readable as an array"),
        (
            b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (9999999, 9999999), }",
            "not readable",
        ),
    ],
)
def test_an_answer_that_is_no_result_is_a_failure_of_its_client(data, told):
    federation, packed = asked()
    reply = client.answer(Message(packed, dst_node_id=7, message_type="train"), grid().contexts[7])
    bad = RecordDict({name: record for name, record in reply.content.items()})
    bad["private-state"] = ArrayRecord({"w": Array("float32", (1,), "numpy.ndarray", data)})
    with pytest.raises(UserError, match=told):
        wire.read_result(bad, 0, CPU)
    nodes = grid()
    nodes.client = lambda message, context: Message(bad, reply_to=message)
    (failure,) = FlowerEngine(nodes, "cpu")(federation, [ClientJob(1, 0, {}, ())])
    assert failure.why == "failed"
    assert told in failure.told


def test_a_header_is_held_against_its_bytes_before_anything_is_allocated():
    honest = Array(np.zeros((2, 3), np.float32))
    lying = honest.data.replace(b"(2, 3)", b"(9, 9)")
    _, packed = asked()
    packed["private-state"] = ArrayRecord({"w": Array("float32", (9, 9), "numpy.ndarray", lying)})
    with pytest.raises(UserError, match=r"'w': shape \(9, 9\) of float32, in 24 bytes"):
        wire.read_job(packed)


# ---------------------------------------------------------------- the command line


@pytest.fixture
def simulated(monkeypatch):
    """Nodes in this process in place of Flower's simulation."""
    nodes = grid()

    @contextlib.contextmanager
    def here(number):
        yield FlowerEngine(nodes, "cpu")

    monkeypatch.setattr(switches, "require_flower", lambda *, simulation: None)
    monkeypatch.setattr(simulation, "simulated", here)
    return nodes


TRAIN = ["train", "--method", "fedproto", *DIGITS, "--per-class", "20", "--clients", "4", "--partition", "iid"]
TRAIN += ["--rounds", "2", "--out", "run", "--quiet"]


def test_too_few_answers_are_one_line_and_exit_1_and_the_run_is_resumed(simulated, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command.run([*TRAIN[:-3], "--out", "whole", "--quiet"]) == 0
    simulated.failing = (9,)
    assert command.run([*TRAIN, "--engine", "flower", "--min-clients", "3"]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert (
        "round 1: 2 of 4 clients answered, and at least 3 should; client 1 failed: out of memory; go on with: " in err
    )
    assert "fedpriv train --resume --out run" in err
    simulated.failing = ()
    assert command.run(["train", "--resume", "--out", "run", "--quiet"]) == 0
    assert fedpriv.train(resume=True, out="run").summary.engine == "flower"
    one, two = files(tmp_path / "whole"), files(tmp_path / "run")
    assert json.loads(two.pop("config.json"))["engine"]["min_clients"] == 3
    del one["config.json"]
    assert one == two


def test_clients_that_left_are_warned_of(simulated, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    simulated.failing = (9,)
    assert command.run([*TRAIN[:-1], "--engine", "flower"]) == 0
    assert "4 times a client left its round (see failures in metrics.jsonl)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--engine", "flour"], "input should be 'local' or 'flower', got 'flour'"),
        (["--min-clients", "2"], "--min-clients 2: goes with --engine flower"),
        (["--engine", "flower", "--client-timeout", "0"], "--client-timeout: "),
        (["--engine", "flower", "--device", "cuda"], "--device cuda: simulated nodes compute on the CPU"),
    ],
)
def test_engines_are_refused_in_one_line_before_anything_is_written(
    flags, told, simulated, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert command.run([*TRAIN, *flags]) == 2
    err = capsys.readouterr().err
    assert told in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_what_is_missing_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(switches.importlib.util, "find_spec", lambda name: None if name == "ray" else object())
    switches.require_flower(simulation=False)
    with pytest.raises(UserError, match=r'needs ray, which is not installed: pip install "fedpriv\[flower\]"'):
        switches.require_flower(simulation=True)


# ---------------------------------------------------------------- the app, and what is said nowhere


def test_the_app_of_a_run_holds_no_code_and_asks_for_nothing_to_be_installed(tmp_path):
    deployment.write_app(tmp_path, Path('/runs/a "b"\\c'), "cpu")
    assert [path.name for path in tmp_path.iterdir()] == ["pyproject.toml"]
    app = tomllib.loads((tmp_path / "pyproject.toml").read_text())
    assert app["project"]["dependencies"] == app["build-system"]["requires"] == []
    assert app["tool"]["flwr"]["app"]["config"] == {"run": '/runs/a "b"\\c', "device": "cpu"}
    from fedpriv.experiment.flower import app as components

    for place in app["tool"]["flwr"]["app"]["components"].values():
        module, _, name = place.partition(":")
        assert module == components.__name__
        assert callable(getattr(components, name))


def test_the_servers_side_resumes_what_the_directory_describes_and_leaves_word(tmp_path):
    from fedpriv.experiment.flower.app import serve
    from fedpriv.federation.run_directory import RunDirectory

    config = replace(CONFIG, engine=EngineChoice("flower", superlink="lab", nodes=2))
    directory = RunDirectory.create(tmp_path / "run", config)
    context = grid().contexts[7]
    context.run_config = {"run": str(directory.path), "device": "cpu"}
    serve(grid(), context)
    assert json.loads((directory.path / deployment.OUTCOME).read_text()) == {"code": 0, "told": ""}
    local, _ = train_small(tmp_path / "local", CONFIG)
    (directory.path / deployment.OUTCOME).unlink()
    equal_runs(local, directory)
    few = RunDirectory.create(tmp_path / "few", replace(config, engine=EngineChoice("flower", 2, superlink="lab")))
    context.run_config = {"run": str(few.path), "device": "cpu"}
    serve(grid(failing=(7, 9)), context)
    assert json.loads((few.path / deployment.OUTCOME).read_text())["code"] == 1


def test_no_file_of_the_engine_names_a_method():
    package = Path(fedpriv.__file__).parent
    places = [*(package / "experiment/flower").glob("*.py"), package / "experiment/engines.py"]
    places.append(package / "federation/engine.py")
    names = {name for name in METHODS if name != "local"}  # an engine is called so too
    assert len(places) > 8
    for path in places:
        source = path.read_text()
        found = [name for name in names if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", source, re.IGNORECASE)]
        assert found == [], path
        imported = [node.module for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
        assert not [module for module in imported if module and module.startswith("fedpriv.methods")], path


def test_nothing_is_reported_looked_up_or_installed(monkeypatch):
    for name in switches.OFF:
        monkeypatch.delenv(name, raising=False)
    switches.switch_off()
    import os

    assert os.environ["FLWR_TELEMETRY_ENABLED"] == "0"
    assert os.environ["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert os.environ["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


@pytest.mark.slow
def test_flowers_own_simulation_gives_the_local_run(tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'fedpriv[flower]'")
    settings = {"dataset": "digits", "strangers": 0.0, "per_class": 20, "clients": 3, "rounds": 2, "lr": 0.1}
    local = fedpriv.train("fedproto", out=tmp_path / "local", **settings)
    there = fedpriv.train("fedproto", out=tmp_path / "flower", engine="flower", nodes=2, **settings)
    one, two = files(local.path), files(there.path)
    assert json.loads(two.pop("config.json"))["engine"]["name"] == "flower"
    del one["config.json"]
    assert one == two
    assert there.summary.failures == 0
