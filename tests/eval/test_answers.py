"""Answers by hand: Holm over primaries alone, bounds, ability, reasons, estimands, threat models, seeds, advice."""

import dataclasses

import numpy as np
import pytest
from eval_cases import CONTROLLED, FOUND, answers, asked, attacked, but, compared, defended
from looped import each

from fedpriv.attacks.observation import ThreatModel
from fedpriv.eval.answers import LEVEL, clients_needed, holm, upload_key, upper_bounds, upper_end
from fedpriv.eval.intervals import compare
from fedpriv.eval.records import Fit, NamedClasses, Premise
from fedpriv.eval.words import sentence, short_why
from fedpriv.federation.run_directory import RunConfig

SURE = 1e-6
NONE = {"mean": 0.0, "ci95": (-0.1, 0.1), "p_value": 0.9}
"""A comparison that excludes half a decibel, and one that excludes nothing."""
WIDE = {"mean": 0.0, "ci95": (-2.0, 2.0), "p_value": 0.7}
PROTOCOL = ThreatModel(extractor="shadow", attacker_data="same_domain")


def only(*records):
    (answer,) = answers(*records)
    return answer


def members(**comparison):
    return asked(comparisons=(compared("membership", least=0.05, **comparison),), planted=FOUND, control=0.5)


# ---------------------------------------------------------------- which are tested together


def test_exploratory_attacks_never_change_a_primary():
    page = [attacked(compared(**NONE), attack="decoder"), members(mean=0.1, p_value=0.012)]
    page[1] = but(page[1], target="representation", dataset="digits", method="fedallrep", run=None)
    alone = answers(*page)
    assert [one.verdict for one in alone] == ["leak", "no leak detected"]
    useless = [attacked(compared(p_value=0.9), attack=f"a{n}") for n in range(10)]
    useless += [but(page[1], attack=f"a{n}", comparisons=(compared("membership", -0.1, 0.9),)) for n in range(10)]
    assert answers(*useless, *page, *useless) == alone
    tested = [one for one in alone if one.adjusted is not None]
    assert {one.n_tested for one in tested} == {2}
    assert tested[0].adjusted == 0.024


def test_bounds_by_hand_free_their_part_of_the_level():
    # Standard errors of 0.1, nine degrees of freedom: 2.510 at 0.05 / 3, 2.262 at 0.05 / 2, 1.833 at 0.05.
    half = 0.2262157
    three = [compared(mean=mean, ci95=(mean - half, mean + half)) for mean in (-0.3, 0.26, 0.3)]
    assert upper_bounds(three, 0.05) == pytest.approx([-0.049, 0.4862, 0.4833], abs=5e-4)
    # The second stays above one half, so that the third does not gain by it.
    three[1] = compared(mean=0.29, ci95=(0.29 - half, 0.29 + half))
    assert upper_bounds(three, 0.05) == pytest.approx([-0.049, 0.5162, 0.5262], abs=5e-4)
    assert upper_bounds([compared(mean=0.0, ci95=None, degrees=None)], 0.05) == [None]
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


@each("number, alone, of_two", [(4, None, None), (5, 0.0, None), (6, 0.0, 0.0)])
def test_units_without_spread_bound_their_mean_as_a_sign_test_does(number, alone, of_two):
    item = compared(mean=0.0, ci95=(0.0, 0.0), n_clients=number, degrees=number - 1.0)
    assert upper_bounds([item], 0.05) == [alone]  # half to the power of five is below 0.05, of six below 0.025
    assert upper_bounds([item, compared(mean=0.4, ci95=(-1.0, 1.8))], 0.05)[0] == of_two
    assert clients_needed(item, 2) == max(number + 1, 6)


def test_an_upload_is_the_same_whether_a_number_is_written_whole():
    first, second = (attacked(run=None, defenses=(defended(scale=scale),)) for scale in (1, 1.0))
    assert upload_key(first) == upload_key(second) != upload_key(attacked(run=None))


def test_pages_of_attacks_that_know_nothing_seldom_claim():
    rng, false = np.random.default_rng(0), 0
    for _ in range(400):
        page = []
        for place in range(6):
            values = 0.5 + rng.normal(size=(10, 3)) + rng.normal(size=(10, 1))  # the mean is the least effect
            item = compare(
                values.ravel(), np.repeat(np.arange(10), 3).tolist(), measure="images", against="noise", least=0.5
            )
            page.append(attacked(item, method=f"method-{place}"))
        false += any(one.verdict == "leak" for one in answers(*page))
    assert false / 400 <= LEVEL + 3 * (LEVEL * (1 - LEVEL) / 400) ** 0.5


