import pytest
import torch
from compare import expect_close
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.algebra.entanglement import MECHANISMS, entangle, sample_weights

labels_strategy = st.lists(st.integers(0, 5), min_size=1, max_size=40).map(torch.tensor)


@given(labels_strategy, st.sampled_from(MECHANISMS), st.integers(0, 99))
def test_weights_are_a_distribution_and_the_encoding_is_theirs(labels, mechanism, seed):
    weights = sample_weights(labels, mechanism, torch.Generator().manual_seed(seed))
    assert weights.shape == labels.shape
    assert (weights >= 0).all()
    assert float(weights.sum()) == pytest.approx(1, abs=1e-5)
    features = torch.randn(len(labels), 7, generator=torch.Generator().manual_seed(seed))
    feature, encoding = entangle(features, labels, weights, 6)
    assert float(encoding.sum()) == pytest.approx(1, abs=1e-5)
    for c in range(6):
        assert float(encoding[c]) == pytest.approx(float(weights[labels == c].sum()), abs=1e-6)
    expect_close(feature, sum(w * r for w, r in zip(weights, features, strict=True)), atol=1e-5)


LABELS = torch.tensor([0, 0, 0, 1, 2, 2])


def drawn(mechanism, seed=3, **kwargs):
    return sample_weights(LABELS, mechanism, torch.Generator().manual_seed(seed), **kwargs)


def test_the_fixed_mechanisms_by_hand():
    expect_close(drawn("VAR"), torch.full((6,), 1 / 6))
    expect_close(drawn("VAP"), torch.tensor([1 / 9, 1 / 9, 1 / 9, 1 / 3, 1 / 6, 1 / 6]))


def test_the_selecting_mechanisms_pick_one_sample_or_one_class():
    assert sorted(drawn("RSR").tolist()) == [0, 0, 0, 0, 0, 1]
    picked = {tuple(drawn("RSP", seed).tolist()) for seed in range(40)}
    third = pytest.approx(1 / 3)
    assert len(picked) == 3
    assert (0, 0, 0, 1, 0, 0) in picked
    assert (0, 0, 0, 0, 0.5, 0.5) in picked
    assert any(list(weights) == [third, third, third, 0, 0, 0] for weights in picked)


def test_rap_is_a_mix_of_prototypes():
    weights = drawn("RAP")
    assert weights[0] == weights[1] == weights[2]
    assert weights[4] == weights[5]
    features = torch.randn(6, 4)
    feature, encoding = entangle(features, LABELS, weights, 3)
    prototypes = torch.stack([features[c == LABELS].mean(0) for c in range(3)])
    expect_close(feature, encoding @ prototypes, atol=1e-6)
