"""Guesses at vectors and images: made of auxiliary images, broadcasts and other clients' uploads, not of the target."""

import dataclasses

import pytest
import torch
from compare import expect_same

from fedpriv.attacks.features.posterior import UnmixedInversion
from fedpriv.attacks.observation import ThreatModel
from fedpriv.datasets.partition import PartitionOptions
from fedpriv.federation.method import LocalTraining
from fedpriv.federation.rounds import run, run_clients
from fedpriv.federation.run_directory import RunConfig, RunDirectory
from fedpriv.sources.case import build_case
from fedpriv.sources.guesses import with_guesses
from fedpriv.sources.run import RunSource, prepare

CPU = torch.device("cpu")


def trained(folder, method, **changes):
    settings = {
        **{"dataset": "digits", "auxiliary": 0.4, "method": method, "per_class": 40, "clients": 3, "rounds": 2},
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
    card = ThreatModel(rounds_seen=2, **grants)
    by = UnmixedInversion() if unit == "class" else None
    evidence = build_case(RunSource(directory, federation, kind), card, by, n_targets=30, seed=0)
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
        assert set(truth.vectors) == {"auxiliary", "head_rows", "other_uploads", "mean_upload"}
        assert truth.nearest is None
        assert all(guess.shape == truth.feature.shape for guess in truth.vectors.values())
    blind = torch.stack([truth.vectors["auxiliary"] for truth in found])
    true = torch.stack([truth.feature for truth in found])
    assert ((blind - true).norm(dim=1) / true.norm(dim=1)).median() < 0.6