# ---------------------------------------------------------------- verdicts and their reasons


@each(
    "comparison, changes, verdict, why",
    [
        (NONE, {}, "no leak detected", ""),
        (NONE, {"planted": None}, "inconclusive", "control not run"),
        (NONE, {"planted": but(FOUND, ci95=(0.5, 5.0))}, "inconclusive", "under-powered attack"),
        (NONE, {"planted": but(FOUND, ci95=(0.51, 5.0))}, "no leak detected", ""),
        (NONE, {"planted": but(FOUND, ci95=None)}, "inconclusive", "under-powered attack"),
        (WIDE, {}, "inconclusive", "wide interval"),
        (WIDE, {"planted": None}, "inconclusive", "wide interval"),
        (NONE, {"control": but(CONTROLLED, difference_db=None)}, "inconclusive", "no control"),
        (NONE, {"premise": Premise(status="differs")}, "inconclusive", "premise"),
        (NONE, {"premise": Premise(status="not checkable")}, "no leak detected", ""),
        (NONE | {"n_clients": 4}, {}, "inconclusive", "few clients"),
        ({"mean": 9.0, "p_value": SURE, "n_clients": 4}, {}, "inconclusive", "few clients"),
        ({"mean": 9.0, "p_value": None, "ci95": None, "degrees": None}, {}, "inconclusive", "few clients"),
        ({"mean": 9.0, "p_value": SURE}, {"planted": None, "premise": Premise(status="differs")}, "leak", ""),
    ],
)
def test_no_leak_takes_a_bound_and_an_able_attack_and_else_the_reason_is_said(comparison, changes, verdict, why):
    answer = only(attacked(compared(**comparison), **changes))
    assert (answer.verdict, answer.why) == (verdict, why)
    assert (answer.needed is not None) is (why == "wide interval")


def test_too_few_targets_are_not_called_too_few_clients():
    short = {n: only(attacked(compared(**NONE | {"n": n, "n_clients": 2}))) for n in (2, 40)}
    assert {one.why for one in short.values()} == {"few clients"}
    assert {n: short_why(one) for n, one in short.items()} == {2: "fewer than 5 targets", 40: "fewer than 5 clients"}
    assert "(fewer than 5 targets)" in sentence(short[2])
    assert "At least 5 clients are needed, and so many targets (now 2)." in sentence(short[2])


def test_membership_without_held_out_images_claims_nothing_and_costs_nothing():
    others = but(members(mean=0.3, p_value=SURE), nonmembers="others")
    first, second = answers(others, attacked(compared(p_value=0.04)))
    assert (first.verdict, first.why) == ("inconclusive", "no held-out images")
    assert (second.verdict, second.adjusted) == ("leak", 0.04)


@each(
    "attacked_, true, able",
    [
        (0.1, 0.2, True),
        (0.2, 0.2, True),
        (1e-7, -1e-7, True),
        (0.3, 0.2, False),
        (None, 0.2, False),
        (0.3, None, False),
    ],
)
def test_an_able_search_is_no_worse_than_the_truth(attacked_, true, able):
    record = attacked(compared(**NONE), planted=None)
    row = but(record.targets[0], converged=False, fit=Fit(attack=attacked_, truth=true))
    answer = only(but(record, targets=(row,) * 10))
    assert (answer.why, answer.able.passes) == (("", True) if able else ("under-powered attack", False))
    fits = (row,) * 8 + (but(row, fit=Fit(attack=0.3, truth=0.2)),) * 2
    assert only(but(record, targets=fits)).why == "under-powered attack"  # eight of ten are too few


# ---------------------------------------------------------------- estimands, threat models, seeds


def test_means_of_one_image_and_of_several_are_two_answers():
    record = attacked(
        compared(mean=0.5, p_value=0.5),
        compared(stratum="1", mean=2.0, p_value=SURE),
        compared(stratum="several", **NONE),
        target="prototype",
    )
    rows = tuple(but(record.targets[0], n_c=n, psnr_db=value) for n, value in ((1, 20.0), (5, 12.0), (7, 14.0)))
    one, several = answers(but(record, targets=rows))
    assert (one.estimand, one.verdict, one.value, one.baseline) == ("one image", "leak", 20.0, 18.0)
    assert (several.estimand, several.verdict, several.value) == ("several images", "no leak detected", 13.0)
    alike = but(record, targets=rows[1:], comparisons=(compared(**NONE),))
    assert only(alike).estimand == "several images"
    # Another seed without a mean of one image says nothing of these, and its whole is of several.
    one, several = answers(but(record, targets=rows), but(alike, seed=1))
    assert [(each.n_seeds, each.verdict) for each in (one, several)] == [(1, "leak"), (2, "no leak detected")]


