"""Attacks on recorded runs: those on a federation of ours, replayed through the recorder, are the same bit for bit."""

from dataclasses import replace

import pytest
import torch
from federations import CPU, small, trained_small
from torch import nn

import fedpriv
from fedpriv.federation.method import LocalTraining
from fedpriv.integrations.recorder import Recorder
from fedpriv.models.build import build_model
from fedpriv.sources.run import local_steps
from fedpriv.uploads.payload import find_payload
from fedpriv.uploads.payloads import Model, Prototypes
from fedpriv.util.errors import UserError

NODES = {0: "8123", 1: "77", 2: "51"}
"""Client of ours -> the name that a framework draws for it."""


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
    for name in ("images", "objective", "chosen", "labels"):
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
