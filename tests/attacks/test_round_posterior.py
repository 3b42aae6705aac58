"""The posterior over rounds: by hand, its old settings, what head and auxiliary images add, and that it knows its error."""

from dataclasses import replace

import pytest
import torch
from compare import expect_close
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.attacks.contract import Trained
from fedpriv.attacks.features.base import _Uncertain
from fedpriv.attacks.features.posterior import (
    UnmixedInversion,
    Uploads,
    Variances,
    _Problem,
    expected_weights,
    infer,
    infer_hidden,
    shape_of_head,
)
from fedpriv.attacks.observation import Knowledge, Observation, TargetId, ThreatModel
from fedpriv.uploads.payloads import Classifier, Entangled

WIDTH, N_CLASSES, SOME, ROUNDS = 48, 8, 6, 30
BARE = Variances(noise=0, common_drift=0, per_round=0, drift=0, level=0)


def uploads_of(features, weights, rounds=None):
    numbers = torch.arange(1, len(weights) + 1) if rounds is None else torch.tensor(rounds)
    return Uploads(torch.as_tensor(features).double(), torch.as_tensor(weights).double(), numbers)


def made(seed, rounds=20, drift=0.0, common=0.0, fixed=False, aligned=0.5):
    """Uploads of a client, its prototypes and the head's rows, along which the prototypes stand apart; behind a ReLU."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    rows = normal(N_CLASSES, WIDTH)
    level = normal(WIDTH).abs() + 4
    last = level + aligned * (rows - rows.mean(0)) + 0.4 * normal(N_CLASSES, WIDTH)
    draws = torch.rand(rounds, N_CLASSES, generator=rng, dtype=torch.float64)
    weights = (draws[:1].expand_as(draws) if fixed else draws) / draws[: 1 if fixed else None].sum(1, keepdim=True)
    features, prototypes = [], last
    for mixing in weights.flip(0):
        features.append(mixing @ prototypes)
        prototypes = prototypes + drift * normal(N_CLASSES, WIDTH) + common * normal(WIDTH)
    return uploads_of(torch.stack(features[::-1]), weights), last, rows


def error(found, truth):
    return float(((found.double() - truth).norm(dim=1) / truth.norm(dim=1)).median())


def headed(uploads, rows):
    return shape_of_head(uploads.features, rows.expand(len(uploads.weights), -1, -1), torch.arange(len(rows)))


def gains(uploads, known):
    """The weights with which uploads enter the posterior means."""
    return _Problem(uploads, (), torch.ones_like(uploads.features[0])).weigh(known.row[None]).gains[0]


def test_what_is_expected_of_a_vector_with_an_error_is_the_normal_posterior():
    rows = torch.randn(300, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([2.0, 1.0, 0.1])
    vectors, length = rows[:4] + 1, torch.full((4, 1), 0.9)
    there = _Uncertain.of(lambda images: images, rows, torch.device("cpu"), Trained())
    covariance = torch.cov(rows.T, correction=0)
    covariance += 1e-3 * covariance.trace() / 3 * torch.eye(3)
    gain = torch.linalg.solve(covariance + 0.9**2 / 3 * torch.eye(3), covariance)
    expect_close(there.expected(vectors, length), rows.mean(0) + (vectors - rows.mean(0)) @ gain, atol=1e-5)
    expect_close(there.expected(vectors, 0 * length), vectors, atol=1e-5)


def test_two_rounds_of_one_class_by_hand():
    # Of own part 1, drift and noise 1: the uploads' covariance is (3 1; 1 2), theirs with the prototype (1 1), and (1 1)
    # times the inverse is (1/5 2/5).
    one = uploads_of(torch.zeros(2, 1), torch.ones(2, 1))
    wanted = torch.tensor([[0.2, 0.4]], dtype=torch.float64)
    expect_close(gains(one, replace(BARE, noise=1, drift=1)), wanted, atol=1e-9)
    # A common drift of 1 does the same to a single class; a part in its round alone belongs to the last prototype too.
    expect_close(gains(one, replace(BARE, noise=1, common_drift=1)), wanted, atol=1e-9)
    # (2 1; 1 2), with the prototype (1 2): all of the last upload, nothing of the first.
    expect_close(gains(one, replace(BARE, per_round=1)), torch.tensor([[0.0, 1.0]], dtype=torch.float64), atol=1e-9)


def test_growth_and_settling_by_hand():
    # At rounds 1 and 2 of 2, growth 1: amplitudes 1/2 and 1. Noise 1: (5/4 1/2; 1/2 2), with the prototype (1/2 1).
    one = uploads_of(torch.zeros(2, 1), torch.ones(2, 1))
    found = gains(one, replace(BARE, noise=1, growth=1))
    expect_close(found, torch.tensor([[0.5 * 2 - 0.5, 1.25 - 0.25]], dtype=torch.float64) / 2.25, atol=1e-9)
    # Settling 1: drift from round 1 of 2 counts (1/2)^-1 = 2: (4 1; 1 2), with (1 1).
    found = gains(one, replace(BARE, noise=1, drift=1, settling=1))
    expect_close(found, torch.tensor([[1 / 7, 3 / 7]], dtype=torch.float64), atol=1e-9)
    # Rounds 1 and 4: three rounds' drift at rate 4.
    apart = uploads_of(torch.zeros(2, 1), torch.ones(2, 1), (1, 4))
    found = gains(apart, replace(BARE, noise=1, drift=1, settling=1))
    expect_close(found, torch.tensor([[1, 13]], dtype=torch.float64) / (14 * 2 - 1), atol=1e-9)


@given(st.integers(0, 999), st.integers(1, 6))
def test_one_round_without_a_common_part_by_formula(seed, n_classes):
    rng = torch.Generator().manual_seed(seed)
    weights = torch.rand(n_classes, generator=rng, dtype=torch.float64) + 0.01
    found = gains(uploads_of(torch.zeros(1, 4), weights[None]), BARE)
    expect_close(found[:, 0], weights / (weights @ weights), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(("drift", "common"), [(0.02, 0.3), (0.2, 1.0)])
def test_positive_control_common_drift_and_head_leave_least_squares_behind(drift, common):
    """Common drift is what extractors do most: to least squares over all rounds it drowns what is asked for."""
    errors = {"posterior": 0.0, "without head": 0.0, "least squares": 0.0}
    for seed in range(4):
        uploads, truth, rows = made(seed, drift=drift, common=common)
        found = infer(uploads, (headed(uploads, rows),))
        errors["posterior"] += error(found.prototypes, truth)
        errors["without head"] += error(infer(uploads).prototypes, truth)
        errors["least squares"] += error(torch.linalg.pinv(uploads.weights) @ uploads.features, truth)
    assert errors["posterior"] < errors["without head"] < errors["least squares"]
    assert errors["posterior"] < 0.8 * errors["least squares"]


def test_negative_control_another_clients_uploads_under_the_own_weights_tell_nothing():
    own, swapped = 0.0, 0.0
    for seed in range(5):
        uploads, truth, rows = made(seed, aligned=0.1)
        other, _, _ = made(100 + seed, aligned=0.1)
        mixed = replace(uploads, features=other.features)
        own += error(infer(uploads, (headed(uploads, rows),)).prototypes, truth)
        swapped += error(infer(mixed, (headed(mixed, rows),)).prototypes, truth)
    assert swapped > 3 * own


def test_the_distance_that_it_expects_is_the_one_that_it_has():
    ratios = []
    for seed in range(6):
        uploads, truth, rows = made(seed, rounds=12, drift=0.05, common=0.2)
        found = infer(uploads, (headed(uploads, rows),))
        distance = (found.prototypes.double() - truth).norm(dim=1)
        ratios.append(float((distance.square().mean() / found.distance.double().square().mean()).sqrt()))
    assert 0.7 < sum(ratios) / len(ratios) < 1.4


@pytest.mark.parametrize("rounds", [1, 2])
def test_few_uploads_and_uploads_of_nothing_give_finite_answers(rounds):
    uploads, _, rows = made(0, rounds=rounds)
    for features in (uploads.features, torch.zeros_like(uploads.features)):
        seen = replace(uploads, features=features)
        found = infer(seen, (headed(seen, rows),))
        assert all(bool(value.isfinite().all()) for value in (found.prototypes, found.distance))
    from_zero = replace(uploads, rounds=torch.arange(rounds))
    assert bool(infer(from_zero).prototypes.isfinite().all())


def settled(seed, *, resampled=True):
    """Uploads of a settled client with their true weights, and its prototypes, which have most in common."""
    rng = torch.Generator().manual_seed(seed)
    level = torch.randn(WIDTH, generator=rng, dtype=torch.float64).abs() + 4
    prototypes = level + torch.randn(SOME, WIDTH, generator=rng, dtype=torch.float64)
    draws = torch.rand(ROUNDS, SOME, generator=rng, dtype=torch.float64)
    weights = draws if resampled else draws[:1].expand_as(draws)
    weights = weights / weights.sum(1, keepdim=True)
    return uploads_of(weights @ prototypes, weights), prototypes


def hidden(uploads):
    largest = torch.nn.functional.one_hot(uploads.weights.argmax(1), SOME).double()
    return Uploads(uploads.features, largest, uploads.rounds)


def nearest(found, prototypes):
    return float((torch.cdist(found.double(), prototypes).argmin(1) == torch.arange(SOME)).double().mean())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_prototypes_come_back_from_mixtures_that_name_their_largest_class_alone(seed):
    uploads, prototypes = settled(seed)
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
    uploads, prototypes = settled(seed, resampled=False)
    found, _ = infer_hidden(hidden(uploads))
    assert nearest(found.prototypes, prototypes) <= 0.5
    assert error(found.prototypes, prototypes) > 0.05


def test_expected_weights_of_two_classes_by_hand():
    # u / (u + v) with u > v: E = 1 - (1 - ln 2) = ln 2 for uniform u, v.
    means, spreads = expected_weights(torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64))
    large = float(torch.tensor(2.0).log())
    expect_close(means, torch.tensor([[large, 1 - large], [1 - large, large]], dtype=torch.float64), atol=5e-3)
    expect_close(spreads.sum(2), torch.zeros(2, 2, dtype=torch.float64), atol=1e-9)


def observations(uploads, rows=None, client=0):
    head = () if rows is None else (Classifier({"weight": rows.float(), "bias": torch.zeros(len(rows))}),)
    return tuple(
        Observation(int(number), client, (Entangled(feature.float(), weights.float()),), head)
        for number, feature, weights in zip(uploads.rounds, uploads.features, uploads.weights, strict=True)
    )


def test_the_attack_hands_over_what_it_expects():
    uploads, truth, rows = made(0, drift=0.1, common=0.3)
    seen = observations(uploads, rows)
    knowledge = Knowledge(
        ThreatModel(rounds_seen=20), (1, 8, 8), N_CLASSES, extractors={0: lambda images: images.flatten(1)[:, :WIDTH]}
    )
    targets = tuple(TargetId(20, 0, place, place) for place in range(N_CLASSES))
    found = UnmixedInversion(iterations=1, inversion="pixels")(seen, knowledge, targets, seed=0)
    sent = replace(uploads, features=uploads.features.float().double(), weights=uploads.weights.float().double())
    direct = infer(sent, (headed(sent, rows.float().double()),))
    expect_close(found.features, direct.prototypes, rtol=1e-3, atol=1e-3)
    near = torch.zeros(N_CLASSES, 1, 8, 8).flatten(1)
    near[:, :WIDTH] = (truth + 1).float()
    granted = replace(knowledge, public_images=near.view(-1, 1, 8, 8), public_labels=torch.arange(N_CLASSES))
    assert not torch.allclose(UnmixedInversion().unmixed(seen, 0, granted)[0].prototypes, found.features)
    silent = tuple(replace(one, broadcast=()) for one in seen)
    headless, _ = UnmixedInversion().unmixed(silent, 0, knowledge)
    assert not torch.allclose(headless.prototypes, found.features)
    of_fewer, _ = UnmixedInversion().unmixed(observations(uploads, rows[:3]), 0, knowledge)
    expect_close(of_fewer.prototypes, headless.prototypes)  # of a head that knows fewer classes nothing is taken
