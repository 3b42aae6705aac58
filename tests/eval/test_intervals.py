"""Intervals over clients: by hand where they have a closed form, and by how often they hold the truth."""

import numpy as np
import pytest
from eval_cases import difference
from scipy.stats import t as student

from fedpriv.eval.intervals import Means, clustered, combine, compare


def rng(seed=0):
    return np.random.default_rng(seed)


def test_summary_of_hand_made_values():
    found = Means((0, 1, 2)).summary([1.0, 2.0, 6.0])
    assert (found.mean, found.median, found.n) == (3.0, 2.0, 3)
    assert found.sd == pytest.approx(7**0.5)
    assert found.per_target == (1.0, 2.0, 6.0)
    half = student.ppf(0.975, 2) * (7 / 3) ** 0.5
    assert found.ci95 == pytest.approx((3 - half, 3 + half))


def test_error_of_a_hand_made_case():
    # Mean 2; residual sums of the clusters -3, 1 and 2, their shares 2/5, 1/5 and 2/5.
    found = clustered([0.0, 1.0, 3.0, 3.0, 3.0], [0, 0, 1, 2, 2])
    assert found.error == pytest.approx((9 / 0.6 + 1 / 0.8 + 4 / 0.6) ** 0.5 / 5)


def test_a_weighted_mean_is_that_of_repeated_values():
    weighted = clustered([1.0, 2.0, 4.0], [0, 1, 2], weights=np.array([1.0, 2.0, 3.0]))
    repeated = clustered([1.0, 2.0, 2.0, 4.0, 4.0, 4.0], [0, 1, 1, 2, 2, 2])
    assert weighted.mean == pytest.approx(repeated.mean)
    assert weighted.error == pytest.approx(repeated.error)


def test_copies_are_no_new_facts_but_independent_values_are():
    clients = np.repeat(np.arange(10), 20)
    values = np.repeat(rng(1).normal(size=10), 20)  # targets of one client are copies: ten facts, not two hundred
    low, high = clustered(values, clients).interval()
    alone = clustered(values, np.arange(200)).interval()
    assert high - low > 3 * (alone[1] - alone[0])


@pytest.mark.parametrize("clients", [5, 10, 20])
@pytest.mark.parametrize("kind", ["mean", "share", "difference"])
def test_coverage_is_what_it_says(clients, kind):
    draw, hits = rng(clients), 0
    for _ in range(300):
        own = np.repeat(draw.beta(0.3, 0.7, size=(2, clients)), 5, axis=1)  # correlation 0.5 within a client
        told = (draw.random(own.shape) < own).astype(float)
        normal = np.repeat(draw.normal(size=clients), 5) + draw.normal(size=5 * clients)
        values, truth = {"mean": (normal, 0), "share": (told[0], 0.3), "difference": (told[0] - told[1], 0)}[kind]
        low, high = clustered(values, np.repeat(range(clients), 5), kind).interval()
        hits += low <= truth <= high
    assert hits / 300 >= 0.92  # 2.4 standard errors under 0.95


def test_a_saturated_difference_of_shares_is_never_certain():
    clients = np.repeat(range(6), 5)
    found = difference(np.ones(30), clients, "identified", 0.05)
    assert found.ci95[0] < 0.75 < 1 == found.ci95[1]
    assert found.p_value == pytest.approx((1.05 / 2) ** 10)  # ten values say as much, each 1 with at most this chance
    almost = difference([0.0] + [1.0] * 29, clients, "identified", 0.05)
    assert 0 < found.p_value < almost.p_value < 0.05
    assert difference(np.zeros(30), clients, "identified", 0.05).p_value == 1
    assert difference(np.zeros(30), clients, "identified", 0.05).ci95 == pytest.approx((-0.31, 0.31), abs=0.01)


def test_a_difference_that_is_never_below_zero_ends_where_its_share_does():
    values = np.arange(40) % 4 == 0
    found = clustered(values.astype(float), np.repeat(range(8), 5), "difference")
    share = clustered(values.astype(float), np.repeat(range(8), 5), "share").interval()
    assert found.interval()[1] == pytest.approx(share[1])
    assert found.interval()[0] < share[0]  # none was below zero, which more targets might be
    mirrored = clustered(-values.astype(float), np.repeat(range(8), 5), "difference")
    assert mirrored.interval() == pytest.approx(tuple(-end for end in reversed(found.interval())))


