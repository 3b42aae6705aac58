"""Rows of comparisons, by hand: what the guess reaches follows from the attack and the difference."""

from eval_cases import ABOUT
from frontier_cases import judged, verdict

from fedpriv.pages.comparison_table import comparison_rows


def row_of(one):
    (row,) = comparison_rows(verdict(ABOUT, (one,)))
    return row


def test_of_images_the_guess_is_the_attack_less_the_difference():
    row = row_of(judged().model_copy(update={"value": 14.0, "mean": 1.25, "ci95": (-0.001, 2.5), "stratum": "2-3"}))
    assert (row.measure, row.images, row.over) == ("PSNR", "2-3", "20 / 10")
    assert (row.attack, row.guess) == ("14.00 dB", "12.75 dB (uniform noise)")
    assert (row.better, row.interval, row.p_value, row.stands) == ("+1.25", "+0.00 to +2.50", "0.5", False)


def test_of_errors_less_is_better():
    row = row_of(judged("vectors", stands=True).model_copy(update={"value": 0.23, "mean": 0.24, "ci95": None}))
    assert row.measure == "relative error of class prototypes"
    assert (row.attack, row.guess, row.better) == ("23 %", "47 % (uniform noise)", "+24")
    assert (row.interval, row.stands) == ("–", True)


def test_of_rates_differences_are_points_and_nothing_is_a_negative_zero():
    row = row_of(judged("identified").model_copy(update={"value": 0.5, "mean": -0.001, "ci95": (-0.2, 0.2)}))
    assert (row.attack, row.guess, row.better, row.interval) == ("50 %", "50 % (uniform noise)", "+0", "-20 to +20")


def test_questions_about_members_have_a_table_of_their_own():
    assert comparison_rows(verdict(ABOUT, (judged("membership"),))) == ()
