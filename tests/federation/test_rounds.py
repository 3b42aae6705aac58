"""Whole runs: the same result however often they are interrupted, and refusals before anything is trained."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from compare import expect_close
from eval_cases import but
from federations import CPU, files, forged, small, train_small

from fedpriv.api.federations import cost
from fedpriv.federation.method import LocalTraining
from fedpriv.federation.rounds import run, run_clients
from fedpriv.federation.run_directory import RunConfig, RunDirectory
from fedpriv.federation.states import StateStore
from fedpriv.sources.run import prepare
from fedpriv.uploads.payloads import Entangled, Model, get_payload
from fedpriv.util.errors import UserError
from fedpriv.util.files import write_bytes, write_text

CONFIG = small("fedre", per_class=20, clients=4, rounds=3)


def trained(path: Path, config: RunConfig = CONFIG) -> RunDirectory:
    return train_small(path, config)[0]


class Killed(Exception):
    """The machine went away."""


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        replace(CONFIG, method="fedproto", participation=0.5, rounds=4),
        replace(CONFIG, method="fedavg", models="small-mlp", checkpoint_every=2, rounds=4, keep=(1,)),
        replace(CONFIG, options={"sampling": "fixed"}, participation=0.5, checkpoint_every=3, rounds=4),
    ],
    ids=["fedre", "fedproto-half", "fedavg-every-second", "fedre-fixed"],
)
def test_killed_at_any_client_step_a_run_resumes_to_the_same_bytes(config, tmp_path):
    whole, told = RunDirectory.create(tmp_path / "whole", config), []
    federation = prepare(config, CPU)
    run(federation, whole, run_clients, lambda *news: told.append(news))
    expected = files(whole.path)
    # Each client's part, the server's and each client's evaluation is a step.
    steps = config.rounds * (len(federation.participants(1)) + 1 + config.clients)
    assert ({planned for _, planned, _ in told}, {done for done, _, _ in told}) == ({steps}, {*range(1, steps + 1)})
    for fatal in {1, 3, steps // 2, steps - 1, steps}:
        path = tmp_path / f"killed-{fatal}"
        directory = RunDirectory.create(path, config)

        def die(done, planned, what, fatal=fatal):
            if done == fatal:
                raise Killed

        with pytest.raises(Killed):
            run(federation, directory, run_clients, die)
        with pytest.raises(UserError, match="unfinished run"):
            directory.require_complete()
        run(prepare(config, CPU), RunDirectory.open(path), run_clients)
        assert files(path) == expected
        assert but(RunDirectory.open(path).summary, seconds=0) == but(whole.summary, seconds=0)


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path):
    one, two = trained(tmp_path / "one"), trained(tmp_path / "two")
    assert files(one.path) == files(two.path)
    other = trained(tmp_path / "other", replace(CONFIG, seed=1))
    assert get_payload(other.message(other.upload_path(1, 0)), Entangled).feature.tolist() != (
        get_payload(one.message(one.upload_path(1, 0)), Entangled).feature.tolist()
    )


def test_capture_keeps_what_it_says(tmp_path):
    for capture, stored in (("none", ()), ("last", (3,)), ("all", (1, 2, 3)), ("auto", (1, 2, 3))):
        directory = trained(tmp_path / capture, replace(CONFIG, capture=capture))
        assert tuple(directory.captured_rounds()) == stored
    for method, public, kept in (("fedavg", 0, (3,)), ("fedhenn", 8, (2, 3))):  # 3.5 MB a model
        config = replace(CONFIG, method=method, models="cnn4", image_size=28, public=public)
        assert tuple(trained(tmp_path / method, config).captured_rounds()) == kept


def test_the_broadcast_that_is_stored_is_the_one_that_was_answered(tmp_path):
    config = replace(CONFIG, method="fedavg", models="small-mlp")
    directory = trained(tmp_path / "run", config)
    first = get_payload(directory.message(directory.broadcast_path(1)), Model).state
    second = get_payload(directory.message(directory.broadcast_path(2)), Model).state
    sizes = [len(setup.train) for setup in prepare(config, CPU).clients]
    uploads = [get_payload(directory.message(directory.upload_path(1, k)), Model).state for k in range(4)]
    for name, value in second.items():
        mean = sum(n / sum(sizes) * upload[name] for n, upload in zip(sizes, uploads, strict=True))
        expect_close(mean, value, atol=1e-6)
        assert not torch.equal(first[name], value)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"models": "small-cn"}, "did you mean 'small-cnn'"),
        ({"options": {"mechanism": "XYZ"}}, "options of fedre: mechanism: input should be 'RSR'"),
        ({"options": {"mecanism": "RAP"}}, "unknown key 'mecanism'; did you mean 'mechanism'"),
        ({"options": {"server": {"epochs": 0}}}, "server.epochs: input should be greater than or equal to 1"),
        ({"clients": 500}, "client"),
        ({"dataset": "cifar10", "data_dir": "/no/such/place"}, "/no/such/place"),
        ({"models": "resnet18", "image_size": 8, "clients": 99, "per_class": 20}, "client"),
        ({"models": "cnn4"}, "cnn4"),
        (
            {"mapping": "none"},
            "method 'fedre' sends 'entangled', of one width for all clients, but models have 128, 256",
        ),
        ({"mapping": "none", "width": 64}, "width=64: with mapping='none' models keep their own"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(change, complaint):
    with pytest.raises(UserError) as caught:
        prepare(replace(CONFIG, **change), CPU)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ["fedhenn", "fedhenn-kernel"])
def test_models_keep_their_own_widths_where_nothing_of_one_width_is_sent(method, tmp_path):
    config = replace(CONFIG, method=method, options={"weight": 9.0}, mapping="none", public=8, rounds=2)
    directory = trained(tmp_path / "run", config)
    heads = [directory.client_state(2, client)["model.head.weight"].shape[1] for client in range(4)]
    assert heads == [128, 256, 256, 128]
    sizes = {"classes": 10, "clients": 4, "public": 8, "image_size": 8, "channels": 1}
    counts = cost(method, models="small", mapping="none", **sizes).methods[0]["communication"]["full"]
    last = vars(directory.rounds()[-1].communication.full)
    assert counts == {f"{name}_per_round": value for name, value in last.items()}


def test_divergence_is_reported_not_stored(tmp_path):
    config = replace(CONFIG, training=LocalTraining(learning_rate=1e6))
    directory = RunDirectory.create(tmp_path / "run", config)
    with pytest.raises(UserError, match="became NaN or infinite; training diverged"):
        run(prepare(config, CPU), directory, run_clients)


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


# ---------------------------------------------------------------- directories that are not what they should be


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("runs") / "finished")


@pytest.fixture
def spoilt(finished, tmp_path):
    shutil.copytree(finished.path, tmp_path / "run")
    return forged(tmp_path / "run")


def rewrite(path, change):
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def test_a_tampered_configuration_is_refused(spoilt):
    rewrite(spoilt / "config.json", lambda values: values.update(rounds=-1))
    with pytest.raises(UserError, match=r"config.json: rounds: input should be greater"):
        RunDirectory.open(spoilt)
    rewrite(spoilt / "config.json", lambda values: values.update(rounds=3, colour="red"))
    with pytest.raises(UserError, match=r"config.json: unknown key 'colour'"):
        RunDirectory.open(spoilt)


def test_an_upload_that_is_not_stored_is_refused(spoilt):
    directory = RunDirectory.open(spoilt)
    with pytest.raises(UserError, match="stored no such message"):
        directory.message(directory.upload_path(9, 1))


def test_damaged_lines_and_checkpoints_are_refused(spoilt):
    directory = RunDirectory.open(spoilt)
    write_text(spoilt / "metrics.jsonl", '{"round": 1}\nnonsense\n{"round": 2}\n')
    with pytest.raises(UserError, match=r"metrics.jsonl:2: not a line of JSON"):
        directory.lines("metrics")
    state = directory.checkpoint_path(3) / "client-001.safetensors"
    whole = state.read_bytes()
    write_bytes(state, whole[:40])
    with pytest.raises(UserError, match=r"client-001\.safetensors: not readable as safetensors"):
        directory.client_state(3, 1)
    state.unlink()
    with pytest.raises(UserError, match="checkpoint is incomplete"):
        directory.client_state(3, 1)


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="no such run directory"):
        RunDirectory.open(tmp_path / "nothing")
    with pytest.raises(UserError, match="not a run directory"):
        RunDirectory.open(tmp_path)
