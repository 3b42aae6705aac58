"""Attacks on runs that were recorded elsewhere: forms of their uploads, the facts of their owner, and what is refused."""

import json
import re
import sys

import pytest
import torch
from torch import nn

import fedpriv
from fedpriv.cli.main import run as command
from fedpriv.integrations.recorder import Recorder
from fedpriv.util.errors import UserError

NODES = {0: "8123", 1: "77", 2: "51"}
"""Client of ours -> the name that a framework draws for it."""


def tiny():
    torch.manual_seed(11)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.Sigmoid(), nn.Linear(6, 3))


def tiny_data(partition):
    rng = torch.Generator().manual_seed(40 + partition)
    return torch.rand(2, 1, 4, 4, generator=rng), torch.tensor([0, 1 + partition % 2])


def tiny_auxiliary():
    rng = torch.Generator().manual_seed(9)
    return torch.rand(60, 1, 4, 4, generator=rng), torch.arange(60) % 3


def step(state, partition, rate=0.5):
    """The state of the tiny model after one step of a client."""
    model = tiny()
    model.load_state_dict(state)
    images, labels = tiny_data(partition)
    loss = nn.functional.cross_entropy(model(images), labels)
    names = list(state)
    return {
        n: state[n] - rate * g for n, g in zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True)
    }


def tiny_run(path, rounds=2, change=lambda number, client, arrays: arrays, **facts):
    """A federation of three clients, recorded, whose uploads ``change`` may change; returns its folder."""
    recorder, state = Recorder(path, "hand 1.0", say=print), tiny().state_dict()
    for number in range(1, rounds + 1):
        recorder.broadcast(number, list(NODES.values()), {"arrays": state})
        uploads = [step(state, k) for k in NODES]
        for (k, name), own in zip(NODES.items(), uploads, strict=True):
            recorder.upload(number, name, {"arrays": change(number, k, own)} if change else {}, facts=facts)
        recorder.settled(number)
        state = {name: torch.stack([one[name] for one in uploads]).mean(0) for name in state}
    recorder.close()
    assert not recorder.stopped
    return path


def tiny_facts(**more):
    own = {
        "model": tiny,
        "data": tiny_data,
        "auxiliary": tiny_auxiliary,
        "batch": {"learning_rate": 0.5, "batch_size": 2},
    }
    return own | {"partitions": {name: k for k, name in NODES.items()}} | more


QUICK = {"target": "model", "attacks": "dlg", "iterations": 2, "targets": 3, "restarts": 1, "redact": "none"}


def attacked(run, **facts):
    left_out = [name for name, value in facts.items() if value is None]
    given = {name: value for name, value in tiny_facts(**facts).items() if name not in left_out}
    return fedpriv.attack(run, facts=given, **QUICK)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    run = tiny_run(tmp_path_factory.mktemp("plain") / "run")
    return run, attacked(run)


def images(result):
    return result.load("dlg").reconstruction.images


@pytest.mark.parametrize(
    "changed",
    [
        {"change": lambda number, k, own: {str(place): value for place, value in enumerate(own.values())}},
        {"change": lambda number, k, own: own | {"count": torch.tensor(7), "steps": torch.ones(2, dtype=torch.int32)}},
        {"change": lambda number, k, own: {n: v - s for (n, v), s in zip(own.items(), STARTS[number], strict=True)}},
    ],
    ids=["positions", "whole numbers beside", "differences"],
)
def test_forms_of_the_same_weights_are_the_same_attack(tmp_path, plain, changed, request):
    if "differences" in request.node.name:
        state = tiny().state_dict()
        for number in (1, 2):
            STARTS[number] = list(state.values())
            uploads = [step(state, k) for k in NODES]
            state = {name: torch.stack([one[name] for one in uploads]).mean(0) for name in state}
    difference = {"difference": True} if "differences" in request.node.name else {}
    found = attacked(tiny_run(tmp_path / "run", **changed, **difference))
    if difference:  # subtracted and added again: equal but for rounding
        torch.testing.assert_close(images(found), images(plain[1]), rtol=0, atol=1e-2)
    else:
        assert torch.equal(images(found), images(plain[1]))


STARTS = {}


def test_uploads_that_cannot_be_attacked_are_left_out_by_name(tmp_path):
    def change(number, k, own):
        if number == 2 and k == 0:
            return own | {"1.weight": own["1.weight"] * float("nan")}
        if number == 2 and k == 1:
            return own | {"1.weight": torch.ones(6, 15)}
        return own

    found = attacked(tiny_run(tmp_path / "run", change=change))
    assert "left out: round 2, client 8123: weights['1.weight'] holds NaN or infinity" in found.notices
    assert "left out: round 2, client 77: '1.weight' is (6, 15) where the broadcast has (6, 16)" in found.notices
    assert {target.client for target in found.load("dlg").reconstruction.targets} == {2}


def test_of_a_sum_only_the_sum_is_attacked_and_said(tmp_path, plain):
    masked = tiny_run(tmp_path / "masked", change=None, masked=True)
    claimed = attacked(plain[0], defense=["secure-aggregation"])
    found = attacked(masked)
    for result in (found, claimed):
        assert any("only the sum is seen" in line and "the broadcast of round 2" in line for line in result.notices)
        assert any("no negative control: the server sees one sum" in line for line in result.notices)
        about = result.load("dlg").about
        assert [one.name for one in about.defenses] == ["secure-aggregation"]
        assert {target.round for target in result.load("dlg").reconstruction.targets} == {1}
    assert torch.equal(images(found), images(claimed))
    with pytest.raises(UserError, match="round=2: not recorded, or nobody uploaded in it; there are: 1"):
        fedpriv.attack(masked, facts=tiny_facts(), round=2, **QUICK)


