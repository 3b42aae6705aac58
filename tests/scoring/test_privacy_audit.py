"""Lower bounds on epsilon from canaries: published figures, cases by hand, and how often they are wrong."""

import math

import numpy as np
import pytest
from epsilon_bounds import audits, gaussian, laplace, randomised_response
from looped import each
from scipy.special import ndtri
from scipy.stats import binom

from fedpriv.dp.bounds import (
    Guesses,
    from_part,
    frontier,
    gaussian_threshold_epsilon,
    one_run_epsilon,
    one_run_gaussian_epsilon,
    one_run_p_value,
    threshold_epsilon,
)
from fedpriv.dp.verdict import (
    Design,
    audit_scores,
    word,
)
from fedpriv.scoring.records import ClaimedPrivacy

PUBLISHED = [
    (one_run_epsilon, 0, 0.0),
    (one_run_epsilon, 1, 1.13346),
    (one_run_epsilon, 2, 2.311945),
    (one_run_epsilon, 4, 4.395568),
    (one_run_gaussian_epsilon, 0, 0.0),
    (one_run_gaussian_epsilon, 1, 2.164749),
    (one_run_gaussian_epsilon, 2, 4.7218075),
    (one_run_gaussian_epsilon, 4, 9.133752),
]
"""Of jax_privacy's auditing: 10,000 canaries a side, quantiles of N(shift, 1) and N(0, 1), alpha 0.05, delta 1e-6."""


def normal(shift, number):
    return ndtri((np.arange(number) + 0.5) / number) + shift


@each("bound, shift, published", PUBLISHED)
def test_published_bounds(bound, shift, published):
    """The best of all corners of the hull, each at alpha over their number, likely ones first."""
    corners, _ = frontier(normal(shift, 10_000), normal(0, 10_000))
    sure = {one: one.hits / (one.hits + one.false + 1) - 2 / math.sqrt(one.hits + one.false + 1) for one in corners}
    found = 0.0
    for corner in sorted(corners, key=lambda one: -sure[one]):
        if corner.hits > corner.false:
            found = bound(corner, 0.05 / len(corners), 1e-6, found)
    assert found == pytest.approx(published, abs=1e-5)


def test_corners_of_the_hull_by_hand():
    """In 1.5, 2.5, 0.5, 3.5 and out 0, 3, 2, 1: missed and cleared are (0, 0), (0, 1), (3, 4), (4, 4)."""
    corners, thresholds = frontier(np.array([1.5, 2.5, 0.5, 3.5]), np.array([0.0, 3.0, 2.0, 1.0]))
    assert thresholds == [0, 0.5, 3.5, math.inf]
    assert [(4 - one.hits, 4 - one.false) for one in corners] == [(0, 0), (0, 1), (3, 4), (4, 4)]


def test_threshold_bound_of_no_errors_by_hand():
    """No error among n: both limits are 1 - (alpha / 2)^(1 / n), by the binomial law itself."""
    limit = 1 - 0.025 ** (1 / 50)
    assert threshold_epsilon(Guesses(50, 50, 0, 50), 0.05, 0.0) == pytest.approx(math.log((1 - limit) / limit))
    assert threshold_epsilon(Guesses(50, 50, 0, 50), 0.05, 0.1) == pytest.approx(math.log((0.9 - limit) / limit))
    mu = 2 * ndtri(1 - limit)
    found = gaussian_threshold_epsilon(Guesses(50, 50, 0, 50), 0.05, 1e-5)
    high, low = (0.5 * math.erfc((found / mu + side * mu / 2) / math.sqrt(2)) for side in (-1, 1))
    assert high - math.exp(found) * low == pytest.approx(1e-5, rel=1e-6)  # the curve of mu at that epsilon


@pytest.mark.parametrize("bound", [threshold_epsilon, gaussian_threshold_epsilon, one_run_epsilon])
def test_nothing_is_shown_by_a_coin_or_by_worse(bound):
    assert bound(Guesses(25, 50, 25, 50), 0.05, 1e-5) == 0
    assert bound(Guesses(5, 50, 45, 50), 0.05, 1e-5) == 0