@pytest.mark.parametrize("kind", ["share", "difference"])
def test_a_p_value_is_the_chance_at_which_the_lower_limit_is_the_least_effect(kind):
    values = [0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    found = clustered(values, np.repeat(range(6), 2), kind)
    p_value = found.p_value(0.2)
    assert 0 < p_value < 0.5
    assert found.limits(p_value)[0] == pytest.approx(0.2, abs=1e-5)
    assert found.p_value(0.99) == 1


def test_almost_certain_differences_of_shares_are_not_overstated():
    # Rare misses: Student's t put the lower end above the truth in a tenth of such cases, four times too often.
    draw, above, clients = rng(6), 0, np.repeat(range(15), 20)
    for _ in range(300):
        own = [np.repeat(draw.beta(9 * share, 9 * (1 - share), 15), 20) for share in (0.98, 0.03)]
        told = [(draw.random(300) < one).astype(float) for one in own]
        above += clustered(told[0] - told[1], clients, "difference").interval()[0] > 0.95
    assert above <= 18  # four standard deviations over 2.5 %


def test_a_comparison_has_the_interval_of_students_t():
    found = difference([1.0, 2.0, 3.0], [0, 1, 2])
    half = 4.302652729911275 / 3**0.5  # t of two degrees of freedom at 97.5 %
    assert found.ci95 == pytest.approx((2 - half, 2 + half))
    assert found.p_value == pytest.approx(0.5 - 1.5 * 3**0.5 / 2 / (2 + 1.5**2 * 3) ** 0.5)  # t of two in closed form


def test_equal_values_without_bounds_are_a_sign_test():
    assert difference([2.0] * 8, np.repeat(range(4), 2)).p_value == 1 / 16
    assert difference([0.5] * 8, np.repeat(range(4), 2)).p_value == 1


def test_one_client_compares_without_an_interval():
    found = difference([1.0, 2.0], [4, 4])
    assert (found.mean, found.ci95, found.p_value, found.degrees, found.n_clients) == (1.5, None, None, None, 1)


def test_degrees_of_freedom_by_hand():
    # Two clients with shares 3/4 and 1/4: residual sums are the same but for their sign, which leaves one degree.
    assert clustered(np.arange(4.0), [0, 0, 0, 1]).degrees == pytest.approx(1)
    # Three clients of shares 1/2, 1/4, 1/4 by the definition, with a correlation of 0.1 within.
    shares, within = np.array([0.5, 0.25, 0.25]), np.array([2, 1, 1]) / 16
    covariance = np.diag(0.9 * within + 0.1 * shares**2)
    centred = np.eye(3) - np.outer(shares, np.ones(3))
    form = np.diag(1 / (1 - shares))
    spread = form @ centred @ covariance @ centred.T
    expected = np.trace(spread) ** 2 / np.trace(spread @ spread)
    assert clustered(np.arange(4.0), [0, 0, 1, 2]).degrees == pytest.approx(expected)


def test_a_mean_of_equal_values_ends_where_it_is():
    found = clustered([2.0] * 6, np.repeat(range(3), 2))
    assert found.error == 0
    assert found.interval() == pytest.approx((2, 2))
    assert found.p_value(2.0) == 1
    assert found.p_value(1.999) == 0.5**3
    assert clustered([2.0, 2.0 + 1e-13, 2.0], range(3)).error == 0
    assert clustered([2.0, 2.0 + 1e-9, 2.0], range(3)).error > 0


# ---------------------------------------------------------------- over seeds


def test_seeds_keep_what_holds_for_all_of_them():
    one = difference([1.0, 2.0, 3.0], [0, 1, 2], least=0.5)
    other = compare([2.0, 3.0, 4.0, 5.0], range(4), measure="images", against="noise", least=0.75)
    third = compare([2.0, 2.0, 4.0, 5.0], range(4), measure="images", against="noise", least=0.25)
    found = combine([one, other, third])
    assert (found.against, found.least, found.n, found.n_clients) == ("noise", 0.75, 11, 3)
    assert found.mean == pytest.approx((2 + 3.5 + 3.25) / 3)
    assert (found.measure, found.stratum) == ("images", "all")


def test_combined_p_values_by_hand():
    low, high = difference([1.0, 2.0, 3.0], range(3)), difference([2.0, 3.0, 4.0], range(3))
    both = combine([low, high])
    # A client's variance is 1 in either seed, the means are 2 and 3.
    clients, seeds = student.ppf(0.975, 2) ** 2 / 3, student.ppf(0.975, 1) ** 2 * 0.5 / 2
    half = (clients + seeds) ** 0.5
    free = 1 / ((clients / half**2) ** 2 / 2 + (seeds / half**2) ** 2 / 1)
    assert both.degrees == pytest.approx(free)
    assert both.ci95 == pytest.approx((2.5 - half, 2.5 + half))
    assert both.p_value == pytest.approx(student.sf((2.5 - 0.5) * student.ppf(0.975, free) / half, free))
    few = compare([1.0] * 5, range(5), measure="property", against="chance", least=0.05)
    assert combine([few] * 3).p_value >= few.p_value
    assert combine([few] * 3).ci95 == pytest.approx(few.ci95)


def test_an_end_of_seeds_is_of_that_end_and_within_what_shares_can_differ_by():
    few, most = (
        compare(v, range(10), measure="property", against="chance", least=0.05) for v in ([0.0] * 10, [1.0] * 10)
    )
    squares = (2 * few.ci95[0] ** 2 + (most.ci95[0] - 1) ** 2) / 3 + student.ppf(0.975, 2) ** 2 / 9
    assert combine([few, few, most]).ci95 == pytest.approx((max(-1, 1 / 3 - squares**0.5), 1))


def test_seeds_one_of_which_has_no_interval_have_none():
    both = combine([difference([1.0, 2.0], range(2)), difference([1.0], [0])])
    assert (both.ci95, both.p_value, both.degrees, both.n_clients) == (None, None, None, 1)


@pytest.mark.parametrize(("number", "apart"), [(3, 1.0), (3, 5.0), (2, 3.0)])
def test_combined_intervals_cover(number, apart):
    draw, hits = np.random.default_rng(3), 0
    for _ in range(300):
        seeds = [difference(draw.normal(0, apart) + draw.normal(size=8), range(8)) for _ in range(number)]
        low, high = combine(seeds).ci95
        hits += low <= 0 <= high
    assert hits / 300 >= 0.92
