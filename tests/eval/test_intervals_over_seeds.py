"""Intervals over several seeds: by hand where they have a closed form, and by how often they hold the truth."""

import numpy as np
import pytest
from eval_cases import difference
from scipy.stats import t as student

from fedpriv.eval.intervals import (
    _barnard_rubin,
    combine,
    compare,
)


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
    within, between = 1 / 3, 1.5 * 0.5
    free = _barnard_rubin(between, within, 2, 2.0)
    error = (within + between) ** 0.5
    assert both.degrees == pytest.approx(free)
    assert both.p_value == pytest.approx(student.sf((2.5 - 0.5) / error, free))
    half = student.ppf(0.975, free) * error
    assert both.ci95 == pytest.approx((2.5 - half, 2.5 + half))


def test_degrees_of_barnard_and_rubin_by_hand():
    # Added 3/4 of the variance by seeds: observed 9/11 * 8 * 1/4, and together 1 / (9/16/4 + 11/18).
    assert _barnard_rubin(3.0, 1.0, 5, 8.0) == pytest.approx(max(4, 1 / (9 / 64 + 11 / 18)))
    assert _barnard_rubin(1.0, 3.0, 5, 8.0) == pytest.approx(1 / (1 / 64 + 11 / (9 * 8 * 0.75)))
    assert _barnard_rubin(0.0, 1.0, 5, 8.0) == pytest.approx(9 / 11 * 8)
    assert _barnard_rubin(1.0, 0.0, 5, 8.0) == 4
    assert _barnard_rubin(1.0, 0.0, 9, 3.0) == 3  # no more than one seed has


def test_seeds_one_of_which_has_no_interval_have_none():
    both = combine([difference([1.0, 2.0], range(2)), difference([1.0], [0])])
    assert (both.ci95, both.p_value, both.degrees, both.n_clients) == (None, None, None, 1)


@pytest.mark.parametrize(("number", "apart"), [(3, 1.0), (3, 5.0), (2, 3.0)])
def test_combined_intervals_cover(number, apart):
    draw, hits, widths = np.random.default_rng(3), 0, []
    for _ in range(300):
        seeds = [difference(draw.normal(0, apart) + draw.normal(size=8), range(8)) for _ in range(number)]
        low, high = combine(seeds).ci95
        hits += low <= 0 <= high
        widths.append(high - low)
    assert hits / 300 >= 0.92
    assert max(widths) < 2 * student.ppf(0.975, 1) * 4 * apart
