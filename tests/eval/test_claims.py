"""Verdicts on claims: what holds, what does not, and how often a verdict is wrong."""

import numpy as np
import pytest
from looped import each

from fedpriv.eval.claims import ClaimedOrder, Printed, judge_claim, judge_counts, judge_order, judge_value
from fedpriv.eval.records import Estimate
from fedpriv.study.judging import PerUnit, difference

ACCURACY = Printed(80.0, 2, 2.0, counted=False)


def estimate(low, high):
    return Estimate(mean=(low + high) / 2, ci95=(low, high), n=3)


@each(
    "interval, word",
    [
        ((78.5, 81.5), "holds"),
        ((78.0, 82.0), "holds"),
        ((77.9, 79.0), "not decided"),
        ((70.0, 77.9), "does not hold"),
        ((82.1, 83.0), "does not hold"),
        ((70.0, 90.0), "not decided"),
    ],
)
def test_a_value_holds_where_the_interval_lies_within_its_tolerance(interval, word):
    assert judge_value(ACCURACY, estimate(*interval), same_setting=True)[0] == word
    assert judge_value(ACCURACY, estimate(*interval), same_setting=False)[0] == "not decided"
    assert judge_value(ACCURACY, estimate(*interval), same_setting=True, failed=1)[0] == "not decided"
    assert judge_value(ACCURACY, estimate(*interval), same_setting=True, same_data=False)[0] == "not decided"


@each(
    "value, digits, count, word",
    [(31.23, 2, 31.232, "holds"), (31.23, 2, 31.236, "does not hold"), (1.56, 2, 1.953125, "does not hold")],
)
def test_counts_hold_to_half_of_the_last_digit_at_any_scale(value, digits, count, word):
    found = Estimate(mean=count, ci95=None, n=1)
    assert judge_value(Printed(value, digits, 0.0, counted=True), found, same_setting=False)[0] == word


def test_a_value_below_what_a_guess_reaches_on_the_same_data_says_so():
    psnr, error = Printed(9.66, 2, 0.5, counted=False), Printed(7781.87, 2, 300.0, counted=False)
    found, floor, error_floor = estimate(9.0, 10.0), estimate(11.2, 12.0), estimate(4500.0, 5500.0)
    assert judge_value(psnr, found, same_setting=False, baseline=floor)[0] == "below the baseline"
    assert judge_value(error, found, same_setting=False, baseline=error_floor, error=True)[0] == "below the baseline"
    assert judge_value(psnr, found, same_setting=False, baseline=floor, same_data=False)[0] == "not decided"
    assert judge_value(psnr, found, same_setting=True, baseline=estimate(9.5, 12.0))[0] == "not decided"


def counted(*differences):
    return [
        ClaimedOrder(within="x", better="a", than=str(n), difference=one, ci95=None, n=2, claimed=1.0)
        for n, one in enumerate(differences)
    ]


def test_an_order_of_counts():
    assert judge_counts(counted(1.0, 0.1), 0.0)[0] == "holds"
    assert judge_counts(counted(1.0, 0.0), 0.0) == ("does not hold", "a is not ahead of 1 in x")
    assert judge_counts(counted(1.0, None), 0.0)[0] == "not decided"
    assert judge_counts([], 0.0)[0] == "not decided"


# ---------------------------------------------------------------- orders


def drawn(rng, gain, others, clients=10, seeds=3):
    """Comparisons of one method with others, by whose clients it gains so much over each; its own noise is in all."""
    numbers = np.arange(clients)

    def cell(gain):
        values = gain + rng.normal(0, 1.0, (seeds, clients)) + rng.normal(0, 0.3, (seeds, 1))
        return {seed: PerUnit(one, numbers) for seed, one in enumerate(values)}

    own = cell(gain)
    return [difference(own, cell(0.0), 0.5, below=False) for _ in range(others)]


def order(than, found, over):
    known = {} if found is None else {"difference": found.mean, "ci95": found.ci95, "n": found.n_clients}
    numbers = {"difference": None, "ci95": None, "n": 0, "claimed": 1.0, **known}
    return ClaimedOrder(within="x", better="a", than=than, over=over, **numbers)


def judged(found, least=0.5, over="seeds", *, same_setting=True):
    orders = [order(str(n), one, over) for n, one in enumerate(found)]
    return judge_order(orders, found, least, same_setting=same_setting)[0]


@pytest.mark.parametrize(("others", "seeds", "clients"), [(1, 3, 10), (4, 3, 10), (4, 5, 10), (1, 10, 2)])
def test_sentences_on_orders_are_seldom_wrong(others, seeds, clients):
    """Where nothing is ahead "holds", and where all is ahead by the least effect "does not hold": at most 1 in 20."""
    rng = np.random.default_rng(others + seeds)
    null = [judged(drawn(rng, 0.0, others, seeds=seeds, clients=clients)) for _ in range(300)]
    assert null.count("holds") <= 15
    ahead = [judged(drawn(rng, 0.5, others, seeds=seeds, clients=clients)) for _ in range(300)]
    assert ahead.count("does not hold") <= 15
    assert [judged(drawn(rng, 6.0, others, seeds=seeds, clients=clients)) for _ in range(50)].count("holds") >= 45
    assert [judged(drawn(rng, -6.0, others, seeds=seeds, clients=clients)) for _ in range(50)].count(
        "does not hold"
    ) >= 45


def test_an_order_is_refuted_at_the_paper_s_own_setting_alone():
    rng = np.random.default_rng(3)
    behind, ahead = drawn(rng, -9.0, 2), drawn(rng, 9.0, 2)
    assert judged(behind) == "does not hold"
    assert judged(behind, same_setting=False) == "not decided"
    assert judged(ahead) == judged(ahead, same_setting=False) == "holds"
    assert judged([behind[0], None]) == "does not hold"  # one refuted difference is enough
    assert judged(drawn(rng, 5.0, 1), least=20.0) == "does not hold"  # ahead, but surely by less than that


def test_few_clients_and_missing_comparisons_decide_nothing():
    rng = np.random.default_rng(1)
    assert judged(drawn(rng, 5.0, 1, clients=4, seeds=1), over="clients") == "not decided"
    assert judged(drawn(rng, 5.0, 1, clients=4, seeds=2), over="clients") == "not decided"
    assert judged(drawn(rng, 9.0, 1, clients=5, seeds=1), over="clients") == "holds"
    sure = drawn(rng, 9.0, 2)
    assert judged([sure[0], None]) == "not decided"
    assert judged([None, None]) == "not decided"


@each(
    "values, statements, word",
    [
        (["holds", "does not hold"], ["holds"], "holds"),  # what the paper concludes decides
        (["holds", "does not hold"], [], "does not hold"),
        (["holds"], ["holds", "not decided"], "not decided"),
        (["below the baseline"], ["holds"], "below the baseline"),
        (["holds"], ["does not hold", "below the baseline"], "does not hold"),
        ([], [], "not decided"),
    ],
)
def test_a_claim_is_judged_by_what_it_concludes(values, statements, word):
    assert judge_claim(values, statements) == word
