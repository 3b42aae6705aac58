"""What a page may claim: all its comparisons are tested together, and what was inconclusive is said to be so."""

import numpy as np
import pytest
from eval_cases import asked, attacked, but, compared, summary
from fedpriv.eval.judgement import FALSE_CLAIMS, attainable, holm, judge, judge_page
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.eval.records import FeatureMeasure, Upload

SURE = 1e-6


def kinds(verdicts):
    return {key: verdict.kind for key, verdict in verdicts.items()}


def names(verdict):
    return [reason.name for reason in verdict.reasons]


# ---------------------------------------------------------------- Holm's rule


def test_all_comparisons_of_a_page_are_tested_together():
    alone = judge(attacked(compared(p_value=0.02)))
    assert (alone.kind, alone.n_compared, alone.claims[0].adjusted) == ("leaks", 1, 0.02)
    page = judge_page({"a": attacked(compared(p_value=0.02)), "b": attacked(compared("identified", p_value=0.03))})
    assert kinds(page) == {"a": "leaks", "b": "some"}
    page = judge_page(
        {"a": attacked(compared(p_value=0.03)), "b": asked(comparisons=(compared("membership", 0.1, 0.5),))}
    )
    assert (page["a"].kind, names(page["a"])) == ("untested", ["not_excluded"])
    assert page["a"].compared[0].adjusted == pytest.approx(0.06)
    assert page["a"].n_compared == page["b"].n_compared == 2


def test_comparisons_that_can_reject_nothing_cost_the_others_nothing():
    small = compared("identified", 0.2, 0.4, stratum="1", n=5, n_clients=5, least=0.05)
    assert attainable(small) == pytest.approx(0.525**5)  # right for five of five, the guess for none
    assert attainable(small.model_copy(update={"measure": "images"})) == 0
    assert attainable(small.model_copy(update={"p_value": 1e-6})) == 1e-6
    page = judge(attacked(compared(p_value=0.02), *(small.model_copy(update={"stratum": s}) for s in ("1", "2-3"))))
    assert page.kind == "leaks"  # neither of the small ones could reject at half the level
    assert page.compared[0].adjusted == pytest.approx(0.04)
    assert not any(one.stands for one in page.compared[1:])


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=12), st.sampled_from([0.01, 0.05]))
def test_what_holms_rule_rejects_stays_rejected_where_some_tests_cannot_reject(tests, level):
    p_values, least = [max(pair) for pair in tests], [min(pair) for pair in tests]
    plain, found = holm(p_values), holm(p_values, level, least)
    assert all(one <= level for one, other in zip(found, plain, strict=True) if other <= level)
    assert all(one >= p for one, p in zip(found, p_values, strict=True))
    assert holm(p_values, level, [0.0] * len(tests)) == pytest.approx(plain)


def test_further_seeds_cost_little():
    one = attacked(compared(p_value=0.02))
    page = judge_page({"a": one, "b": one, "other": attacked(compared(p_value=0.9))}, {"ab": ("a", "b")})
    assert page["ab"].compared[0].p_value is not None
    # What is said over seeds, and of attacks with one, has four fifths of the level; each seed by itself the rest.
    assert page["ab"].compared[0].adjusted == pytest.approx(min(1, page["ab"].compared[0].p_value * 2 * 5 / 4))
    assert page["a"].compared[0].adjusted == pytest.approx(0.02 * 2 * 5)
    assert page["other"].compared[0].adjusted == 1
    assert page["a"].n_compared == 4


