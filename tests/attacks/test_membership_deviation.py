"""Means and mixtures deviate from what is expected in the directions of their members."""

import numpy as np
import pytest
import torch
from compare import expect_close
from deviation_cases import CLASSES, WIDTH, drawn, means
from sklearn.metrics import roc_auc_score

from fedpriv.attacks.inference.base import Candidates, InferenceProblem
from fedpriv.attacks.inference.mean_uploads import (
    FEWEST,
    RIDGE,
    MeanRound,
    MeanUpload,
    class_covariance,
    enough_images,
    read_mean_round,
)
from fedpriv.attacks.inference.membership import MembershipInference
from fedpriv.attacks.inference.membership_scores import deviation_scores, group_by_class, leave_one_out_scores
from fedpriv.attacks.observation import Knowledge, KnowledgeCard, Observation
from fedpriv.wire.payloads import Entangled, Prototypes


def told(rounds, labels, own_labels):
    return deviation_scores(group_by_class(rounds, own_labels), labels)


def scored(own, features, labels, *sent):
    """Scores by one round."""
    return told([MeanRound(MeanUpload(*sent), features, own[0])], labels, own[1])


def test_products_are_those_of_the_inverse_covariance():
    features, labels = drawn(60, 2)
    there = class_covariance(features, labels)
    apart = features - torch.stack([features[labels == label].mean(0) for label in range(CLASSES)])[labels]
    covariance = apart.T @ apart / (60 - CLASSES)
    inverse = torch.linalg.inv(covariance + RIDGE * covariance.trace() / WIDTH * torch.eye(WIDTH, dtype=torch.float64))
    one, other = features[:5], features[7]
    expect_close(there.inner(one, other), one @ inverse @ other, rtol=1e-6, atol=1e-6)
    expect_close(there.inner(one, one), torch.einsum("nd,de,ne->n", one, inverse, one), rtol=1e-6, atol=1e-6)


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


def test_a_network_that_answers_everything_alike_tells_nothing():
    alike, labels = torch.ones(60, WIDTH, dtype=torch.float64), torch.arange(60) % CLASSES
    own = (alike, labels)
    rows, classes = means(alike, labels)
    for asked in (alike[:3], 2 * alike[:3]):
        assert scored(own, asked, labels[:3], rows, classes).isfinite().all()
    expect_close(scored(own, alike[:3], labels[:3], rows, classes), torch.zeros(3, dtype=torch.float64), atol=0)


def test_members_of_a_mixture_stand_out_too():
    inside, labels = drawn(9, 9)
    outside, _ = drawn(300, 10)
    own, weights = means(inside, labels)[0], torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    rows = (weights[:, None] * own).sum(0).expand(CLASSES, -1)
    asked, both = torch.cat([inside, outside]), torch.cat([labels, torch.arange(300) % CLASSES])
    scores = scored(drawn(400, 11), asked, both, rows, torch.arange(CLASSES), weights)
    assert roc_auc_score(np.arange(309) < 9, scores) > 0.9


def test_own_images_that_are_left_out_score_as_strangers():
    inside, labels = drawn(60, 12)
    rows, classes = means(inside, labels)
    own, strangers = drawn(300, 13), drawn(300, 14)
    groups = group_by_class([MeanRound(MeanUpload(rows, classes), strangers[0], own[0])], own[1])
    null = leave_one_out_scores(groups, own[1], own[1], 0, "own images")
    beside = scored(own, *strangers, rows, classes)
    assert len(null) == 300
    assert abs(float(null.mean() - beside.mean())) < 0.05
    assert float(null.std() / beside.std()) == pytest.approx(1, abs=0.2)


