"""Guesses at vectors and images: made of strangers, broadcasts and other clients' uploads, and of nothing of the target."""

import dataclasses

import pytest
import torch
from compare import expect_close, expect_same

from fedpriv.attacks.features.unmixing import PriorUnmixing
from fedpriv.attacks.observation import KnowledgeCard
from fedpriv.datasets.federated import PartitionOptions
from fedpriv.federation.engine import run_clients
from fedpriv.federation.method import LocalTraining
from fedpriv.federation.rounds import run
from fedpriv.federation.run_directory import RunConfig, RunDirectory
from fedpriv.sources.case import build_case
from fedpriv.sources.federation import prepare
from fedpriv.sources.guesses import with_guesses
from fedpriv.sources.run import RunSource
from fedpriv.wire.payloads import Classifier, Prototypes, get_payload

CPU = torch.device("cpu")


def trained(folder, method, **changes):
    settings = {
        **{"dataset": "digits", "strangers": 0.4, "method": method, "per_class": 40, "clients": 3, "rounds": 2},
        **{
            "models": "small-mlp",
            "partition": PartitionOptions(alpha=1.0),
            "training": LocalTraining(learning_rate=0.1),
        },
    }
    config = RunConfig(**(settings | changes))
    directory = RunDirectory.create(folder / "run", config)
    federation = prepare(config, CPU)
    run(federation, directory, run_clients)
    return directory, federation


@pytest.fixture(scope="module")
def prototypes(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("prototypes"), "fedgh")


@pytest.fixture(scope="module")
def mixtures(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("mixtures"), "fedre", options={"mechanism": "RAP"})


def guessed(world, kind, unit, **grants):
    directory, federation = world
    card = KnowledgeCard(rounds_seen=2, **grants)
    evidence = build_case(
        RunSource(directory, federation, kind), card, PriorUnmixing() if unit == "class" else None, n_targets=30, seed=0
    )
    found = RunSource(directory, federation, kind).truths(evidence.targets, seed=0, unit=unit)
    return evidence, with_guesses(found, evidence, kind, unit, device=CPU)


def test_three_parts_of_the_images_share_none(prototypes):
    _, federation = prototypes
    _, found = guessed(prototypes, "prototype", "row")
    own = federation.attacker.images.flatten(1)
    for truth in found:
        guesses, decoys, members = (part.flatten(1) for part in (truth.pool.guesses, truth.pool.decoys, truth.members))
        for left, right in ((guesses, decoys), (guesses, own), (decoys, own), (members, guesses), (members, decoys)):
            assert not (torch.cdist(left, right) < 1e-6).any()  # digits holds no image twice


def test_guesses_at_a_prototype_by_hand(prototypes):
    evidence, found = guessed(prototypes, "prototype", "row")
    for target, truth in zip(evidence.targets, found, strict=True):
        assert set(truth.vectors) == {"strangers", "head_rows", "other_uploads", "mean_upload"}
        pool, extractor = truth.pool, evidence.knowledge.extractors[target.client]
        expected = extractor(pool.guesses[pool.guess_labels == target.label]).mean(0)
        expect_close(truth.vectors["strangers"], expected, atol=1e-4)
        others = [
            get_payload(o.upload, Prototypes)
            for o in evidence.observations
            if (o.round, o.client) != (target.round, target.client) and o.round == target.round
        ]
        rows = [p.features[p.classes == target.label] for p in others]
        if len(torch.cat(rows)):
            expect_close(truth.vectors["other_uploads"], torch.cat(rows).mean(0), atol=1e-5)
        upload = next(o for o in evidence.observations if (o.round, o.client) == (target.round, target.client))
        row = get_payload(upload.upload, Prototypes).features[target.index]
        nearest = (extractor(pool.guesses) - row).norm(dim=1).argmin()
        assert truth.nearest[0] == nearest


def test_rows_of_the_classifier_are_scaled_without_the_truth(prototypes):
    evidence, found = guessed(prototypes, "prototype", "row")
    client = evidence.targets[0].client
    mine = [(t, truth) for t, truth in zip(evidence.targets, found, strict=True) if t.client == client]
    broadcast = next(o.broadcast for o in evidence.observations if (o.round, o.client) == (mine[0][0].round, client))
    weight = get_payload(broadcast, Classifier).state["weight"]
    apart = [truth.vectors["head_rows"] - mine[0][1].vectors["head_rows"] for _, truth in mine[1:]]
    rows = [weight[target.label] - weight[mine[0][0].label] for target, _ in mine[1:]]
    scales = {round(float((a @ r) / (r @ r)), 4) for a, r in zip(apart, rows, strict=True)}
    assert len(scales) == 1  # one scale for all classes


@pytest.mark.parametrize(("kind", "unit"), [("prototype", "row"), ("entangled", "class")])
def test_no_guess_sees_the_targets_upload_or_its_members(kind, unit, prototypes, mixtures):
    world = prototypes if kind == "prototype" else mixtures
    evidence, found = guessed(world, kind, unit)
    target, truth = evidence.targets[0], found[0]

    def spoilt(seen):
        if seen.client != target.client:
            return seen
        changed = tuple(
            dataclasses.replace(p, **{p.values_field(): getattr(p, p.values_field()) * 3 + 1}) if p.kind == kind else p
            for p in seen.upload
        )
        return dataclasses.replace(seen, upload=changed)

    other = dataclasses.replace(evidence, observations=tuple(spoilt(seen) for seen in evidence.observations))
    secrets = [dataclasses.replace(one, members=1 - one.members, nearest=None, vectors={}) for one in found]
    again = with_guesses(secrets, other, kind, unit, device=CPU)[0]
    assert truth.vectors
    for name, guess in truth.vectors.items():
        expect_same(again.vectors[name], guess)


def test_mixtures_have_guesses_at_every_class(mixtures):
    _, found = guessed(mixtures, "entangled", "class")
    for truth in found:
        assert set(truth.vectors) == {"strangers", "head_rows", "other_uploads", "mean_upload"}
        assert truth.nearest is None
        assert all(guess.shape == truth.feature.shape for guess in truth.vectors.values())
    blind = torch.stack([truth.vectors["strangers"] for truth in found])
    true = torch.stack([truth.feature for truth in found])
    assert ((blind - true).norm(dim=1) / true.norm(dim=1)).median() < 0.6


def test_without_an_extractor_or_classes_guesses_know_less(prototypes):
    evidence, found = guessed(prototypes, "prototype", "row")
    bare = dataclasses.replace(evidence, knowledge=dataclasses.replace(evidence.knowledge, extractors={}))
    truth = with_guesses(found, bare, "prototype", "row", device=CPU)[0]
    assert "strangers" not in truth.vectors
    assert truth.nearest is None
    silent = tuple(dataclasses.replace(target, label=-1) for target in evidence.targets)
    hidden = with_guesses(found, dataclasses.replace(evidence, targets=silent), "prototype", "row", device=CPU)
    assert not any(truth.told for truth in hidden)
    assert set(hidden[0].vectors) == {"strangers", "mean_upload"}
    features = evidence.knowledge.extractors[silent[0].client](hidden[0].pool.guesses)
    expect_close(hidden[0].vectors["strangers"], features.mean(0), atol=1e-4)