def test_strata_of_membership_cost_what_is_said_of_all_little():
    members = [compared("membership", 0.1, 0.02), compared("members_found", 0.1, 0.5)]
    strata = [
        compared("membership", 0.1, p, stratum=name) for name, p in (("1", 0.001), ("2-3", 0.5), ("typical", 0.004))
    ]
    alone = judge(asked(comparisons=tuple(members), n_clients=10, control=0.5))
    assert [one.adjusted for one in alone.compared] == pytest.approx([0.04, 0.5])
    verdict = judge(asked(comparisons=(*members, *strata), n_clients=10, control=0.5))
    # All candidates together have four fifths of the level, the three strata the rest.
    assert [one.adjusted for one in verdict.compared] == pytest.approx([0.05, 0.625, 0.015, 1.0, 0.04])
    assert [one.stratum for one in verdict.claims] == ["all", "1", "typical"]
    assert verdict.n_compared == 5


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 8))
def test_a_page_of_attacks_that_know_nothing_seldom_claims(seed, attacks, comparisons):
    rng = np.random.default_rng(seed)
    page = {n: attacked(*[compared() for _ in range(comparisons)]) for n in range(attacks)}
    pages, false = 300, 0
    for _ in range(pages):
        drawn = {
            n: record.model_copy(
                update={
                    "comparisons": tuple(
                        one.model_copy(update={"p_value": float(rng.uniform())}) for one in record.comparisons
                    )
                }
            )
            for n, record in page.items()
        }
        false += any(verdict.claims for verdict in judge_page(drawn).values())
    assert false <= pages * FALSE_CLAIMS + 5 * np.sqrt(pages * FALSE_CLAIMS)  # five standard deviations


# ---------------------------------------------------------------- kinds


@pytest.mark.parametrize(
    ("measure", "kind"),
    [
        ("images", "leaks"),
        ("beyond_3db", "some"),
        ("identified", "some"),
        ("vectors", "vectors"),
        ("vectors_identified", "vectors"),
        ("classes", "classes"),
    ],
)
def test_what_a_claim_makes_of_an_attack(measure, kind):
    assert judge(attacked(compared(measure, p_value=SURE))).kind == kind
    assert judge(attacked(compared(measure, p_value=0.06))).kind == "untested"
    assert judge(attacked(compared(measure, p_value=0.6))).kind == "none"


@pytest.mark.parametrize("kind", ["membership", "property"])
def test_inferences(kind):
    assert judge(asked(kind, control=0.5, comparisons=(compared(kind, 0.2, SURE),))).kind == kind
    assert judge(asked(kind, control=0.5, comparisons=(compared(kind, 0.03, 0.4),))).kind == "untested"
    narrow = compared(kind, 0.03, 0.4, ci95=(-0.01, 0.05), least=0.05)
    assert judge(asked(kind, control=0.5, comparisons=(narrow,))).kind == "none"


def test_vectors_that_an_upload_sends_as_they_are_are_not_recovered():
    sent = attacked(compared(), compared("vectors", p_value=SURE), upload=Upload(separate=True))
    assert (judge(sent).kind, judge(sent).n_compared) == ("none", 1)
    assert judge(but(sent, upload=Upload())).kind == "vectors"


# ---------------------------------------------------------------- what stands beside what


def test_a_claim_carries_what_attack_and_guess_reach_over_its_targets():
    record = attacked(compared("vectors", 0.26, SURE, stratum="2-3", n=1), compared("vectors", 0.1, 0.4))
    errors = summary(0.3, kind=FeatureMeasure, per_target=(0.2, 0.4))
    targets = tuple(but(row, stratum=name) for row, name in zip(record.targets, ("2-3", "4-10"), strict=True))
    verdict = judge(but(record, targets=targets, metrics=but(record.metrics, relative_error=errors)))
    (claim,) = verdict.claims
    assert (claim.value, claim.guess) == pytest.approx((0.2, 0.46))  # of an error less is better
    assert (verdict.overall("vectors").value, verdict.overall("vectors").guess) == pytest.approx((0.3, 0.4))
    images = judge(attacked(compared("images", 3.0))).compared[0]
    assert images.guess == pytest.approx(images.value - 3.0)


# ---------------------------------------------------------------- inconclusive


def test_fewer_than_five_clients_claim_nothing():
    few = judge(
        attacked(compared(p_value=SURE, n_clients=4), compared("beyond_3db", 0.3, SURE, n_clients=4), n_clients=4)
    )
    assert (few.kind, names(few), few.claims, few.n_compared) == ("untested", ["few_clients"], (), 0)
    assert (few.reasons[0].value, few.reasons[0].beside) == (4, 5)
    part = judge(
        attacked(compared(), compared(p_value=SURE, n_clients=4, stratum="1"))
    )  # few clients have such targets
    assert (part.kind, part.n_compared) == ("none", 1)
    assert judge(attacked(compared(p_value=None, n_clients=1, ci95=None), n_clients=1)).kind == "untested"
