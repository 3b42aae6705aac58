"""Words of verdicts: the first sentence alone gives the right idea, and no error or rate stands without its guess."""

import pytest
from eval_cases import asked, attacked, but, compared, summary

from fedpriv.scoring.judgement import judge, judge_page
from fedpriv.scoring.records.made import Budget, Training, Upload
from fedpriv.scoring.records.reconstruction import Advantage, FeatureMeasure
from fedpriv.scoring.verdict import BADGES, strata_words, words

SURE = 1e-6


def told(*comparisons, **changes):
    return words(judge(attacked(*comparisons, **changes)))


def returning(share):
    """An advantage of which such a share of two targets lies 3 dB or more above the best guess."""
    gains = tuple(float(4 * (place < 2 * share)) for place in range(2))
    return summary(sum(gains) / 2, (-1.3, 8.8), Advantage, share_3db=share, best_floor="noise", per_target=gains, n=2)


def test_some_images_come_back_though_not_on_average():
    text = told(
        compared("images", 3.5, 0.3, ci95=(-1.3, 8.8)),
        compared("beyond_3db", 0.46, SURE),
        advantage_db=returning(0.5),
    )
    assert text == (
        "50 % of the images come back, 3 dB or more beyond the best guess (next best guess, uniform noise: 4 %). On average "
        "the gain is +3.5 dB against the best guess (uniform noise; 95 % interval -1.3 to +8.8), not distinguishable from 0 "
        "with 10 clients."
    )


def test_three_of_these_images_came_back_stays_sayable():
    text = told(
        compared(n_clients=3), compared("beyond_3db", 0.5, SURE, n_clients=3), n_clients=3, advantage_db=returning(0.5)
    )
    assert text.startswith("1 of these 2 images came back, 3 dB or more beyond the best guess (")
    assert text.endswith("nothing is claimed beyond them: 3 clients, and 5 are the least.")


def test_a_small_gain_is_called_small():
    assert "not surely above 0.5 dB, the least that counts" in told(compared("images", 0.8, 0.2, ci95=(0.2, 1.4)))
    many = {n: attacked(compared("images", 2.0, 0.02, ci95=(0.6, 3.4))) for n in range(5)}
    assert "not sure enough among the 5 comparisons shown here" in words(judge_page(many)[0])


def test_vectors_are_told_by_stratum_with_errors_called_errors():
    record = attacked(
        compared("images", -3.5, 0.9),
        compared("vectors", 0.26, SURE, stratum="2-3", n=1, against="strangers"),
        upload=Upload(vectors="class prototypes"),
    )
    errors = summary(0.3, kind=FeatureMeasure, per_target=(0.2, 0.4))
    rows = tuple(but(row, stratum=name) for row, name in zip(record.targets, ("2-3", "4-10"), strict=True))
    text = words(judge(but(record, targets=rows, metrics=but(record.metrics, relative_error=errors))))
    assert text.startswith("Prototypes of classes with 2-3 images are recovered: relative error 20 % (best guess, ")
    assert ": 46 %)" in text
    assert "Images are not shown to come back: on average -3.5 dB" in text


def test_an_area_below_the_least_effect_is_no_leak():
    small = {"against": "chance", "least": 0.05, "ci95": (0.014, 0.05)}
    text = words(judge(asked(auc=0.532, control=0.5, comparisons=(compared("membership", 0.032, 0.9, **small),))))
    assert text.startswith(
        "Membership is told no better than by a guess, though tested hard enough: AUC 0.532 (best guess, "
    )
    leak = words(judge(asked(control=0.5, comparisons=(compared("membership", 0.2, SURE, against="chance"),))))
    assert leak.startswith("Leaks membership: AUC 0.700 (best guess, chance: 0.500")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"caveat": "Two losses moved it."}, "Two losses moved it"),
        (
            {"training": Training(accuracy=0.15, guess=0.12)},
            "right for 15 % of the test images, a constant guess for 12 %",
        ),
        ({"n_clients": 1}, "1 client, and 5 are the least"),
    ],
)
def test_what_was_not_tested_hard_enough_says_why(changes, why):
    text = told(compared("images", -3.0, 0.9), **changes)
    assert text.startswith("Not tested hard enough to say: ")
    assert why in text


def test_a_smaller_budget_points_to_the_larger():
    series = {n: attacked(compared(), budget=Budget(field="iterations", value=n)) for n in (10, 20)}
    assert "it was run with a larger budget too, which is judged" in words(judge_page(series)[10])


@pytest.mark.parametrize("measure", ["images", "beyond_3db", "identified", "vectors", "vectors_identified", "classes"])
@pytest.mark.parametrize("p_value", [SURE, 0.9])
def test_no_sentence_claims_and_takes_back(measure, p_value):
    first = told(compared("images", -1.0, 0.9), compared(measure, 0.4, p_value)).partition(": ")[0]
    claims = any(word in first for word in (" leak", "come back", "are recovered", "are told", "is recognised"))
    denies = any(word in first for word in ("Nothing", "not distinguishable", "Not tested"))
    assert claims != denies, first


def test_strata_in_words():
    assert strata_words(["1", "2-3", "4-10", ">10"]) == "any number of images"
    assert strata_words(["4-10", ">10"]) == "4 images or more"
    assert strata_words(["4-10"]) == "4-10 images"
    assert strata_words([">10"]) == "more than 10 images"


def test_every_kind_has_its_badge():
    assert list(BADGES)[-2:] == ["untested", "none"]
