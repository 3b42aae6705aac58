"""Weights that nobody sent: found with the prototypes where mixtures show them, and nothing claimed where they do not."""

import pytest
import torch
from compare import expect_close

from fedpriv.attacks.features.posterior import Uploads, expected_weights, infer, infer_hidden
from fedpriv.attacks.inference.base import Candidates, InferenceProblem
from fedpriv.attacks.inference.membership import MembershipInference
from fedpriv.attacks.inference.property import describe
from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
from fedpriv.wire.payloads import Classifier, Entangled

WIDTH, N_CLASSES, ROUNDS = 48, 6, 30


def made(seed, *, resampled=True):
    """Uploads of a settled client with their true weights, and its prototypes, which have most in common."""
    rng = torch.Generator().manual_seed(seed)
    level = torch.randn(WIDTH, generator=rng, dtype=torch.float64).abs() + 4
    prototypes = level + torch.randn(N_CLASSES, WIDTH, generator=rng, dtype=torch.float64)
    draws = torch.rand(ROUNDS, N_CLASSES, generator=rng, dtype=torch.float64)
    weights = draws if resampled else draws[:1].expand_as(draws)
    weights = weights / weights.sum(1, keepdim=True)
    return Uploads(weights @ prototypes, weights, torch.arange(1, ROUNDS + 1)), prototypes


def hidden(uploads):
    largest = torch.nn.functional.one_hot(uploads.weights.argmax(1), N_CLASSES).double()
    return Uploads(uploads.features, largest, uploads.rounds)


def error(found, prototypes):
    return float(((found.double() - prototypes).norm(dim=1) / prototypes.norm(dim=1)).median())


def nearest(found, prototypes):
    return float((torch.cdist(found.double(), prototypes).argmin(1) == torch.arange(N_CLASSES)).double().mean())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_prototypes_come_back_from_mixtures_that_name_their_largest_class_alone(seed):
    uploads, prototypes = made(seed)
    sent = hidden(uploads)
    believed = infer(sent).prototypes  # as if one class had all the weight
    found, weights = infer_hidden(sent)
    blind = sent.features[-3:].mean(0).expand_as(prototypes)
    assert nearest(found.prototypes, prototypes) == 1
    assert error(found.prototypes, prototypes) < 0.7 * min(error(believed, prototypes), error(blind, prototypes))
    expected, _ = expected_weights(sent.weights)
    assert float((weights - uploads.weights).norm()) < 0.8 * float((expected - uploads.weights).norm())
    assert bool((weights >= 0).all())
    expect_close(weights.sum(1), torch.ones(ROUNDS, dtype=torch.float64), atol=1e-9)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_weights_drawn_once_leave_nothing_to_find(seed):
    uploads, prototypes = made(seed, resampled=False)
    found, _ = infer_hidden(hidden(uploads))
    assert nearest(found.prototypes, prototypes) <= 0.5
    assert error(found.prototypes, prototypes) > 0.05


def test_expected_weights_of_two_classes_by_hand():
    # u / (u + v) with u > v: E = 1 - (1 - ln 2) = ln 2 for uniform u, v.
    means, spreads = expected_weights(torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64))
    large = float(torch.tensor(2.0).log())
    expect_close(means, torch.tensor([[large, 1 - large], [1 - large, large]], dtype=torch.float64), atol=5e-3)
    expect_close(spreads.sum(2), torch.zeros(2, 2, dtype=torch.float64), atol=1e-9)


def observation(encoding):
    return Observation(1, 0, (Entangled(torch.tensor([1.0, 0.0]), torch.tensor(encoding)),), ())


def test_no_encoding_rules_a_member_out_that_is_not_believed():
    held = Candidates(0, torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([1, 0]))
    knowledge = Knowledge(ThreatModel(), (1, 1, 2), 2, extractors={0: lambda images: images})
    seen = observation([1.0, 0.0])
    problem = InferenceProblem((seen,), knowledge, "entangled", {0: held})
    assert MembershipInference()(problem).values[0].tolist() == pytest.approx([-torch.inf, -2.0])
    assert MembershipInference(classes="any")(problem).values[0].tolist() == pytest.approx([0.0, -2.0])


def test_a_hidden_encoding_names_no_class():
    head = Entangled(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    seen = Observation(1, 0, (head,), (classifier(),))
    named, numbers = describe(seen, 2)
    assert named.tolist() == [1]
    every, fewer = describe(seen, 2, hidden=True)
    assert every.tolist() == [0, 1]
    assert fewer.shape[1] == numbers.shape[1] - 2  # the weight, and the weight beside the client's other classes


def classifier():

    return Classifier({"weight": torch.eye(2), "bias": torch.zeros(2)})
