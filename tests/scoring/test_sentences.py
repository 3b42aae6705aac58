"""Every sentence that a verdict can make, word by word: what is said of whom, by which figure, beside which guess."""

from typing import get_args

import pytest

from fedpriv.scoring.records import JudgedComparison, Kind, Reason, Verdict
from fedpriv.scoring.verdict import BADGES, gain, headline, inferred, percent, strata_words, untested, words


def comparison(measure="images", value=20.0, mean=2.0, stands=True, **changes):
    known = {
        **{"stratum": "all", "against": "mean_image", "n": 8, "n_clients": 6, "least": 0.5, "p_value": 0.001},
        **{"ci95": (mean - 1, mean + 1), "adjusted": 0.002},
    }
    return JudgedComparison(**(known | {"measure": measure, "mean": mean, "value": value, "stands": stands} | changes))


def verdict(kind, *compared, reasons=(), **changes):
    known = {
        **{"attack": "dip", "target": "prototype", "subject": "class prototypes", "question": "", "clear": ""},
        **{"n_targets": 8, "n_clients": 6, "n_seeds": 1, "n_compared": 3, "converged": 1.0},
    }
    return Verdict(**(known | {"kind": kind, "compared": compared, "reasons": reasons} | changes))


def inference(kind, *compared, **changes):
    return verdict(kind, *compared, **({"converged": None, "subject": "vectors"} | changes))


GAIN = "+2.0 dB against the best guess (mean image; 95 % interval +1.0 to +3.0)"


# ---------------------------------------------------------------- images


def test_images_that_leak():
    told = verdict("leaks", comparison())
    assert words(told) == f"Images leak: mean PSNR 20.0 dB, {GAIN}."
    assert headline(told, "dip") == f"Images leak to dip: mean PSNR 20.0 dB, {GAIN}."
    unknown = verdict("leaks", comparison(value=None, ci95=None))
    assert words(unknown) == "Images leak: mean PSNR unknown, +2.0 dB against the best guess (mean image)."


def test_images_of_some_targets_that_leak():
    told = verdict(
        "leaks",
        comparison(stands=False, mean=0.1, ci95=(-0.5, 0.7)),
        comparison(stratum="1", value=25.0, mean=5.0),
        comparison(stratum=">10", value=22.0, mean=3.0),
    )
    assert words(told) == (
        "Images of targets made of 1 image or more than 10 images leak: 1 image: mean PSNR 25.0 dB, +5.0 dB against "
        "the best "
        "guess (mean image; 95 % interval +4.0 to +6.0); more than 10 images: mean PSNR 22.0 dB, +3.0 dB against the "
        "best "
        "guess (mean image; 95 % interval +2.0 to +4.0); over all targets +0.1 dB against the best guess (mean image; "
        "95 % "
        "interval -0.5 to +0.7), not distinguishable from 0 with 6 clients."
    )
    assert headline(told, "dip").startswith(
        "Images of targets made of 1 image or more than 10 images leak to dip: 1 image: "
    )


def test_a_claim_over_all_targets_says_it_for_every_stratum():
    told = verdict("leaks", comparison(stratum="1", mean=9.0), comparison())
    assert words(told) == f"Images leak: mean PSNR 20.0 dB, {GAIN}."


BACK = comparison("beyond_3db", 0.5, 0.4, against="random_image")
APART = comparison("identified", 0.75, 0.5, against="permuted")


def test_some_images_come_back():
    told = verdict("some", BACK, APART, comparison(stands=False))
    assert words(told) == (
        "50 % of the images come back, 3 dB or more beyond the best guess (next best guess, random image of any "
        "class: 10 %). "
        "On average the gain is +2.0 dB against the best guess (mean image; 95 % interval +1.0 to +3.0), not sure "
        "enough among "
        "the 3 comparisons shown here."
    )
    assert headline(told, "dip").startswith("50 % of the images come back to dip, 3 dB or more beyond the best guess (")
    rare = verdict("some", comparison("beyond_3db", 0.5, 0.4, stratum="4-10"), comparison(stands=False))
    assert words(rare).startswith("50 % of the images of targets made of 4-10 images come back, 3 dB or more beyond ")