@pytest.mark.parametrize("delta", [0.0, 1e-6, 1e-2])
@pytest.mark.parametrize(("hits", "false", "epsilon"), [(1, 0, 0.5), (9, 1, 1.0), (60, 40, 0.0), (0, 3, 1.0)])
def test_p_value_of_one_run_is_the_formula_summed_up(delta, hits, false, epsilon):
    told, guesses = Guesses(hits, 100, false, 90), hits + false
    share = 1 / (1 + math.exp(-epsilon))
    tail = sum(binom.pmf(w, guesses, share) for w in range(hits, guesses + 1))
    steps = [sum(binom.pmf(w, guesses, share) for w in range(hits - i, hits)) / i for i in range(1, hits + 1)]
    expected = min(1.0, tail + 2 * 190 * delta * max(steps, default=0.0))
    assert one_run_p_value(told, epsilon, delta) == pytest.approx(expected, abs=1e-12)


def test_all_right_in_one_run_by_hand():
    """With delta 0: r right guesses of r have probability (e^epsilon / (1 + e^epsilon))^r."""
    share = 0.05 ** (1 / 20)
    assert one_run_epsilon(Guesses(20, 20, 0, 20), 0.05, 0.0) == pytest.approx(math.log(share / (1 - share)), abs=1e-6)


def test_a_threshold_that_a_part_chose_is_tried_on_the_others():
    """The first third is told apart, the others are not: nothing is shown."""
    coins = np.arange(300) % 2 == 0
    scores = np.where(np.arange(300) < 100, 5.0 * coins, (np.arange(300) // 2 % 2).astype(float))
    assert from_part(threshold_epsilon, scores, coins, 0.05, 0.0) == 0


def test_who_is_out_may_be_told_where_who_is_in_may_not():
    """Half of the left out score like those in, and nobody who is in scores low."""
    coins = np.arange(600) % 2 == 0
    scores = np.where(coins, 1.0, (np.arange(600) // 2 % 2).astype(float))
    assert from_part(threshold_epsilon, scores, coins, 0.05, 0.0) > 3


@pytest.mark.parametrize(
    ("mechanism", "estimate"),
    [
        (randomised_response(3.0), "threshold, from a part"),
        (randomised_response(1.0), "one run, over the ladder"),
        (laplace(1.0), "one run, over the ladder"),
        (gaussian(0.0), "one run, over the ladder"),
        (gaussian(0.0), "Gaussian one run, over the ladder"),
        (gaussian(1.0), "Gaussian threshold, from a part"),
    ],
)
def test_bounds_are_above_the_truth_at_most_at_their_rate(mechanism, estimate):
    """60 audits at alpha 0.05: nine or more above the truth have probability 0.3 % under a right bound."""
    found = audits(mechanism, estimate, canaries=300, number=60, alpha=0.05, delta=1e-5, seed=0)
    assert found.above.hits <= 8
    assert found.median <= found.truth


CLAIM = ClaimedPrivacy(epsilon=1.0, delta=1e-5, unit="client", releases=1, neighbours="replaced", implied=25.4)


@pytest.mark.parametrize(
    ("most", "control", "expected"),
    [
        (1.1, 5.0, "contradicted"),
        (1.1, 0.5, "contradicted"),
        (1.0, 5.0, "not contradicted"),  # a bound may be the claim itself
        (0.2, 1.0, "untested"),
        (0.2, 0.5, "untested"),
    ],
)
def test_verdicts(most, control, expected):
    assert word(CLAIM, most, control) == expected
    assert word(None, most, control) == "no claim"


def test_the_control_is_the_same_canaries_ten_times_as_far():
    rng = np.random.default_rng(0)
    coins = rng.random(300) < 0.5
    noise = rng.standard_normal(300)
    design = Design(0.95, 1e-5, independent=True, gaussian=True)
    weak, strong = (audit_scores(mu * coins + noise, coins, design) for mu in (0.3, 3.0))
    assert weak.most < 0.6 < weak.control
    assert weak.control == pytest.approx(strong.most, rel=0.35)  # the distance itself is an estimate
    assert strong.control == strong.attainable  # thirty deviations apart
    backwards = audit_scores(noise - coins, coins, design)
    assert backwards.control == backwards.most == 0  # nothing stands out: less noise makes it no clearer
