"""Attacks on recorded runs: forms of uploads, the facts of their owner; replayed runs of ours give the same bit for bit."""

import json
import re
import sys
from dataclasses import replace

import pytest
import torch
from federations import CPU, small, trained_small
from torch import nn

import fedpriv
from fedpriv.cli.main import run as command
from fedpriv.federation.method import LocalTraining
from fedpriv.integrations.recorder import Recorder
from fedpriv.models.build import build_model
from fedpriv.sources.run import local_steps
from fedpriv.uploads.payload import find_payload
from fedpriv.uploads.payloads import Model, Prototypes
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


def attacked(run, settings=(), **facts):
    left_out = [name for name, value in facts.items() if value is None]
    given = {name: value for name, value in tiny_facts(**facts).items() if name not in left_out}
    return fedpriv.attack(run, facts=given, **QUICK, **dict(settings))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    run = tiny_run(tmp_path_factory.mktemp("plain") / "run")
    return run, attacked(run)


def images(result):
    return result.load("dlg").reconstruction.images


def test_forms_of_the_same_weights_are_the_same_attack(tmp_path, plain):
    starts, state = [], tiny().state_dict()
    for _ in range(2):
        starts.append(state)
        uploads = [step(state, k) for k in NODES]
        state = {name: torch.stack([one[name] for one in uploads]).mean(0) for name in state}
    forms = {
        "positions": lambda number, k, own: {str(place): value for place, value in enumerate(own.values())},
        "beside": lambda number, k, own: own | {"count": torch.tensor(7), "steps": torch.ones(2, dtype=torch.int32)},
        "differences": lambda number, k, own: {name: value - starts[number - 1][name] for name, value in own.items()},
    }
    for form, change in forms.items():
        differs = {"difference": True} if form == "differences" else {}
        found = images(attacked(tiny_run(tmp_path / form, change=change, **differs)))
        # What is subtracted and added again is equal but for rounding.
        torch.testing.assert_close(found, images(plain[1]), rtol=0, atol=1e-2 if differs else 0, msg=form)


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
    ({"resume": True}, "drop resume, begin anew"),
    ({"clients": 3}, "trained already; drop clients"),
    ({"round": 9}, "there are: 1, 2"),
]


@pytest.mark.parametrize(("wrong", "told"), WRONG, ids=[str(n) for n in range(len(WRONG))])
def test_wrong_facts_and_settings_for_runs_of_fedpriv_are_one_line(plain, monkeypatch, tmp_path, wrong, told):
    monkeypatch.chdir(tmp_path)
    settings = {name: wrong[name] for name in ("resume", "clients", "round") if name in wrong}
    with pytest.raises(UserError, match=told) as caught:
        attacked(plain[0], settings, **({} if settings else wrong))
    assert "\n" not in str(caught.value)


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


def replay(run, path, sets):
    """Send what crossed a run of ours through the recorder; ``sets`` makes sets of arrays of a message."""
    recorder = Recorder(path, "replay 1.0", say=print)
    for number, clients in run.captured_rounds().items():
        recorder.broadcast(number, [NODES[k] for k in clients], sets(run.message(run.broadcast_path(number))))
        for k in reversed(clients):
            recorder.upload(number, NODES[k], sets(run.message(run.upload_path(number, k))), facts={"num-examples": 1})
        recorder.settled(number)
    recorder.close()
    assert not recorder.stopped
    return path


def weights_of(message):
    return {"arrays": {name: value.numpy() for name, value in find_payload(message, Model).state.items()}}