def test_images_told_from_decoys():
    told = verdict("some", APART, comparison(mean=-1.0, stands=False))
    assert words(told) == (
        "75 % of the images are told from decoys (best guess, permuted uploads: 25 %). On average the gain is -1.0 dB "
        "against "
        "the best guess (mean image; 95 % interval -2.0 to +0.0)."
    )
    assert headline(told, "dip") == (
        "75 % of the images are told from decoys by dip (best guess, permuted uploads: 25 %)."
    )
    rare = verdict("some", comparison("identified", 0.75, 0.5, stratum="2-3"), comparison(stands=False))
    assert words(rare).startswith(
        "75 % of the images of targets made of 2-3 images are told from decoys (best guess, mean "
    )


def test_a_leak_is_followed_by_what_else_stands():
    told = verdict("leaks", comparison(), BACK, APART)
    assert words(told) == (
        f"Images leak: mean PSNR 20.0 dB, {GAIN}. 50 % of the images come back, 3 dB or more beyond the best guess "
        f"(next best "
        "guess, random image of any class: 10 %). 75 % of the images are told from decoys (best guess, permuted "
        "uploads: 25 %)."
    )


# ---------------------------------------------------------------- vectors and classes

ERROR = comparison("vectors", 0.2, 0.3, against="strangers")
OWN = comparison("vectors_identified", 0.9, 0.6, against="head_rows")
NO_IMAGES = (
    "Images are not shown to come back: on average -1.0 dB against the best guess (mean image; 95 % interval -2.0 to "
    "+0.0)."
)
WORSE = comparison(mean=-1.0, stands=False)


def test_recovered_vectors():
    told = verdict("vectors", WORSE, ERROR, OWN)
    first = (
        "Class prototypes are recovered: relative error 20 % (best guess, class mean of strangers through the granted "
        "extractor: 50 %)."
    )
    assert words(told) == f"{first} {NO_IMAGES}"
    assert headline(told, "dip") == first.replace("are recovered", "are recovered by dip")
    other = verdict("vectors", ERROR, subject="representations")
    assert headline(other).startswith("Representations are recovered: relative error 20 % (")


def test_vectors_told_from_the_clients_others():
    told = verdict("vectors", WORSE, OWN)
    first = (
        "Class prototypes are told from the client's others: 90 % are nearest to their own (best guess, row of the "
        "broadcast classifier, scaled: 30 %)."
    )
    assert (words(told), headline(told, "dip")) == (f"{first} {NO_IMAGES}", first.replace("others:", "others by dip:"))


@pytest.mark.parametrize(
    ("subject", "start"),
    [
        (
            "class prototypes",
            "Prototypes of classes with 1 image or 4-10 images are recovered: 1 image: relative error 20 % (",
        ),
        (
            "representations",
            "Representations made of 1 image or 4-10 images are recovered: 1 image: relative error 20 % (",
        ),
    ],
)
def test_vectors_of_some_targets(subject, start):
    parts = [comparison("vectors", share, 0.3, stratum=name) for share, name in ((0.2, "1"), (0.1, "4-10"))]
    text = headline(verdict("vectors", *parts, subject=subject))
    assert text.startswith(start)
    assert text.endswith("50 %); 4-10 images: relative error 10 % (best guess, mean image: 40 %).")


def test_classes_that_show():
    told = verdict("classes", WORSE, comparison("classes", 0.6, 0.4, against="own_prior_guess"))
    first = "The class of 60 % of the images is recognised by an independent classifier (best guess, own prior guess: 20 %)."
    assert words(told) == f"{first} {NO_IMAGES}"
    assert headline(told, "dip") == first.replace("the images", "images that dip makes")


# ---------------------------------------------------------------- nothing found