def rounds_of(number, inside, labels, asked, own):
    """Mixtures of the same means by other weights in each round, under an extractor that turns, and a little noise."""
    draw, found, turn = torch.Generator().manual_seed(17), [], torch.eye(WIDTH, dtype=torch.float64)
    for _ in range(number):
        skew = torch.randn(WIDTH, WIDTH, generator=draw, dtype=torch.float64)
        turn = turn @ torch.linalg.matrix_exp(0.003 * (skew - skew.T))
        weights = torch.rand(CLASSES, generator=draw, dtype=torch.float64)
        weights = weights / weights.sum()
        mixture = (weights[:, None] * means(inside, labels)[0]).sum(0) @ turn
        mixture = mixture + 1e-3 * torch.randn(WIDTH, generator=draw, dtype=torch.float64)
        sent = MeanUpload(mixture.expand(CLASSES, -1), torch.arange(CLASSES), weights)
        found.append(MeanRound(sent, asked @ turn, own @ turn))
    return found


def test_mixtures_of_several_rounds_are_taken_apart_into_classes():
    inside, labels = drawn(60, 18)
    outside, beside = drawn(300, 19)
    own, own_labels = drawn(400, 20)
    asked, both, truth = torch.cat([inside, outside]), torch.cat([labels, beside]), np.arange(360) < 60
    rounds = rounds_of(12, inside, labels, asked, own)
    one, several = (told(seen, both, own_labels) for seen in (rounds[-1:], rounds))
    apart = scored((own, own_labels), asked, both, *means(inside, labels))
    areas = [roc_auc_score(truth, scores) for scores in (one, several, apart)]
    assert areas[1] > areas[0] + 0.05
    assert areas[1] > areas[2] - 0.03  # nearly what the class means themselves would tell
    null = leave_one_out_scores(group_by_class(rounds, own_labels), own_labels, own_labels, 0, "own images")
    assert abs(float(null.mean() - several[60:].mean())) < 0.05


def test_the_same_weights_in_every_round_tell_what_one_round_tells():
    inside, labels = drawn(30, 21)
    own, own_labels = drawn(200, 22)
    (one,) = rounds_of(1, inside, labels, inside, own)
    expect_close(told([one] * 4, labels, own_labels), told([one], labels, own_labels), atol=1e-9)


def test_means_of_several_rounds_are_averaged_over_those_that_speak_of_a_class():
    inside, labels = drawn(30, 23)
    own, own_labels = drawn(200, 24)
    rows, classes = means(inside, labels)
    whole, part = (
        MeanRound(MeanUpload(rows, classes), inside, own),
        MeanRound(MeanUpload(rows[:1], classes[:1]), inside, own),
    )
    both = told([whole, part], labels, own_labels)
    expect_close(both, told([whole], labels, own_labels), atol=1e-9)
    assert told([part], labels, own_labels)[labels > 0].isinf().all()