def prototypes_of(message):
    found = find_payload(message, Prototypes)
    return (
        {} if found is None else {"protos": {"means": found.features, "classes": found.classes, "counts": found.counts}}
    )


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A run of ours of single steps on four images, and the same recorded."""
    path = tmp_path_factory.mktemp("weights")
    training = LocalTraining(learning_rate=0.1, batch_size=4, max_steps=1)
    config = small(
        "fedavg", clients=3, per_class=12, rounds=2, capture="all", models="lenet-sigmoid", training=training
    )
    run, federation = trained_small(path / "ours", config)
    return run, federation, replay(run, path / "recorded", weights_of)


def facts_of(run, federation, **more):
    def model():
        first = federation.clients[0]
        return build_model(federation.method.shared(first.blueprint, first.options), 5).to(CPU)

    def data(partition, round_):
        images, labels = federation.clients[partition].train.batch(torch.cat(local_steps(run, round_, partition)))
        return images, labels

    return {
        "model": model,
        "data": data,
        "auxiliary": auxiliary,
        "partitions": {name: k for k, name in NODES.items()},
        "batch": {"learning_rate": 0.1, "batch_size": 4},
        "n_classes": 10,
    } | more


def auxiliary():
    rng = torch.Generator().manual_seed(3)
    return torch.rand(120, 1, 8, 8, generator=rng), torch.arange(120) % 10


ASKED = {"knowledge": {"attacker_data": "none"}, "iterations": 3, "targets": 2, "restarts": 1, "redact": "none"}


def test_an_attack_on_the_recorded_run_is_the_attack_on_ours_bit_for_bit(weights):
    run, federation, recorded = weights
    ours = fedpriv.attack(run.path, target="model", attacks="dlg", round=1, **ASKED)
    theirs = fedpriv.attack(recorded, target="model", attacks="dlg", round=1, facts=facts_of(run, federation), **ASKED)
    one, other = ours.load("dlg"), theirs.load("dlg")
    assert one.reconstruction.targets == other.reconstruction.targets
    for name in ("images", "objective", "labels"):
        assert torch.equal(getattr(one.reconstruction, name), getattr(other.reconstruction, name)), name
    assert torch.equal(one.shuffled.images, other.shuffled.images)
    for name in ("psnr_db", "mse_255", "ssim"):
        assert getattr(ours.records["dlg"].metrics, name) == getattr(theirs.records["dlg"].metrics, name)
    assert replace(theirs.records["dlg"].knowledge, extractor="white_box") == ours.records["dlg"].knowledge
    assert (theirs.path / "report.html").is_file()
    assert theirs.records["dlg"].method == "recorded (replay 1.0)"
    assert theirs.records["dlg"].premise.status == "agrees"
    assert ours.records["dlg"].premise is None  # fedpriv's own computation is the one that attacks assume


def test_all_rounds_together_where_a_function_tells_the_extractor_of_each(tmp_path):
    config = small("fedproto", clients=3, per_class=12, rounds=2, capture="all", keep=(1, 2), width=16)
    run, federation = trained_small(tmp_path / "ours", config)
    recorded = replay(run, tmp_path / "recorded", prototypes_of)
    shared = {k: build_model(federation.clients[k].blueprint, 0) for k in NODES}

    def extractor(partition, round_):
        state = run.client_state(round_, partition)
        shared[partition].load_state_dict(
            {n.removeprefix("model."): v for n, v in state.items() if n.startswith("model.")}
        )
        return _Extractor(shared[partition])  # one module for both rounds: what is handed over is copied

    def data(partition):
        return federation.clients[partition].train.batch(torch.arange(len(federation.clients[partition].train)))

    kinds = {"protos": {"kind": "prototype", "features": "means"}}
    facts = facts_of(run, federation, data=data, extractor=extractor, kinds=kinds)
    asked = {"target": "prototype", "attacks": "all-rounds"} | ASKED
    ours = fedpriv.attack(run.path, **asked)
    theirs = fedpriv.attack(recorded, facts=facts, **asked)
    one, other = ours.load("all-rounds").reconstruction, theirs.load("all-rounds").reconstruction
    assert one.targets == other.targets
    assert torch.equal(one.images, other.images)
    assert theirs.records["all-rounds"].knowledge.rounds_seen == 2
    with pytest.raises(UserError, match="earlier_extractors: missing; attack 'all-rounds'"):
        fedpriv.attack(recorded, facts=facts | {"extractor": lambda partition: extractor(partition, 2)}, **asked)


class _Extractor(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images):
        return self.model.represent(images)
