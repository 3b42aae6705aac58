"""Attacks on defended runs: what the server sees, which truth stands behind it, and that noise costs the attacker."""

from dataclasses import replace

import pytest
import torch
from compare import expect_close
from federations import CPU, small, train_small

from fedpriv.attacks.features.unmixing import PriorUnmixing, uploads_of
from fedpriv.attacks.inversion.vector import DipInversion
from fedpriv.attacks.observation import KnowledgeCard
from fedpriv.defenses import parse_choice
from fedpriv.federation.capture import load_trace
from fedpriv.federation.local_training import represent
from fedpriv.federation.states import put
from fedpriv.models.build import build_model
from fedpriv.sources.case import build_case
from fedpriv.sources.run import RunSource
from fedpriv.util.errors import UserError
from fedpriv.wire.payloads import Entangled, Kernel, Model, Representations, SampleCount, get_payload

CONFIG = small(
    "fedgh",
    per_class=20,
    clients=4,
    rounds=3,
    alpha=0.5,
)
CARD = KnowledgeCard()


def train(path, *texts, **changes):
    config = replace(CONFIG, defenses=tuple(parse_choice(text) for text in texts), **changes)
    return train_small(path, config)


def own_features(directory, federation, client, round_):
    model = build_model(federation.clients[client].blueprint, 0)
    put(model, directory.client_state(round_, client), "model")
    return represent(model, federation.clients[client].train.images)


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
        expect_close(get_payload(seen.permuted[2].upload, Model).state[name].double(), without, atol=1e-6)
    assert all(int(get_payload(o.upload, SampleCount).count) == int(counts.sum()) for o in seen.observations)


def test_secure_aggregation_of_kernels_and_refusal_of_servers_that_need_each(tmp_path):
    directory, federation = train(
        tmp_path / "run", "secure-aggregation", method="fedhenn-kernel", public=40, rounds=1, models="small-mlp"
    )
    seen = build_case(RunSource(directory, federation, "kernel"), CARD, n_targets=4, seed=0)
    kernels = [get_payload(directory.message(directory.upload_path(1, k)), Kernel).matrix for k in range(4)]
    expect_close(get_payload(seen.observations[0].upload, Kernel).matrix, torch.stack(kernels).mean(0), atol=1e-6)
    with pytest.raises(UserError, match=r"secure-aggregation.*fedgh.*single uploads"):
        train(tmp_path / "other", "secure-aggregation")


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


def test_a_dropped_class_does_not_shift_the_truth_of_representations(tmp_path):
    directory, federation = train(tmp_path / "run", "count-floor:least=5", method="fedallrep", rounds=1)
    seen = build_case(RunSource(directory, federation, "representation"), CARD, n_targets=40, seed=0)
    dropped = 0
    for target, truth in zip(
        seen.targets, RunSource(directory, federation, "representation").truths(seen.targets, seed=0), strict=True
    ):
        sent = get_payload(directory.message(directory.upload_path(1, target.client)), Representations)
        dropped += len(federation.clients[target.client].train) - len(sent.features)
        model = build_model(federation.clients[target.client].blueprint, 0)
        put(model, directory.client_state(1, target.client), "model")
        expect_close(represent(model, truth.members)[0], sent.features[target.index], atol=1e-4)
    assert dropped > 0


def test_targets_of_noisy_encodings_are_classes_that_the_client_has(tmp_path):
    directory, federation = train(tmp_path / "run", "hide-labels:how=laplace,epsilon=2", method="fedre")
    card = replace(CARD, rounds_seen=3)
    seen = build_case(RunSource(directory, federation, "entangled"), card, PriorUnmixing(), n_targets=40, seed=0)
    assert seen.targets
    for target in seen.targets:
        assert bool((federation.clients[target.client].train.labels == target.label).any())
    assert RunSource(directory, federation, "entangled").truths(seen.targets, seed=0, unit="class")
    blind = replace(CARD, extractor="none")
    early = build_case(RunSource(directory, federation, "entangled"), blind, n_targets=4, seed=0, round_=1)
    for target, truth in zip(
        early.targets, RunSource(directory, federation, "entangled").truths(early.targets, seed=0), strict=True
    ):
        mixed = load_trace(directory, 1, target.client).mixture
        assert torch.equal(truth.weights, mixed[mixed > 0].double() / mixed.double().sum())


def test_noise_costs_the_attacker_and_without_it_the_same_attack_works(tmp_path):
    """The control: one and the same inversion, on the same targets, with and without noise on the uploads."""
    errors = {}
    for name, texts in {"none": (), "little": ("noise:scale=0.001",), "much": ("noise:scale=3",)}.items():
        directory, federation = train(tmp_path / name, *texts, method="fedallrep", rounds=1)
        seen = build_case(RunSource(directory, federation, "representation"), CARD, n_targets=6, seed=0)
        found = DipInversion(iterations=150)(seen.observations, seen.knowledge, seen.targets, seed=0, device=CPU)
        true = RunSource(directory, federation, "representation").truths(seen.targets, seed=0)
        errors[name] = [
            float((image[0] - truth.members[0]).square().mean())
            for image, truth in zip(found.images, true, strict=True)
        ]
    mean = {name: sum(values) / len(values) for name, values in errors.items()}
    assert mean["none"] == pytest.approx(mean["little"], rel=0.5)
    assert mean["much"] > 1.5 * mean["none"]


def test_unmixing_answers_resampled_entanglement_and_not_fixed(tmp_path):
    """The adaptive answer on a stand-still extractor: resampled weights give the prototypes back, fixed ones do not."""
    from defense_cases import build

    from fedpriv.attacks.observation import Observation
    from fedpriv.federation.defense import DefensePipeline, Sender
    from fedpriv.wire.payloads import Prototypes

    prototypes = torch.randn(6, 32, generator=torch.Generator().manual_seed(0))
    message = (Prototypes(prototypes, torch.arange(6)),)
    labels = torch.arange(6).repeat_interleave(5)

    def error(text, rounds=12):
        pipeline = DefensePipeline(build(*text))
        seen = [
            Observation(t, 0, sent, ())
            for t in range(1, rounds + 1)
            if (sent := pipeline.upload(message, Sender(t, 0, 6, labels, (), rounds), 0))
        ]
        features, weights, _ = uploads_of(seen, 0)
        found = torch.linalg.pinv(weights.double(), rtol=1e-8) @ features.double()
        return float((found - prototypes).norm() / prototypes.norm())

    assert error(["entangle"]) < 1e-3
    assert error(["entangle:weights=fixed"]) > 0.5
    assert error(["entangle", "upload-interval:k=4"]) > 0.3  # three equations in six unknowns
    assert error(["entangle", "upload-interval:k=4"], rounds=40) < 1e-3
    short, long = (error(["entangle", "noise:scale=0.1"], rounds=n) for n in (12, 120))
    assert long < 0.6 * short
