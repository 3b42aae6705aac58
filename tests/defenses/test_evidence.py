"""Defended runs: what is recorded, what the server sees, which truth stands behind it, and that noise costs the attacker."""

from dataclasses import replace

import pytest
import torch
from compare import expect_close
from federations import small, trained_small

from fedpriv.attacks.observation import ThreatModel
from fedpriv.defenses import parse_choice
from fedpriv.federation.local_training import represent
from fedpriv.federation.states import put
from fedpriv.models.build import build_model
from fedpriv.sources.case import build_case
from fedpriv.sources.run import RunSource
from fedpriv.uploads.payloads import Entangled, Model, SampleCount, get_payload

CONFIG = small("fedgh", per_class=20, clients=4, rounds=3, alpha=0.5)
CARD = ThreatModel()


def train(path, *texts, **changes):
    config = replace(CONFIG, defenses=tuple(parse_choice(text) for text in texts), **changes)
    return trained_small(path, config)


def test_secure_aggregation_hands_over_weighted_means_only(tmp_path):
    directory, federation = train(tmp_path / "run", "secure-aggregation", method="fedavg", models="small-mlp", rounds=1)
    seen = build_case(RunSource(directory, federation, "model"), CARD, n_targets=4, seed=0)
    uploads = [directory.message(directory.upload_path(1, k)) for k in range(4)]
    counts = torch.tensor([int(get_payload(u, SampleCount).count) for u in uploads]).double()
    for name in get_payload(uploads[0], Model).state:
        values = torch.stack([get_payload(u, Model).state[name].double() for u in uploads])
        shape = (-1, *[1] * (values.dim() - 1))
        mean = (values * (counts / counts.sum()).reshape(shape)).sum(0)
        others = counts.clone()
        others[2] = 0
        without = (values * (others / others.sum()).reshape(shape)).sum(0)
        for observation in seen.observations:
            expect_close(get_payload(observation.upload, Model).state[name].double(), mean, atol=1e-6)
        expect_close(get_payload(seen.shuffled[2].upload, Model).state[name].double(), without, atol=1e-6)
    assert all(int(get_payload(o.upload, SampleCount).count) == int(counts.sum()) for o in seen.observations)


@pytest.mark.parametrize(
    ("method", "mechanism"), [("fedgh", "RAP"), ("fedgh", "RSP"), ("fedallrep", "RAR"), ("fedallrep", "RSR")]
)
def test_the_truth_behind_an_entangled_upload_is_what_was_mixed(method, mechanism, tmp_path):
    directory, federation = train(
        tmp_path / "run", "count-floor:least=3", f"entangle:mechanism={mechanism}", method=method, rounds=2
    )
    seen = build_case(RunSource(directory, federation, "entangled"), CARD, n_targets=4, seed=0)
    assert {o.upload[0].kind for o in seen.observations} == {"entangled"}
    for target, truth in zip(
        seen.targets, RunSource(directory, federation, "entangled").truths(seen.targets, seed=0), strict=True
    ):
        model = build_model(federation.clients[target.client].blueprint, 0)
        put(model, directory.client_state(2, target.client), "model")
        mixed = truth.weights.float() @ represent(model, truth.members)
        sent = get_payload(directory.message(directory.upload_path(2, target.client)), Entangled)
        expect_close(mixed, sent.feature, atol=1e-4)
        by_class = torch.zeros(10).index_add_(0, truth.labels, truth.weights.float())
        expect_close(by_class, sent.label_encoding, atol=1e-5)


def test_a_run_records_its_privacy_and_what_was_really_sent(tmp_path):
    directory, _ = train(tmp_path / "run", "entangle", "dp-noise:epsilon=8", rounds=4)
    record = directory.summary.privacy[0]
    assert (record["defense"], record["releases"]) == ("dp-noise", 4)
    assert record["epsilon"] <= 8
    assert {row.name for row in directory.ledger() if row.direction == "upload"} == {
        "entangled.feature",
        "entangled.label_encoding",
    }
    assert directory.summary.communication.paper.upload_scalars == 4 * 4 * 128
