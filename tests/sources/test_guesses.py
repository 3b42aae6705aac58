"""Guesses at vectors and images: made of auxiliary images, broadcasts and other clients' uploads, not of the target."""

import dataclasses

import pytest
import torch
from compare import expect_close, expect_same
from federations import CPU, small

from fedpriv.attacks.features.posterior import UnmixedInversion
from fedpriv.attacks.observation import Knowledge, Observation, TargetId, ThreatModel
from fedpriv.sources.case import Case, build_case
from fedpriv.sources.guesses import with_guesses
from fedpriv.sources.run import RunSource
from fedpriv.sources.truth import Pool, Truth
from fedpriv.uploads.payloads import Classifier, Entangled, Prototypes


@pytest.fixture(scope="module")
def prototypes(trained):
    return trained(small("fedgh", **SETTINGS))


@pytest.fixture(scope="module")
def mixtures(trained):
    return trained(small("fedre", **SETTINGS, options={"mechanism": "RAP"}))


SETTINGS = {"auxiliary": 0.4, "per_class": 40, "clients": 3, "rounds": 2, "models": "small-mlp", "alpha": 1.0}


def guessed(world, kind, unit, **grants):
    directory, federation = world
    card = ThreatModel(rounds_seen=2, **grants)
    by = UnmixedInversion() if unit == "class" else None
    evidence = build_case(RunSource(directory, federation, kind), card, by, n_targets=30, seed=0)
    found = RunSource(directory, federation, kind).truths(evidence.targets, seed=0, unit=unit)
    return evidence, with_guesses(found, evidence, device=CPU)


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
    secrets = [dataclasses.replace(one, members=1 - one.members, vectors={}) for one in found]
    again = with_guesses(secrets, other, device=CPU)[0]
    assert truth.vectors
    for name, guess in truth.vectors.items():
        expect_same(again.vectors[name], guess)


def test_mixtures_have_guesses_at_every_class(mixtures):
    _, found = guessed(mixtures, "entangled", "class")
    for truth in found:
        assert set(truth.vectors) == {"auxiliary", "head_rows", "other_uploads", "mean_upload"}
        assert all(guess.shape == truth.feature.shape for guess in truth.vectors.values())
    blind = torch.stack([truth.vectors["auxiliary"] for truth in found])
    true = torch.stack([truth.feature for truth in found])
    assert ((blind - true).norm(dim=1) / true.norm(dim=1)).median() < 0.6


# ---------------------------------------------------------------- from hand-made uploads

# Auxiliary images of four pixels: 0.1 and 0.3 of class 0, 0.8 of class 1, 0.5 of an unknown class; none of class 2.
AUXILIARY = torch.tensor([0.1, 0.3, 0.8, 0.5])
POOL = Pool(
    AUXILIARY[:, None, None, None].expand(-1, 1, 2, 2).clone(),
    torch.tensor([0, 0, 1, -1]),
    torch.zeros(0, 1, 2, 2),
    torch.zeros(0, dtype=torch.int64),
)


def twice(images):
    return 2 * images.flatten(1)


def vector(value):
    return torch.full((4,), float(value))


def truth(*labels, weights=None, feature=True):
    shares = torch.tensor(weights or [1 / len(labels)] * len(labels))
    members = torch.full((len(labels), 1, 2, 2), 0.4)
    return Truth(members, shares, torch.tensor(labels), POOL, vector(1) if feature else None)


def rows(client, values, classes, round_=2, broadcast=()):
    features = torch.stack([vector(value) for value in values])
    return Observation(round_, client, (Prototypes(features, torch.tensor(classes)),), broadcast)


def handed(*observations, targets, extractors=None, labels=None, n_classes=3):
    known = Knowledge(
        ThreatModel(),
        (1, 2, 2),
        n_classes,
        extractors={0: twice} if extractors is None else extractors,
        labels=labels or {},
    )
    return Case(observations, None, known, targets)


def by_hand(found, seen):
    return with_guesses([found] if isinstance(found, Truth) else found, seen, device=CPU)


OWN = rows(0, [9, 8], [0, 1])
TARGET = TargetId(2, 0, 0, 0)


# ---------------------------------------------------------------- auxiliary images