def test_nothing_beyond_a_guess():
    told = verdict(
        "none",
        WORSE,
        comparison("beyond_3db", 0.1, 0.0, stands=False, ci95=(-0.1, 0.0)),
        comparison("identified", 0.2, 0.1, stands=False, ci95=(0.0, 0.15)),
        comparison("identified", 0.9, 0.1, stands=False, stratum="1"),
        comparison("vectors", 1.1, -0.1, stands=False),
        comparison("vectors_identified", 0.3, 0.1, stands=False),
        comparison("classes", 0.4, 0.1, stands=False, ci95=(0.0, 0.09)),
    )
    rest = (
        ", though tested hard enough: -1.0 dB against the best guess (mean image; 95 % interval -2.0 to +0.0); 10 % "
        "of images lie "
        "3 dB beyond it (next best guess, mean image: 10 %); 20 % are told from decoys (best guess, mean image: 10 "
        "%; by its interval at most 15 points more); 110 % "
        "relative error of class prototypes (best guess, mean image: 100 %); 30 % of class prototypes are nearest to "
        "their own "
        "(best guess, mean image: 20 %; by its interval at most 80 points more); 40 % are of a class that is recognised "
        "(best guess, mean image: 30 %; by its interval at most 9.0 points more)."
    )
    assert words(told) == f"Nothing is found beyond a guess{rest}"
    assert headline(told, "dip") == f"dip finds nothing beyond a guess{rest}"


@pytest.mark.parametrize(
    ("changes", "added"),
    [
        ({"stands": True}, ""),
        ({"ci95": (-3.0, 0.0)}, ""),
        ({"ci95": (-1.0, 0.1)}, ", not distinguishable from 0 with 6 clients"),
        ({"ci95": (0.0, 0.1)}, ", not distinguishable from 0 with 6 clients"),
        ({"ci95": (0.1, 4.0)}, ", not surely above 0.5 dB, the least that counts"),
        ({"ci95": (0.5, 4.0)}, ", not surely above 0.5 dB, the least that counts"),
        ({"ci95": (0.6, 4.0)}, ", not sure enough among the 3 comparisons shown here"),
    ],
)
def test_a_gain_says_whether_it_can_be_told_from_none(changes, added):
    one = comparison(**({"stands": False} | changes))
    low, high = one.ci95
    figures = f"+2.0 dB against the best guess (mean image; 95 % interval {low:+.1f} to {high:+.1f})"
    assert gain(verdict("none", one)) == figures + added


def test_a_gain_without_interval_or_comparison():
    assert gain(verdict("none", comparison(ci95=None, stands=False))) == "+2.0 dB against the best guess (mean image)"
    assert gain(verdict("none")) == "no image was compared with a guess"
    assert gain(verdict("none", comparison(stratum="1"))) == "no image was compared with a guess"
    groups = verdict("none", comparison(ci95=(-1.0, 3.0), stands=False), units="groups", n_clients=7)
    assert gain(groups).endswith(", not distinguishable from 0 with 7 groups")


# ---------------------------------------------------------------- not tested hard enough

FEW = Reason(name="few_clients", value=4, beside=5)


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        (FEW, "4 clients, and 5 are the least"),
        (Reason(name="few_clients", value=1, beside=5), "1 client, and 5 are the least"),
        (Reason(name="no_control"), "the attack was not run on permuted uploads"),
        (Reason(name="not_converged", value=0.25, beside=0.5), "its search converged for 25 % of the targets"),
        (
            Reason(name="not_specific", value=0.25, beside=0.5),
            "its images fit their upload much better than other images do for 25 % of the targets of a single image",
        ),
        (Reason(name="caveat", text="Two losses..."), "Two losses"),
        (Reason(name="budget_rising", value=0.75, beside=0.5), "the last increase of its budget still gained 0.8 dB"),
        (
            Reason(name="at_chance", value=0.12, beside=0.1),
            "the model is right for 12 % of the test images, a constant guess for 10 %",
        ),
        (
            Reason(name="undertrained", value=0.5, beside=0.9),
            "the model reaches 50 % accuracy, its method 90 % elsewhere here",
        ),
        (Reason(name="not_converged", value=0.0, beside=0.5), "its search converged for 0 % of the targets"),
        (
            Reason(name="at_chance", value=0.12, beside=0.0),
            "the model is right for 12 % of the test images, a constant guess for 0 %",
        ),
        (Reason(name="smaller_budget"), "it was run with a larger budget too, which is judged"),
        (Reason(name="no_comparison"), "there is no guess to compare with"),
    ],
)
def test_every_reason_in_words(reason, why):
    told = verdict("untested", WORSE, reasons=(reason,))
    assert words(told) == (
        f"Not tested hard enough to say: {why}. So far -1.0 dB against the best guess (mean image; 95 % interval -2.0 "
        f"to +0.0)."
    )


