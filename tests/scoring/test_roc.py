"""Areas and rates with intervals over clients, and what lies above the strongest guess."""

import numpy as np
import pytest
from scipy.stats import norm

from fedpriv.scoring.roc import Ranked

MEASURES = {"membership": "auc", "members_found": "tpr_at_1_percent"}


def trials(draw, clients, number, shift, spread=0.5):
    """Scores of members moved by ``shift`` and by a draw of their client, and of as many non-members."""
    yes = np.arange(2 * number) < number
    moved = [shift + spread * draw.normal() for _ in range(clients)]
    return [draw.normal(size=2 * number) + yes * one for one in moved], [yes] * clients, range(clients)


@pytest.mark.parametrize("clients", [5, 10, 20])
def test_intervals_of_area_and_rate_cover(clients):
    draw, hits = np.random.default_rng(clients), np.zeros(2)
    wide = 1.25**0.5
    truth = norm.cdf(1 / (1 + wide**2) ** 0.5), norm.sf((norm.ppf(0.99) - 1) / wide)
    for _ in range(200):
        found = Ranked.of(*trials(draw, clients, 20, 1.0)).rates()
        for place, rate in enumerate((found.auc, found.tpr_at_1_percent)):
            hits[place] += rate.ci95[0] <= truth[place] <= rate.ci95[1]
    assert (hits / 200 >= 0.91).all()  # 2.6 standard errors under 0.95


def test_values_have_the_rate_as_their_mean():
    ranked = Ranked.of(*trials(np.random.default_rng(0), 4, 200, 1.0))
    for name, rate in ranked.rates():
        assert ranked.weights @ ranked.values(name) == pytest.approx(rate.value, abs=1e-9)


def test_a_perfect_area_is_not_certain():
    told = [np.array([True, False] * 5)] * 6
    found = Ranked.of([one.astype(float) for one in told], told, range(6)).rates()
    assert found.auc.value == 1
    assert 0.5 < found.auc.ci95[0] < 0.95
    assert 0.4 < found.tpr_at_1_percent.ci95[0] < 0.95


def test_noise_is_seldom_above_chance_and_a_leak_is():
    draw, false = np.random.default_rng(0), 0
    for _ in range(100):
        found = Ranked.of(*trials(draw, 10, 20, 0.0)).against({}, MEASURES)
        false += any(one.p_value < 0.025 for one in found)
    assert false <= 5
    area, rate = Ranked.of(*trials(draw, 10, 20, 3.0)).against({}, MEASURES)
    assert area.against == "chance"
    assert (area.least, rate.least) == (pytest.approx(0.05), pytest.approx(0.02))
    assert area.mean == pytest.approx(0.48, abs=0.03)
    assert area.p_value < 1e-3 > rate.p_value
    assert area.n_clients == 10


def test_the_strongest_guess_is_compared_answer_by_answer():
    draw = np.random.default_rng(1)
    scores, yes, units = trials(draw, 8, 20, 2.0)
    own = Ranked.of(scores, yes, units)
    same, weak = (
        Ranked.of([one + 0.05 * draw.normal(size=40) for one in scores], yes, units),
        Ranked.of(*trials(draw, 8, 20, 0.0)),
    )
    found = own.against({"permuted": same, "weak": weak, "absent": None}, {"membership": "auc"})[0]
    assert found.against == "permuted"
    assert found.mean == pytest.approx(0, abs=0.01)
    low, high = own.rates().auc.ci95
    assert found.ci95[1] - found.ci95[0] < 0.2 * (high - low)  # what both share cancels
    assert found.p_value > 0.9


def test_a_perfect_area_is_bounded_by_the_lowest_that_it_could_be():
    told = [np.array([True, True, False, False])] * 10
    found = Ranked.of([one.astype(float) for one in told], told, range(10)).against({}, {"property": "auc"})[0]
    assert found.mean == pytest.approx(0.5)
    assert found.p_value == pytest.approx(0.55**16)  # of 16 values that say as much, none below one; the lowest is 0
    assert found.ci95[1] == pytest.approx(0.5)