def test_auxiliary_of_a_class_of_several_and_of_none():
    seen = handed(OWN, targets=(TARGET,) * 4)
    found = by_hand([truth(0), truth(1), truth(0, 1, weights=[0.25, 0.75]), truth(2)], seen)
    # Means 0.2 and 0.8, and of class 2 that of all auxiliary images whose class is known: 0.4; the extractor doubles them.
    for one, value in zip(found, (0.4, 1.6, 0.25 * 0.4 + 0.75 * 1.6, 0.8), strict=True):
        expect_close(one.vectors["auxiliary"], vector(value), atol=1e-6)
        assert set(one.vectors) == {"auxiliary"}


# ---------------------------------------------------------------- other clients' rows


def test_rows_of_others_in_the_attacked_round_count_and_no_others():
    others = (rows(1, [1, 2], [0, 1]), rows(2, [3], [0]), rows(1, [50], [0], round_=1), rows(3, [70], [0], round_=3))
    found = by_hand([truth(0), truth(1), truth(2)], handed(OWN, *others, targets=(TARGET,) * 3))
    for one, value in zip(found, (2, 2, 2), strict=True):  # (1 + 3) / 2, 2, and the mean of all three
        expect_close(one.vectors["other_uploads"], vector(value), atol=1e-6)
        expect_close(one.vectors["mean_upload"], vector(2), atol=1e-6)  # of classes 0 and 1: (2 + 2) / 2
    uneven = handed(OWN, rows(1, [1, 4], [0, 1]), rows(2, [3], [0]), targets=(TARGET,) * 3)
    found = by_hand([truth(0), truth(1), truth(0, 1)], uneven)
    assert [float(one.vectors["other_uploads"][0]) for one in found] == pytest.approx([2, 4, 3])
    assert [float(one.vectors["mean_upload"][0]) for one in found] == pytest.approx([3] * 3)


# ---------------------------------------------------------------- mixtures


def mixture(client, value, weights, round_=2):
    return Observation(round_, client, (Entangled(vector(value), torch.tensor(weights)),), ())


def test_mixtures_of_the_newest_rounds_are_solved_for_classes():
    own = mixture(0, 9, [1.0, 0.0, 0.0])
    pure = [mixture(1, 2, [1.0, 0.0, 0.0], 1), mixture(2, 4, [0.0, 1.0, 0.0]), mixture(1, 6, [0.0, 0.0, 1.0])]
    later = mixture(2, 99, [1.0, 0.0, 0.0], 3)
    seen = handed(own, *pure, later, targets=(TARGET,))
    found = by_hand(truth(0), seen)[0]
    expect_close(found.vectors["mean_upload"], vector(4), atol=1e-6)  # of rounds 1 and 2
    assert set(found.vectors) == {"auxiliary", "other_uploads", "mean_upload"}
    two = handed(own, *pure[:2], targets=(TARGET,))
    found = by_hand(truth(0), two)[0]
    expect_close(found.vectors["other_uploads"], vector(3), atol=1e-6)  # of two the mean alone


# ---------------------------------------------------------------- rows of the classifier


def test_rows_of_the_classifier_are_fitted_to_what_is_known_of_classes():
    weight = torch.tensor([[1.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, 1.0, 0]])
    own = dataclasses.replace(OWN, broadcast=(Classifier({"weight": weight, "bias": torch.zeros(3)}),))
    found = by_hand([truth(k) for k in range(3)], handed(own, targets=(TARGET,) * 3))
    # Strangers' class means are flat: centred rows explain nothing of them, so that every guess is their mean.
    mean = (0.4 + 1.6 + 0.8) / 3
    for one in found:
        expect_close(one.vectors["head_rows"], vector(mean), atol=1e-5)
    values = 3 * (weight - weight.mean(0)) + 1
    others = Observation(2, 1, (Prototypes(values, torch.arange(3)),), ())
    found = by_hand([truth(k) for k in range(3)], handed(own, others, targets=(TARGET,) * 3))
    for one, value in zip(found, values, strict=True):  # rows that others' vectors follow are found again
        expect_close(one.vectors["head_rows"], value, atol=1e-5)
    blind = handed(own, targets=(TARGET,), extractors={})
    assert by_hand(truth(0), blind)[0].vectors == {}  # nothing to fit the rows to