def test_several_reasons_the_attacker_and_what_was_reached_so_far():
    told = verdict(
        "untested",
        WORSE,
        APART.model_copy(update={"stands": False}),
        reasons=(Reason(name="no_control"), FEW),
        units="groups",
    )
    assert headline(told, "dip") == untested(told, "dip")
    assert untested(told, "dip") == (
        "Not tested hard enough to say of dip: the attack was not run on permuted uploads; 4 groups, and 5 are the "
        "least. So far "
        "-1.0 dB against the best guess (mean image; 95 % interval -2.0 to +0.0); 75 % are told from decoys (best "
        "guess, "
        "permuted uploads: 25 %)."
    )
    alone = verdict("untested", reasons=(Reason(name="few_clients", value=1, beside=5),), units="groups")
    assert "1 group, and 5 are the least" in words(alone)


def test_what_came_back_of_few_clients_is_counted():
    reached = BACK.model_copy(update={"stands": False})
    told = verdict("untested", reached, reasons=(FEW,))
    assert words(told) == (
        "4 of these 8 images came back, 3 dB or more beyond the best guess (next best guess, random image of any "
        "class: 10 %); "
        "nothing is claimed beyond them: 4 clients, and 5 are the least."
    )
    assert untested(told, "dip").startswith("4 of these 8 images came back to dip, 3 dB or more beyond")
    none = verdict("untested", comparison("beyond_3db", 0.0, 0.0, stands=False), reasons=(FEW,))
    assert words(none).startswith("Not tested hard enough to say: 4 clients")
    other = verdict("untested", reached, reasons=(Reason(name="no_control"),))
    assert words(other).startswith("Not tested hard enough to say: the attack was not run")


# ---------------------------------------------------------------- inferences

AREA = comparison("membership", 0.7, 0.2, against="chance", ci95=(0.1, 0.3))
FOUND = comparison("members_found", 0.083, 0.073, against="permuted")
SCORES = "AUC 0.700 (best guess, chance: 0.500; 95 % interval of the difference +0.100 to +0.300)"
MEMBERS = "8.3 % of members found at 1 % false positives (best guess, permuted uploads: 1.0 %)"


def test_membership():
    assert words(inference("membership", AREA, FOUND)) == f"Leaks membership: {SCORES}; {MEMBERS}."
    half = inference("membership", AREA, comparison("members_found", 0.083, 0.073, stands=False))
    assert words(half) == f"Leaks membership: {SCORES}."
    none = inference("none", AREA, FOUND.model_copy(update={"ci95": (0.0, 0.104)}))
    limit = MEMBERS.removesuffix(")") + "; by its interval at most 10 points more)"
    assert words(none) == f"Membership is told no better than by a guess, though tested hard enough: {SCORES}; {limit}."
    seeds = inference("none", AREA.model_copy(update={"least": 0.05}), n_seeds=2)
    assert words(seeds).endswith("+0.300); each of the 2 seeds by itself excludes an effect that counts.")
    why = inference("untested", AREA, reasons=(FEW, Reason(name="no_control")))
    assert words(why) == (
        "Not tested hard enough to say whether membership leaks: 4 clients, and 5 are the least; the attack was not "
        "run on "
        f"permuted uploads. So far {SCORES}."
    )
    assert words(inference("untested", reasons=(FEW,))) == (
        "Not tested hard enough to say whether membership leaks: 4 clients, and 5 are the least."
    )
    bare = inference("membership", comparison("membership", None, 0.2, ci95=None))
    assert words(bare) == "Leaks membership: AUC 0.000 (best guess, mean image: 0.000)."


