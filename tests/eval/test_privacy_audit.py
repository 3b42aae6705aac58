"""Lower bounds on epsilon from canaries: published figures, cases by hand, and how often they are wrong."""

import math

import numpy as np
import pytest
from epsilon_bounds import audits, gaussian, laplace, randomised_response
from scipy.special import ndtri
from scipy.stats import binom

from fedpriv.dp.bounds import gaussian_bound, one_run_bound, one_run_epsilon, one_run_p_value
from fedpriv.dp.verdict import Audited, Design, epsilon_bounds, sentence, word
from fedpriv.eval.records import ClaimedPrivacy

PUBLISHED = {0: 0.0, 1: 1.13346, 2: 2.311945, 4: 4.395568}
"""Of jax_privacy by shift: 10,000 canaries a side, quantiles of N(shift, 1) and N(0, 1), alpha 0.05, delta 1e-6."""


def corners(shift, number=10_000):
    """Return (in, out) above thresholds at the corners of the ROC curve's upper hull."""
    included, left_out = (ndtri((np.arange(number) + 0.5) / number) + by for by in (shift, 0))
    thresholds = np.append(np.unique(np.concatenate([included, left_out])), np.inf)
    points = zip(
        np.searchsorted(included, thresholds).tolist(), np.searchsorted(left_out, thresholds).tolist(), strict=True
    )
    hull = []
    for x2, y2 in points:
        while len(hull) > 1:
            (x0, y0), (x1, y1) = hull[-2:]
            if (y1 - y0) * (x2 - x1) > (y2 - y1) * (x1 - x0):
                break
            hull.pop()
        hull.append((x2, y2))
    return [(number - missed, number - cleared) for missed, cleared in hull]


def test_published_bounds():
    """The best of all corners of the hull, each at alpha over their number, likely ones first."""
    for shift, published in PUBLISHED.items():
        hull = corners(shift)
        sure = {one: one[0] / (sum(one) + 1) - 2 / math.sqrt(sum(one) + 1) for one in hull}
        found = 0.0
        for hits, false in sorted(hull, key=lambda one: -sure[one]):
            if hits > false:
                found = one_run_epsilon(hits, hits + false, 20_000, 0.05 / len(hull), 1e-6, found)
        assert found == pytest.approx(published, abs=1e-5)


def test_nothing_is_shown_by_a_coin_or_by_worse():
    coins = np.arange(300) % 2 == 0
    for scores in (np.zeros(300), np.where(coins, 0.0, 1.0)):
        assert one_run_bound(scores, coins, 0.05, 1e-5) == gaussian_bound(scores, coins, 0.05, 1e-5) == 0


def test_p_value_of_one_run_is_the_formula_summed_up():
    for delta in (0.0, 1e-6, 1e-2):
        for hits, false, epsilon in ((1, 0, 0.5), (9, 1, 1.0), (60, 40, 0.0), (0, 3, 1.0)):
            guesses, share = hits + false, 1 / (1 + math.exp(-epsilon))
            tail = sum(binom.pmf(w, guesses, share) for w in range(hits, guesses + 1))
            steps = [sum(binom.pmf(w, guesses, share) for w in range(hits - i, hits)) / i for i in range(1, hits + 1)]
            expected = min(1.0, tail + 2 * 190 * delta * max(steps, default=0.0))
            assert one_run_p_value(hits, guesses, 190, epsilon, delta) == pytest.approx(expected, abs=1e-12)


def test_gaussian_bound_of_no_errors_by_hand():
    """No error among n: both limits are 1 - (alpha / 2)^(1 / n); the curve of mu has delta at that epsilon."""
    coins = np.arange(150) % 2 == 0
    mu = -2 * ndtri(1 - 0.025 ** (1 / 50))
    found = gaussian_bound(coins.astype(float), coins, 0.05, 1e-5)
    high, low = (0.5 * math.erfc((found / mu + side * mu / 2) / math.sqrt(2)) for side in (-1, 1))
    assert high - math.exp(found) * low == pytest.approx(1e-5, rel=1e-6)


def test_a_threshold_that_a_part_chose_is_tried_on_the_others():
    """The first third is recognised, the others are not: nothing is shown."""
    coins = np.arange(300) % 2 == 0
    scores = np.where(np.arange(300) < 100, 5.0 * coins, (np.arange(300) // 2 % 2).astype(float))
    assert gaussian_bound(scores, coins, 0.05, 1e-5) == 0


@pytest.mark.parametrize(
    ("mechanism", "estimate"),
    [
        (randomised_response(1.0), "one run"),
        (laplace(1.0), "one run"),
        (gaussian(0.0), "one run"),
        (gaussian(0.0), "Gaussian"),
        (gaussian(1.0), "Gaussian"),
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


def test_bounds_share_what_may_be_wrong():
    """Two bounds of a Gaussian mechanism at 0.05 / 2 each, one alone at 0.05."""
    rng = np.random.default_rng(0)
    coins = rng.random(400) < 0.5
    scores = 3 * coins + rng.standard_normal(400)
    alone = epsilon_bounds(scores, coins, Design(0.95, 1e-5, gaussian=False))
    assert alone == {"one run": one_run_bound(scores, coins, 1 - 0.95, 1e-5)}
    two = epsilon_bounds(scores, coins, Design(0.95, 1e-5, gaussian=True))
    assert two["one run"] < alone["one run"] < two["Gaussian"]
    assert two["Gaussian"] == gaussian_bound(scores, coins, (1 - 0.95) / 2, 1e-5)


def test_sentences_hold_every_figure():
    design = Design(0.95, 1e-5, gaussian=True)
    inside, faint = Audited({"one run": 2.5}, 30.0, 28.0), Audited({"one run": 0.0}, 4.0, 0.7)
    found = Audited({"one run": 2.5, "Gaussian": 26.0}, 30.0, 28.0)
    told = sentence("local-dp", CLAIM, found, "contradicted", 1000, design)
    for figure in ("epsilon 1 ", "delta 1e-05", "imply 25.4", "1,000 canaries", "epsilon 26", "95 %", "one run 2.5"):
        assert figure in told
    assert "more than clip and noise imply" in told
    assert "take more canaries" in sentence("local-dp", CLAIM, faint, "untested", 1000, design)
    assert "does not follow" in sentence("local-dp", CLAIM, faint, "untested", 9, design)
    kept = CLAIM.model_copy(update={"implied": 1.0})
    assert "follow" not in sentence("local-dp", kept, faint, "untested", 9, design)
    assert "claims no epsilon" in sentence("clip", None, inside, "no claim", 1000, design)
