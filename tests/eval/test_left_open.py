"""What a result without a leak leaves open: an effect that counts is excluded by an interval, not by the lack of a claim."""

import numpy as np
from eval_cases import attacked
from fedpriv.eval.judgement import judge, left_open
from fedpriv.eval.reasons import JudgedComparison
from looped import each

from fedpriv.eval.intervals import compare


def one(measure="images", mean=0.0, ci95=(-1.0, 1.0), *, least=0.5, adjusted=1.0, stands=False, value=None, **changes):
    known = {"stratum": "all", "against": "mean_image", "n": 20, "n_clients": 10, "p_value": 0.5}
    known |= {"measure": measure, "mean": mean, "ci95": ci95, "least": least}
    return JudgedComparison(**(known | {"adjusted": adjusted, "stands": stands, "value": value} | changes))


def told(*comparisons):
    return [(reason.name, reason.measure, reason.value) for reason in left_open(comparisons)]


@each("ends, name", [((-3.0, 0.5), None), ((-3.0, 0.6), "not_excluded"), ((0.6, 2.0), "not_sure")])
@each("measure", ["images", "vectors", "membership", "property"])
def test_a_mean_is_excluded_by_the_upper_end_of_its_interval(measure, ends, name):
    found = told(one(measure, mean=sum(ends) / 2, ci95=ends))
    expected = [] if name is None else [(name, measure, ends[0] if name == "not_sure" else ends[1])]
    assert found == expected


@each("measure", ["beyond_3db", "identified", "classes", "vectors_identified", "members_found"])
def test_a_rate_is_left_open_where_more_was_seen_than_counts(measure):
    assert told(one(measure, 0.05, (-0.1, 0.3), least=0.05)) == []
    assert told(one(measure, 0.06, (-0.1, 0.3), least=0.05)) == [("not_excluded", measure, 0.3)]


def test_each_question_has_one_reason_and_what_is_claimed_answers_it():
    images, rate = one(), one("identified", 0.2, (-0.1, 0.5), least=0.05)
    vectors = one("vectors", 0.1, (-0.1, 0.3), least=0.02)
    assert told(rate, vectors, images) == [("not_excluded", "images", 1.0), ("not_excluded", "vectors", 0.3)]
    claimed = one("identified", 0.5, (0.3, 0.7), least=0.05, stands=True, adjusted=0.001)
    assert told(images, claimed, vectors) == [("not_excluded", "vectors", 0.3)]


def test_a_stratum_speaks_where_it_lies_beyond_the_guess_by_itself():
    whole, part = one(mean=-1.0, ci95=(-2.0, 0.0)), {"mean": 2.0, "stratum": "1"}
    assert told(whole, one(ci95=(0.4, 3.6), **part)) == []
    (reason,) = left_open([whole, one(ci95=(0.6, 3.4), **part)])
    assert (reason.name, reason.stratum, reason.value, reason.beside) == ("not_sure", "1", 0.6, 0.5)


def test_no_better_than_a_guess_is_wrong_of_an_effect_that_counts_once_in_forty_times():
    # A true gain of 0.51 dB, just more than the least that counts, over ten clients of three targets.
    rng, units, said = np.random.default_rng(5), np.repeat(np.arange(10), 3).tolist(), 0
    for _ in range(2000):
        values = 0.51 + rng.normal(size=10)[units] + rng.normal(size=30)
        found = compare(values, units, measure="images", against="noise", least=0.5)
        said += judge(attacked(found)).kind == "none"
    assert 0 < said / 2000 < 0.025 + 4 * (0.025 * 0.975 / 2000) ** 0.5