def test_membership_of_strata():
    alone = comparison("membership", 1.0, 0.5, against="chance", ci95=(0.3, 0.5), stratum="1")
    rare = comparison("membership", 0.8, 0.3, against="chance", ci95=(0.2, 0.4), stratum="unusual")
    first = "AUC 1.000 (best guess, chance: 0.500; 95 % interval of the difference +0.300 to +0.500)"
    other = "AUC 0.800 (best guess, chance: 0.500; 95 % interval of the difference +0.200 to +0.400)"
    parts = f"the client's only image of a class: {first}; images that are unusual of their class: {other}"
    assert words(inference("membership", AREA, alone, rare)) == (
        f"Leaks membership: {SCORES}. Told best of the client's only image of a class: {first}."
    )
    assert words(inference("membership", alone, rare)) == f"Leaks membership of some images: {parts}."
    none = inference("none", AREA, alone.model_copy(update={"stands": False}))
    assert "only image" not in words(none)


def test_classes_named_in_an_upload_stand_beside_membership():
    told = inference("membership", AREA, clear="the classes of 3 of 4 clients exactly")
    assert inferred(told) == f"Leaks membership: {SCORES}. The upload names the classes of 3 of 4 clients exactly."


def test_a_property():
    question = "is it the client's most frequent class"
    about = comparison("property", 0.7, 0.2, against="chance", ci95=(0.1, 0.3))
    assert words(inference("property", about, question=question)) == f"Leaks a property ({question}): {SCORES}."
    assert words(inference("none", about, question=question)) == (
        f"A property ({question}) is told no better than by a guess, though tested hard enough: {SCORES}."
    )
    assert words(inference("untested", about, question=question, reasons=(FEW,))) == (
        f"Not tested hard enough to say whether a property ({question}) leaks: 4 clients, and 5 are the least. So far "
        f"{SCORES}."
    )
    assert words(inference("property", about, question=question, clear=question)) == f"Sent in clear: {question}."


# ---------------------------------------------------------------- parts


@pytest.mark.parametrize(
    ("strata", "text"),
    [
        (["1"], "1 image"),
        (["2-3"], "2-3 images"),
        (["4-10"], "4-10 images"),
        ([">10"], "more than 10 images"),
        (["1", "2-3"], "1-3 images"),
        (["2-3", "4-10"], "2-10 images"),
        (["1", "2-3", "4-10"], "1-10 images"),
        (["2-3", "4-10", ">10"], "2 images or more"),
        (["4-10", ">10"], "4 images or more"),
        (["1", "4-10"], "1 image or 4-10 images"),
        (["1", "4-10", ">10"], "1 image or 4 images or more"),
        ([">10", "1"], "1 image or more than 10 images"),
        (["1", "2-3", "4-10", ">10"], "any number of images"),
    ],
)
def test_numbers_of_images(strata, text):
    assert strata_words(strata) == text


def test_per_cent():
    assert [percent(share) for share in (0.0, 0.004, 0.006, 0.5, 1.0, -0.2, None)] == [
        *("0 %", "0 %", "1 %", "50 %", "100 %", "-20 %", "not finite"),
    ]
    assert (percent(0.12345, 1), percent(0.12345, 2), percent(-0.0001, 1)) == ("12.3 %", "12.35 %", "0.0 %")


def test_badges():
    assert set(BADGES) == set(get_args(Kind))
    assert len(set(BADGES.values())) == len(BADGES)  # no two findings look alike
    assert [kind for kind, badge in BADGES.items() if "leak" in badge] == ["leaks", "membership", "property"]
