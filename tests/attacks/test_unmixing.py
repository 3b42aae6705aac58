"""Unmixing: exact where the algebra says so, better than the mixture where prototypes drift, chance where weights stay."""

import pytest
import torch
from compare import expect_close
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.attacks.recover.unmixing import Estimator, candidates, estimate, random_walk, stack_rounds, unmix, window


def mixture(seed, n_rounds, n_classes, width=40, drift=0.0, fixed=False):
    rng = torch.Generator().manual_seed(seed)
    prototypes = torch.randn(n_classes, width, generator=rng, dtype=torch.float64) + 1
    draws = torch.rand(n_rounds, n_classes, generator=rng, dtype=torch.float64)
    weights = (draws[:1].expand_as(draws) if fixed else draws) / draws.sum(1, keepdim=True)
    if fixed:
        weights = weights[:1].expand_as(weights) / weights[0].sum()
    uploads = []
    for mixing in weights:
        prototypes = prototypes + drift * torch.randn(prototypes.shape, generator=rng, dtype=torch.float64)
        uploads.append(mixing @ prototypes)
    return torch.stack(uploads), weights, prototypes


def error(found, prototypes):
    return float(((found.double() - prototypes).norm(dim=1) / prototypes.norm(dim=1)).median())


@given(st.integers(0, 999), st.integers(2, 8))
def test_without_drift_as_many_rounds_as_classes_reveal_the_prototypes(seed, n_classes):
    uploads, weights, prototypes = mixture(seed, n_classes + 3, n_classes)
    assert error(window(uploads, weights), prototypes) < 1e-4
    assert error(unmix(uploads, weights).prototypes, prototypes) < 1e-2


def test_two_rounds_and_two_classes_by_hand():
    # p0 = (1, 0), p1 = (0, 2), mixed 3:1 and 1:1.
    weights = torch.tensor([[0.75, 0.25], [0.5, 0.5]], dtype=torch.float64)
    uploads = torch.tensor([[0.75, 0.5], [0.5, 1.0]], dtype=torch.float64)
    expect_close(window(uploads, weights), torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64))


def test_fixed_weights_reveal_nothing_however_many_rounds():
    uploads, weights, prototypes = mixture(0, 40, 6, fixed=True)
    found = unmix(uploads, weights)
    nearest = torch.cdist(found.prototypes.double(), prototypes).argmin(1)
    assert error(found.prototypes, prototypes) > 0.3
    assert float((nearest == torch.arange(6)).double().mean()) <= 0.5
    assert found.condition > 1e6


def test_a_single_round_gives_the_minimum_norm_answer():
    uploads, weights, _ = mixture(0, 1, 5)
    found = unmix(uploads, weights)
    expect_close(weights @ found.prototypes.double(), uploads, atol=1e-5)
    assert found.prediction_error == float("inf")


@pytest.mark.parametrize(("drift", "share"), [(0.003, 1.1), (0.03, 0.9), (0.1, 0.9)])
def test_under_drift_the_random_walk_beats_least_squares(drift, share):
    pairs = []
    for seed in range(12):
        uploads, weights, prototypes = mixture(seed, 15, 8, drift=drift)
        pairs.append((error(random_walk(uploads, weights), prototypes), error(window(uploads, weights), prototypes)))
    walk, least = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
    assert walk < share * least
    assert walk < 12 * drift


def test_a_linear_drift_is_solved_for_exactly():
    rng = torch.Generator().manual_seed(3)
    start, slope = (torch.randn(3, 20, generator=rng, dtype=torch.float64) for _ in range(2))
    weights = torch.rand(12, 3, generator=rng, dtype=torch.float64)
    weights = weights / weights.sum(1, keepdim=True)
    uploads = torch.stack([mixing @ (start + t * 0.1 * slope) for t, mixing in enumerate(weights)])
    assert error(window(uploads, weights, drift=True), start + 11 * 0.1 * slope) < 1e-6
    assert error(window(uploads, weights), start + 11 * 0.1 * slope) > 1e-2


def test_the_choice_uses_only_the_uploads_and_is_close_to_the_best():
    chosen, best = [], []
    for seed in range(8):
        uploads, weights, prototypes = mixture(seed, 20, 5, drift=0.02)
        chosen.append(error(unmix(uploads, weights).prototypes, prototypes))
        best.append(min(error(estimate(uploads, weights, e), prototypes) for e in candidates(20, 5, "auto")))
    assert sum(chosen) < 1.5 * sum(best)


def test_scaling_and_the_order_of_classes_change_nothing():
    uploads, weights, _ = mixture(1, 14, 6, drift=0.01)
    found = unmix(uploads, weights).prototypes
    expect_close(unmix(3 * uploads, weights).prototypes, 3 * found, rtol=1e-3, atol=1e-4)
    turned = torch.tensor([4, 2, 0, 5, 1, 3])
    expect_close(unmix(uploads, weights[:, turned]).prototypes, found[turned], rtol=1e-3, atol=1e-4)


def test_classes_without_weight_are_left_out():
    features, weights, classes = stack_rounds(
        [torch.zeros(4), torch.ones(4)], [torch.tensor([0.0, 0.4, 0.6]), torch.tensor([0.0, 1.0, 0.0])]
    )
    assert classes.tolist() == [1, 2]
    assert weights.tolist() == [[pytest.approx(0.4), pytest.approx(0.6)], [1.0, 0.0]]
    assert features.shape == (2, 4)


def test_candidates_follow_the_number_of_classes():
    assert Estimator(15, drift=True) in candidates(15, 5, "window")
    assert not any(e.drift for e in candidates(14, 5, "window"))
    assert candidates(9, 3, "random_walk") == [Estimator(0, random_walk=True)]