def test_principal_directions_are_those_of_the_singular_values_of_wide_and_of_tall_rows():
    for number in (WIDTH // 2, 3 * WIDTH):
        rows = torch.randn(number, WIDTH, generator=torch.Generator().manual_seed(25), dtype=torch.float64)
        there = class_covariance(torch.cat([rows, -rows]), torch.zeros(2 * number, dtype=torch.int64))
        _, values, _ = torch.linalg.svd(torch.cat([rows, -rows]), full_matrices=False)
        known = values[values > 1e-6].square() / (2 * number - 1) + there.least
        expect_close(there.variances.sort().values, known.sort().values, rtol=1e-6, atol=0)
        count = len(there.variances)
        expect_close(there.directions @ there.directions.T, torch.eye(count, dtype=torch.float64), atol=1e-6)


def test_few_images_make_no_covariance():
    assert not enough_images(torch.zeros(FEWEST, dtype=torch.int64))
    assert enough_images(torch.zeros(FEWEST + 1, dtype=torch.int64))
    assert not enough_images(torch.arange(100))


@pytest.mark.parametrize("kind", ["prototype", "entangled"])
def test_it_is_the_default_where_own_images_are_granted_and_distance_where_not(kind):
    inside, labels = drawn(60, 15)
    own, own_labels = drawn(200, 16)
    rows, classes = means(inside, labels)
    upload = Prototypes(rows.float(), classes)
    if kind == "entangled":
        weights = torch.full((CLASSES,), 1 / CLASSES)
        upload = Entangled(rows.mean(0).float(), weights)
    seen = Observation(1, 0, (upload,), ())
    asked = {0: Candidates(0, inside.view(-1, 1, 6, 6).float(), labels)}
    granted = Knowledge(
        KnowledgeCard(attacker_data="same_domain"),
        (1, 6, 6),
        CLASSES,
        extractors={0: lambda batch: batch.flatten(1)},
        public_images=own.view(-1, 1, 6, 6).float(),
        public_labels=own_labels,
    )
    values = {}
    for score in ("auto", "distance"):
        found = MembershipInference(score=score)(InferenceProblem((seen,), granted, kind, asked))
        values[score] = found.values[0]
        assert len(found.null[0]) > 0
        assert found.null_source == "images of the attacker's own"
    assert not torch.allclose(values["auto"], values["distance"])
    bare = Knowledge(KnowledgeCard(), (1, 6, 6), CLASSES, extractors=granted.extractors)
    without = MembershipInference()(InferenceProblem((seen,), bare, kind, asked))
    expect_close(without.values[0], values["distance"], atol=1e-9)


def granted_for(own, own_labels, defend):
    return Knowledge(
        KnowledgeCard(attacker_data="same_domain"),
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
        assert found.null[0].isfinite().all()
    assert areas["told"] > 0.75
    assert areas["told"] > areas["untold"] + 0.05


def test_entries_that_were_not_sent_are_left_out_and_others_are_as_sent():
    inside, labels = drawn(9, 29)
    own, own_labels = drawn(300, 30)
    rows, classes = means(inside, labels)
    sent = largest(rows.float(), 0)
    seen = Observation(1, 0, (Prototypes(sent, classes),), ())
    known = granted_for(own, own_labels, largest)
    found = read_mean_round(seen, known, known.public_images[:2], known.public_images, own_labels)
    assert torch.equal(found.entries, sent != 0)
    parts = found.parts()
    assert [part.sent.classes.tolist() for part in parts] == [[0], [1], [2]]
    for place, part in enumerate(parts):
        expect_close(part.sent.rows[0].float(), sent[place], atol=1e-5)
        assert not part.own[:, sent[place] == 0].any()
        expect_close(part.own[:, sent[place] != 0].float(), own[:, sent[place] != 0].float(), atol=1e-5)
    whole = read_mean_round(
        seen, granted_for(own, own_labels, clipped), known.public_images, known.public_images, own_labels
    )
    assert whole.parts() == [whole]


def test_known_strangers_are_of_the_candidates_classes_in_their_proportions():
    inside, labels = drawn(60, 31)
    own, own_labels = drawn(300, 32)
    groups = group_by_class([MeanRound(MeanUpload(*means(inside, labels)), own, own)], own_labels)
    asked = torch.tensor([0] * 10 + [1] * 40)
    mixed = leave_one_out_scores(groups, own_labels, asked, 0)
    assert len(mixed) == 125  # of 100 each: all of class 1, a quarter as many of class 0
    alone = [leave_one_out_scores(groups, own_labels, torch.tensor([label]), 0) for label in range(3)]
    assert all(len(one) == 100 for one in alone)
    expect_close(torch.cat([alone[0][:25], alone[1]]), mixed, atol=1e-12)
    assert len(leave_one_out_scores(groups, own_labels, torch.tensor([7]), 0)) == 0


def test_an_attacker_of_few_images_knows_no_strangers_and_scores_all_the_same():
    """Four fifths of them make no scatter, so that none can be judged by the others."""
    inside, labels = drawn(12, 33)
    own, own_labels = drawn(FEWEST + CLASSES, 34)
    assert enough_images(own_labels)
    groups = group_by_class([MeanRound(MeanUpload(*means(inside, labels)), inside, own)], own_labels)
    assert len(leave_one_out_scores(groups, own_labels, labels, 0)) == 0
    assert deviation_scores(groups, labels).isfinite().all()
    nobody = torch.zeros(0, dtype=torch.int64)
    assert len(leave_one_out_scores(groups, own_labels, nobody, 0)) == 0
