import numpy as np
import pytest

from fedpriv.scoring.intervals import bootstrap_mean, cluster_error, compare, summary


def rng(seed=0):
    return np.random.default_rng(seed)


def test_summary_of_hand_made_values():
    found = summary([1.0, 2.0, 6.0], [0, 1, 2], rng())
    assert (found.mean, found.median, found.n, found.sum) == (3.0, 2.0, 3, 9.0)
    assert found.sd == pytest.approx(7**0.5)
    assert found.per_target == (1.0, 2.0, 6.0)
    assert 1 <= found.ci95[0] <= 3 <= found.ci95[1] <= 6


def test_one_value_supports_no_interval():
    found = summary([4.0], [0], rng())
    assert found.ci95 is None
    assert found.sd is None
    assert found.mean == 4.0


def test_an_infinite_value_makes_no_mean():
    found = summary([1.0, float("inf")], [0, 1], rng())
    assert found.mean is None
    assert found.per_target == (1.0, None)


def test_equal_values_give_a_point():
    assert bootstrap_mean([2.0] * 6, [0, 0, 1, 1, 2, 2], rng()) == (2.0, 2.0)


def test_the_seed_decides():
    values, clients = rng(1).normal(size=30), np.repeat(np.arange(6), 5)
    assert bootstrap_mean(values, clients, rng(3)) == bootstrap_mean(values, clients, rng(3))
    assert bootstrap_mean(values, clients, rng(3)) != bootstrap_mean(values, clients, rng(4))


def test_clusters_widen_the_interval():
    clients = np.repeat(np.arange(10), 20)
    values = np.repeat(rng(1).normal(size=10), 20)  # targets of one client are copies: ten facts, not two hundred
    low, high = bootstrap_mean(values, clients, rng(2))
    alone = bootstrap_mean(values, np.arange(200), rng(2))
    assert high - low > 3 * (alone[1] - alone[0])


def test_clients_keep_all_their_targets():
    # Client 0 has nine targets of 0, client 1 one of 1: a resample's mean is 0, 0.1 or 1, never anything between.
    low, high = bootstrap_mean([0.0] * 9 + [1.0], [0] * 9 + [1], rng())
    assert (low, high) == (0.0, 1.0)


def test_coverage_is_about_what_it_says():
    hits = 0
    for trial in range(200):
        draw = rng(trial)
        values = np.repeat(draw.normal(size=30), 4) + draw.normal(size=120) * 0.5
        low, high = bootstrap_mean(values, np.repeat(np.arange(30), 4), rng(trial + 1000), draws=400)
        hits += low <= 0 <= high
    assert 0.88 <= hits / 200 <= 0.99


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="2 values but 3"):
        bootstrap_mean([1.0, 2.0], [0, 1, 2], rng())


def test_cluster_error_of_a_hand_made_case():
    # Mean 2; residual sums of the clusters -3, 1 and 2: (9 + 1 + 4) * 3/2 / 5**2.
    error, clusters = cluster_error(np.array([0.0, 1.0, 3.0, 3.0, 3.0]), [0, 0, 1, 2, 2])
    assert clusters == 3
    assert error == pytest.approx((14 * 1.5) ** 0.5 / 5)


def test_a_comparison_has_the_interval_of_students_t():
    found = compare([1.0, 2.0, 3.0], [0, 1, 2], measure="images", against="mean_image", least=0.5)
    half = 4.302652729911275 / 3**0.5  # t of two degrees of freedom at 97.5 %
    assert found.ci95 == pytest.approx((2 - half, 2 + half))
    assert found.p_value == pytest.approx(0.5 - 1.5 * 3**0.5 / 2 / (2 + 1.5**2 * 3) ** 0.5)  # t of two in closed form


def test_one_cluster_compares_without_an_interval():
    found = compare([1.0, 2.0], [4, 4], measure="images", against="mean_image", least=0.5)
    assert (found.mean, found.ci95, found.p_value, found.n_clients) == (1.5, None, None, 1)
