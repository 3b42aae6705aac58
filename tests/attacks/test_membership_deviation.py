"""Means and mixtures deviate from what is expected in the directions of their members, and tell how many these are."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from compare import expect_close
from sklearn.metrics import roc_auc_score

from fedpriv.attacks.inference.base import Candidates, InferenceProblem, Moment
from fedpriv.attacks.inference.means import RIDGE, MeanRound, class_covariance, estimate_member_counts
from fedpriv.attacks.inference.membership import MembershipInference, deviation_scores
from fedpriv.attacks.inference.property import BY_DEVIATION, PropertyInference, can_count_members, shares_by_counts
from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
from fedpriv.uploads.payloads import Entangled, Prototypes

WIDTH, CLASSES = 36, 3


def drawn(number, seed):
    """Representations of classes in turn that scatter in few directions much and in many a little, and their classes."""
    draw = torch.Generator().manual_seed(seed)
    mixing = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    spread = torch.diag(2.0 ** -torch.arange(WIDTH, dtype=torch.float64).div(3))
    middles = 3 * torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    labels = torch.arange(number) % CLASSES
    return middles[labels] + torch.randn(number, WIDTH, generator=draw, dtype=torch.float64) @ spread @ mixing, labels


def means(features, labels):
    return torch.stack([features[labels == label].mean(0) for label in range(CLASSES)]), torch.arange(CLASSES)


def scored(own, features, labels, rows, classes, weights=None):
    """Scores by one round."""
    return deviation_scores([MeanRound(rows, classes, weights, features, *own)], labels)


def test_products_are_those_of_the_inverse_covariance():
    features, labels = drawn(60, 2)
    there = class_covariance(features, labels)
    apart = features - torch.stack([features[labels == label].mean(0) for label in range(CLASSES)])[labels]
    covariance = apart.T @ apart / (60 - CLASSES)
    inverse = torch.linalg.inv(covariance + RIDGE * covariance.trace() / WIDTH * torch.eye(WIDTH, dtype=torch.float64))
    white = there.whiten(features)
    expect_close(white @ white.T, features @ inverse @ features.T, rtol=1e-6, atol=1e-6)
    assert there.trace == pytest.approx(float(inverse.trace()))


def test_members_of_a_mean_stand_out_where_distances_hardly_tell():
    inside, labels = drawn(15, 3)
    outside, beside = drawn(300, 4)
    own = drawn(400, 5)
    rows, classes = means(inside, labels)
    asked, truth = torch.cat([inside, outside]), np.arange(315) < 15
    both = torch.cat([labels, beside])
    by_deviation = roc_auc_score(truth, scored(own, asked, both, rows, classes))
    by_distance = roc_auc_score(truth, -(asked - rows[both]).square().sum(1))
    assert by_deviation > 0.9
    assert by_distance < by_deviation - 0.1
    strange, _ = means(*drawn(15, 6))
    assert 0.3 < roc_auc_score(truth, scored(own, asked, both, strange, classes)) < 0.7


def test_the_only_member_deviates_exactly_as_its_mean():
    features, labels = drawn(3, 7)
    scores = scored(drawn(200, 8), features, labels, features, labels)
    expect_close(scores, torch.ones(3, dtype=torch.float64), atol=1e-9)
    assert scored(drawn(200, 8), features, labels, features[:1], labels[:1])[1:].isinf().all()


def mixtures(rounds, seed, middles, asked, own, labels):
    """Mixtures of the same means by other weights in each round, under an extractor that turns, and a little noise."""
    draw, found, turned = torch.Generator().manual_seed(seed), [], torch.eye(WIDTH, dtype=torch.float64)
    for _ in range(rounds):
        skew = torch.randn(WIDTH, WIDTH, generator=draw, dtype=torch.float64)
        turned = turned @ torch.linalg.matrix_exp(0.003 * (skew - skew.T))
        weights = torch.rand(CLASSES, generator=draw, dtype=torch.float64)
        weights = weights / weights.sum()
        mixture = (weights @ middles) @ turned + 1e-3 * torch.randn(WIDTH, generator=draw, dtype=torch.float64)
        sent = mixture.expand(CLASSES, -1), torch.arange(CLASSES), weights
        found.append(MeanRound(*sent, asked @ turned, own @ turned, labels))
    return found


def test_mixtures_of_several_rounds_are_taken_apart_into_classes():
    inside, labels = drawn(60, 18)
    outside, beside = drawn(300, 19)
    own, own_labels = drawn(400, 20)
    asked, both, truth = torch.cat([inside, outside]), torch.cat([labels, beside]), np.arange(360) < 60
    rounds = mixtures(12, 17, means(inside, labels)[0], asked, own, own_labels)
    one, several = (deviation_scores(seen, both) for seen in (rounds[-1:], rounds))
    apart = scored((own, own_labels), asked, both, *means(inside, labels))
    areas = [roc_auc_score(truth, scores) for scores in (one, several, apart)]
    assert areas[1] > areas[0] + 0.05
    assert areas[1] > areas[2] - 0.03  # nearly what the class means themselves would tell


def granted_for(own, own_labels, defend=None):
    return Knowledge(
        ThreatModel(attacker_data="same_domain"),
        (1, 6, 6),
        CLASSES,
        extractors={0: lambda batch: batch.flatten(1)},
        defended={} if defend is None else {(1, 0): defend},
        public_images=own.view(-1, 1, 6, 6).float(),
        public_labels=own_labels,
    )


def clipped(rows, seed):
    return rows / rows.norm(dim=1, keepdim=True)


def largest(rows, seed):
    kept = rows.abs().topk(rows.shape[1] // 2, dim=1).indices
    return torch.zeros_like(rows).scatter(1, kept, rows.gather(1, kept))


@pytest.mark.parametrize("kind", ["prototype", "entangled"])
@pytest.mark.parametrize("defend", [clipped, largest])
def test_members_stand_out_behind_a_defense_that_is_known(kind, defend):
    inside, labels = drawn(9, 26)
    outside, _ = drawn(300, 27)
    own, own_labels = drawn(400, 28)
    rows, classes = means(inside, labels)
    weights = torch.tensor([0.2, 0.5, 0.3])
    sent = defend(rows.float() if kind == "prototype" else (weights[:, None] * rows.float()).sum(0)[None], 0)
    upload = Prototypes(sent, classes) if kind == "prototype" else Entangled(sent[0], weights)
    seen, asked = Observation(1, 0, (upload,), ()), torch.cat([inside, outside]).view(-1, 1, 6, 6).float()
    both = torch.cat([labels, torch.arange(300) % CLASSES])
    areas = {}
    for name, known in (("told", granted_for(own, own_labels, defend)), ("untold", granted_for(own, own_labels, None))):
        found = MembershipInference()(InferenceProblem((seen,), known, kind, {0: Candidates(0, asked, both)}))
        areas[name] = roc_auc_score(np.arange(309) < 9, found.values[0])
    assert areas["told"] > 0.75
    assert areas["told"] > areas["untold"] + 0.05


HELD = (2, 8, 60)
"""Images of each class."""


def members(seed):
    """Class means ``(CLASSES, WIDTH)`` of so many images."""
    rows, labels = drawn(3 * max(HELD), seed)
    return torch.stack([rows[labels == label][:number].mean(0) for label, number in enumerate(HELD)])


@pytest.mark.parametrize("seed", range(4))
def test_a_mean_tells_the_number_of_its_images(seed):
    own, labels = drawn(400, 30 + seed)
    rows = members(40 + seed)
    found = estimate_member_counts([MeanRound(rows, torch.arange(CLASSES), None, own[:0], own, labels)]).numbers
    assert list(found) == [0, 1, 2]
    for label, number in enumerate(HELD):
        assert number / 3 < found[label] < 3 * number
    assert found[0] < found[1] < found[2]


@pytest.mark.parametrize("seed", range(3))
def test_mixtures_of_several_rounds_tell_it_of_every_class(seed):
    own, labels = drawn(400, 50 + seed)
    found = estimate_member_counts(mixtures(15, 60 + seed, members(60 + seed), own[:0], own, labels)).numbers
    assert found[0] < found[1] < found[2]
    for label, number in enumerate(HELD):
        assert number / 4 < found[label] < 4 * number


def seen_of(kind, rows, round_, weights=None):
    if kind == "prototype":
        return Observation(round_, 0, (Prototypes(rows.float(), torch.arange(CLASSES)),), ())
    return Observation(round_, 0, (Entangled((weights @ rows).float(), weights.float()),), ())


@pytest.mark.parametrize("kind", ["prototype", "entangled"])
def test_it_answers_the_question_where_images_and_extractors_are_granted(kind):
    own, labels = drawn(400, 80)
    granted, draw, rows = granted_for(own, labels), torch.Generator().manual_seed(82), members(81)
    rounds = [seen_of(kind, rows, t, torch.rand(3, generator=draw, dtype=torch.float64)) for t in range(1, 13)]
    earlier = tuple(Moment((one,), granted) for one in rounds[:-1])
    problem = InferenceProblem((rounds[-1],), granted, kind, earlier=earlier)
    found = PropertyInference(question="majority")(problem)
    assert found.source == BY_DEVIATION
    assert found.asked.classes[0].tolist() == [0, 1, 2]
    assert int(found.values[0].argmax()) == 2
    wanted = torch.tensor(HELD, dtype=torch.float64) / sum(HELD)
    assert float((shares_by_counts(problem)[0] - wanted).abs().sum() / 2) < 0.2
    alone = InferenceProblem((rounds[-1],), granted, kind)
    assert can_count_members(alone) == (kind == "prototype")  # the weights of one round take nothing apart
    shares = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    same = tuple(Moment((seen_of(kind, rows, t, shares),), granted) for t in range(1, 13))
    assert can_count_members(InferenceProblem((seen_of(kind, rows, 13, shares),), granted, kind, earlier=same)) == (
        kind == "prototype"
    )


@pytest.mark.parametrize("kind", ["noise", "shrunk"])
def test_what_a_named_defense_does_is_reckoned_with(kind):
    own, labels = drawn(400, 90)
    rows = members(91)

    def defend(given, seed):
        draw = torch.Generator().manual_seed(seed)
        return given + 0.3 * torch.randn(given.shape, generator=draw) if kind == "noise" else given / 2

    granted = granted_for(own, labels)
    seen = seen_of("prototype", defend(rows.float(), 1234), 1)
    told = replace(granted, defended={(1, 0): defend})
    wanted = torch.tensor(HELD, dtype=torch.float64) / sum(HELD)
    apart = [
        float((shares_by_counts(InferenceProblem((seen,), one, "prototype"))[0] - wanted).abs().sum() / 2)
        for one in (granted, told)
    ]
    assert apart[1] < 0.35
    assert apart[1] < apart[0] - 0.1


@pytest.mark.parametrize(("noise", "counted"), [(1.0, False), (0.01, True)])
def test_mixtures_that_differ_too_much_over_rounds_are_not_taken_apart(noise, counted):
    own, labels = drawn(400, 95)
    granted = granted_for(own, labels)
    draw, rows, seen = torch.Generator().manual_seed(96), members(97), []
    for t in range(1, 9):
        noisy = rows + noise * torch.randn(1, WIDTH, generator=draw, dtype=torch.float64)
        seen.append(seen_of("entangled", noisy, t, torch.rand(3, generator=draw, dtype=torch.float64)))
    earlier = tuple(Moment((one,), granted) for one in seen[:-1])
    problem = InferenceProblem((seen[-1],), granted, "entangled", earlier=earlier)
    assert can_count_members(problem)
    assert (shares_by_counts(problem) is not None) == counted
    found = PropertyInference(question="majority", shadow_clients=2, steps=2)(problem)
    assert found.source == (BY_DEVIATION if counted else "2 shadow clients")
