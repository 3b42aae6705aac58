"""Chance among decoys that targets share: the tail of a binomial share over the drawing of decoys."""

import numpy as np
import pytest
from scipy.stats import betabinom

from fedpriv.eval.floors import DECOYS
from fedpriv.eval.intervals import ByDesign, Means


def chance(decoys, number=10):
    return ByDesign(DECOYS, np.full(number, 1 / (1 + decoys)), decoys)


@pytest.mark.parametrize("decoys", [10, 50, 100])
@pytest.mark.parametrize(("hits", "number"), [(1, 5), (3, 10), (7, 10), (5, 100)])
def test_without_a_least_effect_it_is_the_beta_binomial_tail(decoys, hits, number):
    found = chance(decoys).p_value(hits / number, 1 / (1 + decoys), 0.0, number)
    exact = betabinom(number, 1, decoys).sf(hits - 1)
    assert exact <= found <= 1.2 * exact


def test_what_is_found_besides_counts_for_the_guess():
    plain, least = (chance(50).p_value(0.5, 1 / 51, least, 10) for least in (0.0, 0.05))
    control = chance(50).p_value(0.5, 0.2, 0.05, 10)
    assert plain < least < control < 0.2
    assert chance(50).p_value(0.0, 1 / 51, 0.05, 10) == 1


@pytest.mark.parametrize("decoys", [10, 20, 50])
@pytest.mark.parametrize(("clients", "each"), [(5, 1), (10, 2), (20, 5)])
def test_targets_of_one_class_with_one_guess_and_one_set_of_decoys_are_no_leak(decoys, clients, each):
    """The worst sharing that there is; p-values that each number of hits leads to, weighted by how often chance makes it."""
    number, means = clients * each, Means(tuple(np.repeat(range(clients), each).tolist()))
    known = chance(decoys, number)
    sizes = {0.05: 0.0, 0.01: 0.0, 0.0016: 0.0}
    for hits in range(1, number + 1):
        values = np.zeros(number)
        values[np.arange(number).reshape(clients, each).T.flatten()[:hits]] = (
            1  # spread over clients: shows no clusters
        )
        one = means.compare({DECOYS: values - known.rates}, "identified", 0.05, (), known)[0]
        for level in sizes:
            sizes[level] += float(betabinom(number, 1, decoys).pmf(hits)) * (one.p_value <= level)
    assert all(size <= 1.05 * level for level, size in sizes.items()), sizes