def test_members_are_told_from_the_held_out_images_of_their_partition(plain):
    def held_out(partition):
        rng = torch.Generator().manual_seed(140 + partition)
        return torch.rand(2, 1, 4, 4, generator=rng), tiny_data(partition)[1]

    asked = {"target": "model", "attacks": "membership", "redact": "none"}
    for facts, whose in (({"held_out": held_out}, "held_out"), ({}, "others")):
        record = fedpriv.attack(plain[0], facts=tiny_facts(**facts), **asked).scores["membership"]
        assert record.nonmembers == whose
        assert record.baseline.name == "broadcast_model"
    with pytest.raises(UserError, match="held_out: client 0: image 0 is one of client 0's"):
        fedpriv.attack(plain[0], facts=tiny_facts(held_out=tiny_data), **asked)


WRONG = [
    ({"model": None}, r"no model \(a function of no argument"),
    ({"data": None}, "no data .*nothing can be scored without"),
    ({"auxiliary": None}, "no auxiliary images"),
    ({"model": "tiny"}, "expected a function or package.module:NAME, got 'tiny'"),
    ({"model": "no_such_app:Net"}, "module 'no_such_app' cannot be imported"),
    ({"model": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 3))}, r"1\.weight"),
    ({"data": lambda partition: {0: 1}[partition + 5]}, r"data: .*\(.\) failed: KeyError"),
    ({"data": lambda partition: (torch.rand(2, 1, 4, 4) * 255, [0, 1])}, r"expected \[0, 1\]"),
    ({"kinds": {"arrays": "prototype"}}, "kinds: no set of arrays is said to be of kind 'model' .*recorded: arrays"),
    ({"kinds": {"others": "prototype"}, "phase": "fit"}, "no round of phase 'fit'"),
    ({"partitions": {"1": 0}}, "nothing says which data client"),
    ({"partitions": {"8123": 0, "77": 0, "51": 1}}, "both said to hold 0"),
    ({"batch": {"learning_rate": 0.5, "batch_size": 2, "steps": 9}}, "18 images in 9 step"),
    ({"modle": tiny}, "unknown key 'modle'; did you mean 'model'"),
]


@pytest.mark.parametrize(("facts", "told"), WRONG, ids=[str(n) for n in range(len(WRONG))])
def test_wrong_facts_are_one_line(plain, monkeypatch, tmp_path, facts, told):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=told) as caught:
        attacked(plain[0], **facts)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"resume": True}, "drop resume, begin anew"),
        ({"clients": 3}, "trained already; drop clients"),
        ({"round": 9}, "there are: 1, 2"),
    ],
)
def test_settings_for_runs_of_fedpriv_are_refused(plain, settings, told):
    with pytest.raises(UserError, match=told):
        fedpriv.attack(plain[0], facts=tiny_facts(), **QUICK, **settings)


def test_facts_beside_the_run_and_truth_of_the_clients_serve_the_command_line(tmp_path, monkeypatch, capsys):
    from fedpriv.integrations.run import write_partition

    run = tiny_run(tmp_path / "mine")
    for k, name in NODES.items():
        write_partition(tmp_path / "told", name, k)
    (tmp_path / "own_app.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def Net(): return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.Sigmoid(), nn.Linear(6, 3))\n"
        "def data(k): return torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(40 + k)), torch.tensor([0, 1])\n"
        "def strangers(): return torch.rand(60, 1, 4, 4), torch.arange(60) % 3\n"
    )
    (tmp_path / "mine.toml").write_text(
        'model = "own_app:Net"\ndata = "own_app:data"\nauxiliary = "own_app:strangers"\ntruth = "told"\n'
        "normalize = { mean = [0.5], std = [0.5] }\n[batch]\nlearning_rate = 0.5\nbatch_size = 2\n"
    )
    given = ["attack", "--run", str(run), "--target", "model", "--attack", "dlg", "--iterations", "3", "--quiet"]
    assert command([*given, "--out", str(tmp_path / "result")]) == 2
    refused = capsys.readouterr().err
    assert "'own_app'" in refused
    assert str(tmp_path / "mine.toml") in refused
    assert "allow_code='own_app'" in refused
    assert "own_app" not in sys.modules
    given += ["--allow-code", "own_app"]
    assert command([*given, "--out", str(tmp_path / "result")]) == 0
    about = json.loads((tmp_path / "result" / "dlg" / "about.json").read_text())
    assert (about["method"], about["target"]) == ("recorded (hand 1.0)", "model")
    assert about["redacted"] == "omit"  # whose images these are is not asked
    kept = {path.name for path in (tmp_path / "result" / "dlg").iterdir()}
    assert not kept & {"truth.safetensors", "grid.png"}
    assert (tmp_path / "result" / "report.html").is_file()
    (tmp_path / "mine.toml").write_text('model = "own_app:Net"\ntruth = "elsewhere"\n')
    assert command([*given, "--out", str(tmp_path / "second")]) == 2
    assert re.search(r"nothing says which data client \d+ holds: .*elsewhere has no truth", capsys.readouterr().err)
    assert not (tmp_path / "second").exists()
    assert command([*given, "--out", str(run / "inside")]) == 2
    assert "overlaps" in capsys.readouterr().err