def test_both_threat_models_are_answered_side_by_side():
    granted = attacked(compared(mean=2.0, p_value=SURE), attack="decoder")
    alone = attacked(compared(**NONE), attack="decoder", knowledge=PROTOCOL)
    assert [(one.threat, one.verdict) for one in answers(granted, alone)] == [
        ("protocol", "no leak detected"),
        ("white-box", "leak"),
    ]


def test_a_kind_of_a_package_that_is_not_here_is_answered_all_the_same():
    stored = but(members(mean=0.3, p_value=SURE), target="nobodys-kind")
    assert only(stored).threat == "white-box"  # it may have used whatever was granted
    assert only(but(stored, knowledge=PROTOCOL)).threat == "protocol"


def test_seeds_of_one_attack_are_one_answer_and_the_least_able_one_counts():
    seeds = [members(**(NONE | {"mean": mean, "ci95": (mean - 0.01, mean + 0.01)})) for mean in (0.0, 0.01, -0.01)]
    page = [but(one, seed=seed, run=dataclasses.replace(RunConfig(), seed=seed)) for seed, one in enumerate(seeds)]
    answer = only(*page)
    assert (answer.n_seeds, answer.advantage, answer.verdict) == (3, pytest.approx(0), "no leak detected")
    assert answer.ci95[1] > 0.01  # what the seeds differ by comes on top
    assert answer.nonmembers == 30
    page[2] = but(page[2], planted=but(FOUND, ci95=(-1.0, 1.0)))
    assert only(*page).why == "under-powered attack"
    page[1] = but(page[1], planted=None)  # what was not measured of one seed excuses no other
    assert only(*page).why == "under-powered attack"


def test_classes_said_in_clear_leak_without_a_test():
    said = NamedClasses(clients=10, exact=10, counts_exact=0, alike=2)
    page = answers(but(members(**WIDE), classes=said))
    labels = [one for one in page if one.endpoint == "label disclosure"]
    assert [(one.verdict, one.threat, one.named.exact) for one in labels] == [
        ("leak", "protocol", 10),
        ("leak", "white-box", 10),
    ]
    assert {one.n_tested for one in page} == {0, 1}
    # Where all clients hold the same classes, to name them tells nobody anything; counts do.
    assert not [one for one in answers(but(members(**WIDE), classes=but(said, alike=10))) if one.named]
    counted = but(said, alike=10, counts_exact=10)
    assert [one for one in answers(but(members(**WIDE), classes=counted)) if one.named]


# ---------------------------------------------------------------- advice


@each("mean", [0.0, 1.0])
def test_with_the_advised_number_of_clients_four_in_five_decide(mean):
    draws = np.random.default_rng(1).normal(size=20)
    values = mean + 1.5 * (draws - draws.mean()) / draws.std(ddof=1)
    known = {"measure": "images", "against": "noise", "least": 0.5}
    item, tested = compare(values, range(20), **known), 4
    number = clients_needed(item, tested)
    # By hand: t(0.0125) = 2.2820, t(0.8) = 0.8459 at 84.5 degrees of freedom, (3.126 * 1.5 / 0.5)^2 = 88.0.
    assert number == 89
    rng, decided = np.random.default_rng(2), 0
    for _ in range(1000):
        drawn = compare(mean + 1.5 * rng.normal(size=number), range(number), **known)
        decided += upper_end(drawn, LEVEL / tested) < 0.5 if mean == 0 else drawn.p_value <= LEVEL / tested
    assert 0.75 < decided / 1000 < 0.85


def test_at_the_least_effect_more_clients_settle_nothing():
    item = compared(mean=0.5, ci95=(-0.5, 1.5))
    assert clients_needed(item, 1) is None
    assert only(attacked(item)).needed is None
    assert clients_needed(compared(mean=0.49, ci95=(-0.5, 1.5)), 1) is None  # more than anybody has
    assert clients_needed(compared(mean=-5.0, ci95=(-5.1, -4.9)), 1) == 11


@each("attack", ["membership", "property"])
def test_no_figure_of_a_record_without_clients_is_made_up(attack):
    record = asked(attack, comparisons=())
    assert [(one.verdict, one.why, one.advantage) for one in answers(record)] == [("inconclusive", "few clients", None)]
