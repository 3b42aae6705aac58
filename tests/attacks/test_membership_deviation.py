"""Means and mixtures deviate from what is expected in the directions of their members."""

import numpy as np
import pytest
import torch
from compare import expect_close
from sklearn.metrics import roc_auc_score

from fedpriv.attacks.infer.contract import Candidates, InferenceProblem
from fedpriv.attacks.infer.membership import MembershipInference
from fedpriv.attacks.infer.membership_deviation import FEWEST, RIDGE, deviations, enough, left_out, scatter
from fedpriv.attacks.observation import Knowledge, KnowledgeCard, Observation
from fedpriv.util.errors import UserError
from fedpriv.wire.payloads import Entangled, Prototypes

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


def test_products_are_those_of_the_inverse_covariance():
    features, labels = drawn(60, 2)
    there = scatter(features, labels)
    apart = features - torch.stack([features[labels == label].mean(0) for label in range(CLASSES)])[labels]
    covariance = apart.T @ apart / (60 - CLASSES)
    inverse = torch.linalg.inv(covariance + RIDGE * covariance.trace() / WIDTH * torch.eye(WIDTH, dtype=torch.float64))
    one, other = features[:5], features[7]
    expect_close(there.inner(one, other), one @ inverse @ other, rtol=1e-6, atol=1e-6)
    expect_close(there.inner(one, one), torch.einsum("nd,de,ne->n", one, inverse, one), rtol=1e-6, atol=1e-6)


def test_members_of_a_mean_stand_out_where_distances_hardly_tell():
    inside, labels = drawn(15, 3)
    outside, beside = drawn(300, 4)
    there = scatter(*drawn(400, 5))
    rows, classes = means(inside, labels)
    asked, truth = torch.cat([inside, outside]), np.arange(315) < 15
    both = torch.cat([labels, beside])
    by_deviation = roc_auc_score(truth, deviations(there, asked, both, rows, classes, None))
    by_distance = roc_auc_score(truth, -(asked - rows[both]).square().sum(1))
    assert by_deviation > 0.9
    assert by_distance < by_deviation - 0.1
    strange, _ = means(*drawn(15, 6))
    assert 0.3 < roc_auc_score(truth, deviations(there, asked, both, strange, classes, None)) < 0.7


def test_the_only_member_deviates_exactly_as_its_mean():
    features, labels = drawn(3, 7)
    scores = deviations(scatter(*drawn(200, 8)), features, labels, features, labels, None)
    expect_close(scores, torch.ones(3, dtype=torch.float64), atol=1e-9)
    assert deviations(scatter(*drawn(200, 8)), features, labels, features[:1], labels[:1], None)[1:].isinf().all()


def test_a_network_that_answers_everything_alike_tells_nothing():
    alike, labels = torch.ones(60, WIDTH, dtype=torch.float64), torch.arange(60) % CLASSES
    there = scatter(alike, labels)
    rows, classes = means(alike, labels)
    for asked in (alike[:3], 2 * alike[:3]):
        assert deviations(there, asked, labels[:3], rows, classes, None).isfinite().all()
    expect_close(
        deviations(there, alike[:3], labels[:3], rows, classes, None), torch.zeros(3, dtype=torch.float64), atol=0
    )


def test_members_of_a_mixture_stand_out_too():
    inside, labels = drawn(9, 9)
    outside, _ = drawn(300, 10)
    own, weights = means(inside, labels)[0], torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    rows = (weights[:, None] * own).sum(0).expand(CLASSES, -1)
    asked, both = torch.cat([inside, outside]), torch.cat([labels, torch.arange(300) % CLASSES])
    scores = deviations(scatter(*drawn(400, 11)), asked, both, rows, torch.arange(CLASSES), weights)
    assert roc_auc_score(np.arange(309) < 9, scores) > 0.9


def test_own_images_that_are_left_out_score_as_strangers():
    inside, labels = drawn(60, 12)
    rows, classes = means(inside, labels)
    own, strangers = drawn(300, 13), drawn(300, 14)
    null = left_out(*own, rows, classes, None, 0, "own images")
    beside = deviations(scatter(*own), *strangers, rows, classes, None)
    assert len(null) == 300
    assert abs(float(null.mean() - beside.mean())) < 0.05
    assert float(null.std() / beside.std()) == pytest.approx(1, abs=0.2)


def test_few_images_make_no_covariance():
    assert not enough(torch.zeros(FEWEST, dtype=torch.int64))
    assert enough(torch.zeros(FEWEST + 1, dtype=torch.int64))
    assert not enough(torch.arange(100))


@pytest.mark.parametrize("kind", ["prototype", "entangled"])
def test_it_is_the_default_where_own_images_are_granted_and_refused_by_name_where_not(kind):
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
    for score in ("auto", "deviation", "distance"):
        found = MembershipInference(score=score)(InferenceProblem((seen,), granted, kind, asked))
        values[score] = found.values[0]
        assert len(found.null[0]) > 0
        assert found.null_source == "images of the attacker's own"
    expect_close(values["auto"], values["deviation"], atol=0)
    assert not torch.allclose(values["auto"], values["distance"])
    bare = Knowledge(KnowledgeCard(), (1, 6, 6), CLASSES, extractors=granted.extractors)
    MembershipInference()(InferenceProblem((seen,), bare, kind, asked))
    with pytest.raises(UserError, match="score='deviation' needs labelled images"):
        MembershipInference(score="deviation")(InferenceProblem((seen,), bare, kind, asked))
