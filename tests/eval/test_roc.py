"""Areas and rates with intervals over clients, and what lies above the strongest guess."""

import numpy as np
import pytest
from scipy.stats import norm

from fedpriv.eval.inference_case import Ranked, area

MEASURES = ("membership", "members_found")


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


def test_a_guess_that_is_surely_stronger_than_chance_is_compared_answer_by_answer():
    draw = np.random.default_rng(1)
    scores, yes, units = trials(draw, 8, 20, 2.0)
    own = Ranked.of(scores, yes, units)
    same, weak = (
        Ranked.of([one + 0.05 * draw.normal(size=40) for one in scores], yes, units),
        Ranked.of(*trials(draw, 8, 20, 0.0)),
    )
    found = own.against({"shuffled": same, "weak": weak, "absent": None}, ("membership",))[0]
    assert found.against == "shuffled"
    assert found.mean == pytest.approx(0, abs=0.01)
    low, high = own.rates().auc.ci95
    assert found.ci95[1] - found.ci95[0] < 0.2 * (high - low)  # what both share cancels
    assert found.p_value > 0.9


def test_a_guess_that_luck_makes_stronger_is_no_baseline_but_a_leak_must_beat_it():
    draw, shares = np.random.default_rng(2), []
    for _ in range(60):
        own, other = (Ranked.of(*trials(draw, 10, 10, shift)) for shift in (0.8, 0.0))
        found = own.against({"shuffled": other}, ("membership",))[0]
        assert found.against == "chance"
        stronger = other.rate("auc") > 0.5
        assert not found.beside or stronger
        shares.append(found.mean)
    assert np.mean(shares) == pytest.approx(0.214, abs=0.02)  # of scores 0.8 standard deviations apart


# ---------------------------------------------------------------- by hand


def one_client(yes, no):
    told = np.array([True] * len(yes) + [False] * len(no))
    return Ranked.of([np.array([*yes, *no], dtype=float)], [told], [3])


def test_an_area_answer_by_answer():
    ranked = one_client([4.0, 2.0], [3.0, 2.0, 1.0, 0.0])
    # 4 is above all four, 2 above two and level with one: 1 and 5/8. Of the others 3 is below one of two yes, 2 below one
    # and level with one, 1 and 0 below both.
    assert ranked.rate("auc") == area(ranked.scores, ranked.yes) == pytest.approx((1 + 5 / 8) / 2)
    place = np.array([1, 5 / 8, 1 / 2, 3 / 4, 1, 1])
    assert ranked.values("auc") == pytest.approx(13 / 16 + 2 * (place - 13 / 16))
    assert ranked.weights == pytest.approx([1 / 4, 1 / 4, 1 / 8, 1 / 8, 1 / 8, 1 / 8])
    assert ranked.unit.tolist() == [3] * 6


def test_a_rate_answer_by_answer():
    ranked = one_client([98.5, 97.5, 94.5, 50.0], range(100))
    # One false positive is allowed, 99, so that the threshold is 98; from 99 to 93, six false positives on, three of four
    # are found: the slope is 3/4 a six hundredth.
    assert ranked.rate("tpr_at_1_percent") == 1 / 4
    values = ranked.values("tpr_at_1_percent")
    assert values[:4] == pytest.approx([1 / 4 + 2 * 3 / 4] + [1 / 4 - 2 / 4] * 3)
    slope = 3 / 4 * 100 / 6
    assert values[-1] == pytest.approx(1 / 4 - 2 * slope * (1 - 1 / 100))
    assert values[4:-1] == pytest.approx(1 / 4 + 2 * slope / 100)
    # Of so few that none may pass, the slope goes to four false positives on.
    few = one_client([98.5, 97.5, 94.5, 50.0], range(1, 100, 2))
    assert few.rate("tpr_at_1_percent") == 0
    assert few.values("tpr_at_1_percent")[4:] == pytest.approx(0)
