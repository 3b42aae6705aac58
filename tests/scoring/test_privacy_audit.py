"""Lower bounds on epsilon from canaries: published figures, cases by hand, and how often they are wrong."""

import math

import numpy as np
import pytest
from epsilon_bounds import ESTIMATES, audits, gaussian, laplace, randomised_response
from scipy.special import ndtri
from scipy.stats import binom

from fedpriv.scoring.privacy_audit.bounds import (
    gaussian_threshold_epsilon,
    one_run_epsilon,
    one_run_gaussian_epsilon,
    one_run_gaussian_excess,
    one_run_p_value,
    threshold_epsilon,
)
from fedpriv.scoring.privacy_audit.choice import from_part, over_frontier, over_frontier_growing, over_ladder
from fedpriv.scoring.privacy_audit.counts import Told, beyond, frontier
from fedpriv.scoring.privacy_audit.verdict import (
    Audited,
    Design,
    audit_scores,
    canaries_for,
    epsilon_bounds,
    sentence,
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


@pytest.mark.parametrize(("bound", "shift", "published"), PUBLISHED)
def test_published_bounds(bound, shift, published):
    found = over_frontier_growing(bound, normal(shift, 10_000), normal(0, 10_000), 0.05, 1e-6)
    assert found == pytest.approx(published, abs=1e-5)


def test_corners_of_the_hull_by_hand():
    """In 1.5, 2.5, 0.5, 3.5 and out 0, 3, 2, 1: missed and cleared are (0, 0), (0, 1), (3, 4), (4, 4)."""
    corners, thresholds = frontier(np.array([1.5, 2.5, 0.5, 3.5]), np.array([0.0, 3.0, 2.0, 1.0]))
    assert thresholds == [0, 0.5, 3.5, math.inf]
    assert [(4 - one.hits, 4 - one.false) for one in corners] == [(0, 0), (0, 1), (3, 4), (4, 4)]


def test_equal_scores_are_one_threshold():
    corners, thresholds = frontier(np.zeros(4), np.zeros(4))
    assert thresholds == [0, math.inf]
    assert corners == [Told(4, 4, 4, 4), Told(0, 4, 0, 4)]


@pytest.mark.parametrize(("included", "left_out"), [([], [1.0]), ([1.0], []), ([math.nan], [1.0])])
def test_scores_that_are_none_are_refused(included, left_out):
    with pytest.raises(ValueError, match="expected"):
        frontier(np.array(included), np.array(left_out))


def test_threshold_bound_of_no_errors_by_hand():
    """No error among n: both limits are 1 - (alpha / 2)^(1 / n), by the binomial law itself."""
    limit = 1 - 0.025 ** (1 / 50)
    assert threshold_epsilon(Told(50, 50, 0, 50), 0.05, 0.0) == pytest.approx(math.log((1 - limit) / limit))
    assert threshold_epsilon(Told(50, 50, 0, 50), 0.05, 0.1) == pytest.approx(math.log((0.9 - limit) / limit))
    mu = 2 * ndtri(1 - limit)
    found = gaussian_threshold_epsilon(Told(50, 50, 0, 50), 0.05, 1e-5)
    high, low = (0.5 * math.erfc((found / mu + side * mu / 2) / math.sqrt(2)) for side in (-1, 1))
    assert high - math.exp(found) * low == pytest.approx(1e-5, rel=1e-6)  # the curve of mu at that epsilon


@pytest.mark.parametrize("bound", [threshold_epsilon, gaussian_threshold_epsilon, one_run_epsilon])
def test_nothing_is_shown_by_a_coin_or_by_worse(bound):
    assert bound(Told(25, 50, 25, 50), 0.05, 1e-5) == 0
    assert bound(Told(5, 50, 45, 50), 0.05, 1e-5) == 0


def test_the_rule_turned_round_is_the_other_error():
    told = Told(hits=40, included=50, false=5, left_out=60)
    assert told.reversed == Told(hits=55, included=60, false=10, left_out=50)
    assert told.reversed.reversed == told


@pytest.mark.parametrize("delta", [0.0, 1e-6, 1e-2])
@pytest.mark.parametrize(("hits", "false", "epsilon"), [(1, 0, 0.5), (9, 1, 1.0), (60, 40, 0.0), (0, 3, 1.0)])
def test_p_value_of_one_run_is_the_formula_summed_up(delta, hits, false, epsilon):
    told, guesses = Told(hits, 100, false, 90), hits + false
    share = 1 / (1 + math.exp(-epsilon))
    tail = sum(binom.pmf(w, guesses, share) for w in range(hits, guesses + 1))
    steps = [sum(binom.pmf(w, guesses, share) for w in range(hits - i, hits)) / i for i in range(1, hits + 1)]
    expected = min(1.0, tail + 2 * 190 * delta * max(steps, default=0.0))
    assert one_run_p_value(told, epsilon, delta) == pytest.approx(expected, abs=1e-12)


def test_all_right_in_one_run_by_hand():
    """With delta 0: r right guesses of r have probability (e^epsilon / (1 + e^epsilon))^r."""
    share = 0.05 ** (1 / 20)
    assert one_run_epsilon(Told(20, 20, 0, 20), 0.05, 0.0) == pytest.approx(math.log(share / (1 - share)), abs=1e-6)


def test_gaussian_one_run_of_one_guess_by_hand():
    """c = c' = m = 1: r_1 = alpha, h_0 = Phi(Phi^-1(alpha) - mu), and i = 0 leaves r where it is."""
    alpha, mu = 0.05, 0.7
    excess = alpha + 0.5 * math.erfc(-(ndtri(alpha) - mu) / math.sqrt(2)) - 1
    assert one_run_gaussian_excess(Told(1, 1, 0, 0), mu, alpha) == pytest.approx(excess)


def test_what_is_known_is_kept():
    told = Told(55, 100, 45, 100)
    assert one_run_epsilon(told, 0.05, 1e-6, known=1.5) == 1.5
    assert one_run_gaussian_epsilon(told, 0.05, 1e-6, known=1.5) == 1.5


def test_bounds_depend_on_ranks_alone():
    rng = np.random.default_rng(0)
    coins = rng.random(600) < 0.5
    scores = 2 * coins + rng.standard_normal(600)
    other = np.exp(scores) * 3 + 1
    by_rank = [estimate for name, estimate in ESTIMATES.items() if "from a part" not in name]
    for estimate in by_rank:
        assert estimate(scores, coins, 0.05, 1e-5) == estimate(other, coins, 0.05, 1e-5)


def test_a_threshold_that_a_part_chose_is_tried_on_the_others():
    """The first third is told apart, the others are not: nothing is shown."""
    coins = np.arange(300) % 2 == 0
    scores = np.where(np.arange(300) < 100, 5.0 * coins, (np.arange(300) // 2 % 2).astype(float))
    assert from_part(threshold_epsilon, scores, coins, 0.05, 0.0) == 0
    assert beyond(scores[coins], scores[~coins], 5.0).hits == 50


def test_a_threshold_lies_in_the_middle_of_the_gap():
    """Far apart, of unequal scores: the others are all on their side, as if they had no spread."""
    rng = np.random.default_rng(0)
    coins = rng.random(300) < 0.5
    spread = from_part(threshold_epsilon, 50 * coins + rng.random(300), coins, 0.05, 0.0)
    assert spread == from_part(threshold_epsilon, coins.astype(float), coins, 0.05, 0.0)


def test_who_is_out_may_be_told_where_who_is_in_may_not():
    """Half of the left out score like those in, and nobody who is in scores low."""
    coins = np.arange(600) % 2 == 0
    scores = np.where(coins, 1.0, (np.arange(600) // 2 % 2).astype(float))
    assert from_part(threshold_epsilon, scores, coins, 0.05, 0.0) > 3
    assert over_frontier(threshold_epsilon, scores[coins], scores[~coins], 0.05, 0.0) < 1


def test_equal_scores_show_nothing_in_one_run():
    """Were ties broken by who is in, order alone would tell everybody."""
    coins = np.random.default_rng(1).random(500) < 0.5
    assert over_ladder(one_run_epsilon, np.zeros(500), coins, 0.05, 1e-5) < 0.2


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


def test_a_weaker_mechanism_than_claimed_is_told():
    """Ten times less noise than epsilon 1 claims: its own bound is beyond 1 in every audit."""
    for estimate in ("threshold, from a part", "one run, over the ladder", "Gaussian threshold, from a part"):
        found = audits(gaussian(2.7), estimate, canaries=300, number=20, alpha=0.05, delta=1e-5, seed=1)
        assert found.median > 1


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
    """Three bounds of a Gaussian mechanism at 0.05 / 3 each, one alone at 0.05."""
    rng = np.random.default_rng(0)
    coins = rng.random(400) < 0.5
    scores = 3 * coins + rng.standard_normal(400)
    alone = epsilon_bounds(scores, coins, Design(0.95, 1e-5, independent=False, gaussian=False))
    assert alone == {"one run": over_ladder(one_run_epsilon, scores, coins, 1 - 0.95, 1e-5)}
    three = epsilon_bounds(scores, coins, Design(0.95, 1e-5, independent=True, gaussian=True))
    assert three.keys() == {"one run", "threshold", "Gaussian"}
    assert three["one run"] < alone["one run"]
    assert three["threshold"] == from_part(threshold_epsilon, scores, coins, (1 - 0.95) / 3, 1e-5)


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


def test_enough_canaries_are_enough_and_a_quarter_of_them_is_not():
    design = Design(0.95, 1e-6, independent=True, gaussian=False)
    number = canaries_for(3.0, design)
    for canaries, enough in ((number, True), (number // 4, False)):
        coins = np.arange(canaries) % 2 == 0
        assert (max(epsilon_bounds(coins.astype(float), coins, design).values()) > 3.0) is enough


@pytest.mark.parametrize("independent", [True, False])
def test_enough_canaries_are_enough_however_coins_fall(independent):
    design = Design(0.95, 1e-6, independent=independent, gaussian=False)
    number, rng, short = canaries_for(1.0, design), np.random.default_rng(2), 0
    for _ in range(200):
        coins = rng.random(number) < 0.5
        short += max(epsilon_bounds(coins.astype(float), coins, design).values()) <= 1.0
    assert short <= 20  # of one in twenty
    assert canaries_for(1.0, design, number) == 2 * number  # where so many did not do


def test_sentences_hold_every_figure():
    design = Design(0.95, 1e-5, independent=True, gaussian=True)
    found = Audited({"one run": 2.5, "Gaussian": 26.0}, 30.0, 28.0)
    told = sentence("local-dp", CLAIM, found, "contradicted", 1000, design)
    for figure in ("epsilon 1 ", "delta 1e-05", "imply 25.4", "1,000 canaries", "epsilon 26", "95 %", "one run 2.5"):
        assert figure in told
    assert "more than clip and noise imply" in told
    inside = Audited({"one run": 2.5}, 30.0, 28.0)
    assert "cannot have been hidden" in sentence("local-dp", CLAIM, inside, "contradicted", 1000, design)
    faint = Audited({"one run": 0.0}, 4.0, 0.7)
    assert "take more canaries" in sentence("local-dp", CLAIM, faint, "untested", 1000, design)
    few = Audited({"one run": 0.0}, 0.7, 0.7)
    assert "take 64 at least" in sentence("local-dp", CLAIM, few, "untested", 16, design)
    assert "imply 25.4, so that it does not follow from them" in sentence(
        "local-dp", CLAIM, faint, "untested", 9, design
    )
    kept = CLAIM.model_copy(update={"implied": 1.0})
    assert "imply 1 of" not in sentence("local-dp", kept, faint, "untested", 9, design)
    assert "follow" not in sentence("local-dp", kept, faint, "untested", 9, design)
    assert "claims no epsilon" in sentence("clip", None, inside, "no claim", 1000, design)
