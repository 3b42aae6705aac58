"""Sentences of verdicts, one table: who is spoken of, by which figure, beside which guess, and what is not claimed."""

from fedpriv.eval.reasons import JudgedComparison, Reason, Verdict
from fedpriv.eval.verdict import gain, words
from looped import each


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


WORSE = comparison(mean=-1.0, stands=False)
BACK = comparison("beyond_3db", 0.5, 0.4, against="random_image")
APART = comparison("identified", 0.75, 0.5, against="shuffled")
ERROR = comparison("vectors", 0.2, 0.3, against="auxiliary")
OWN = comparison("vectors_identified", 0.9, 0.6, against="head_rows")
CLASSES = comparison("classes", 0.6, 0.4, against="own_prior_guess")
AREA = comparison("membership", 0.7, 0.2, against="chance", ci95=(0.1, 0.3))
FOUND = comparison("members_found", 0.083, 0.073, against="shuffled")
ALONE = comparison("membership", 1.0, 0.5, against="chance", ci95=(0.3, 0.5), stratum="1")
MANY = comparison("membership", 0.8, 0.3, against="chance", ci95=(0.2, 0.4), stratum="2-3")
ASKED = comparison("property", 0.7, 0.2, against="chance", ci95=(0.1, 0.3))
FEW, BARE = Reason(name="few_clients", value=4, beside=5), Reason(name="no_control")
NOT_SHOWN = ("not shown to come back", "-1.0 dB against the baseline", "-2.0 to +0.0")
OPEN = verdict("untested", WORSE, APART.model_copy(update={"stands": False}), reasons=(BARE, FEW), units="groups")
HALF = verdict("untested", BACK.model_copy(update={"stands": False}), reasons=(FEW,))
STRATA = [comparison(stratum="1", value=25.0, mean=5.0), comparison(stratum=">10", value=22.0, mean=3.0)]
TRIED = verdict(
    "none",
    WORSE,
    comparison("beyond_3db", 0.1, 0.0, stands=False, ci95=(-0.1, 0.0)),
    comparison("identified", 0.2, 0.1, stands=False, ci95=(0.0, 0.15)),
    comparison("identified", 0.9, 0.1, stands=False, stratum="1"),
    comparison("vectors", 1.1, -0.1, stands=False),
    comparison("vectors_identified", 0.3, 0.1, stands=False),
    comparison("classes", 0.4, 0.1, stands=False, ci95=(0.0, 0.09)),
)
QUESTION = "is it the client's most frequent class"

FACTS = {
    "images": (verdict("leaks", comparison()), "Images leak", "20.0 dB", "+2.0 dB", "(mean image", "+1.0 to +3.0"),
    "strata": (
        verdict("leaks", comparison(stands=False, mean=0.1, ci95=(-0.5, 0.7)), *STRATA),
        *("of targets made of 1 image or more than 10 images leak", "1 image: mean PSNR 25.0 dB, +5.0 dB"),
        *("more than 10 images: mean PSNR 22.0 dB, +3.0 dB", "over all targets +0.1 dB", "not distinguishable from 0"),
    ),
    "and more": (
        verdict("leaks", comparison(), BACK, APART),
        "20.0 dB",
        "come back",
        "50 %",
        "are re-identified",
        "75 %",
    ),
    "some": (
        verdict("some", BACK, APART, comparison(stands=False)),
        *("Images come back, 3 dB or more", "50 %", "random image of any class: 10 %", "+2.0 dB"),
        "not sure enough among the 3 comparisons",
    ),
    "some of a stratum": (
        verdict("some", comparison("beyond_3db", 0.5, 0.4, stratum="4-10"), comparison(stands=False)),
        "Images of targets made of 4-10 images come back",
        "50 %",
    ),
    "recognised": (
        verdict("some", APART, WORSE),
        "Images are re-identified among decoys: 75 %",
        "shuffled uploads: 25 %",
    ),
    "vectors": (
        verdict("vectors", WORSE, ERROR),
        "prototypes are recovered: relative error 20 %",
        ": 50 %)",
        *NOT_SHOWN,
    ),
    "own vectors": (verdict("vectors", WORSE, OWN), "matched among the client's", "90 %", ": 30 %)", *NOT_SHOWN),
    "vectors of strata": (
        verdict("vectors", *[comparison("vectors", a, 0.3, stratum=name) for a, name in ((0.2, "1"), (0.1, "4-10"))]),
        *("targets made of 1 image or 4-10 images", "relative error 1 image: 20 %", ": 50 %)"),
        *("4-10 images: 10 %", ": 40 %)"),
    ),
    "classes": (
        verdict("classes", WORSE, CLASSES),
        "Classes of images are recognised",
        "60 %",
        "own prior guess: 20 %",
        *NOT_SHOWN,
    ),
    "nothing": (
        TRIED,
        *("No leak detected", "-1.0 dB", "images 3 dB above it 10 %"),
        *("re-identified among decoys 20 %", "at most 15 points more", "prototypes 110 %", "mean image: 100 %"),
        *("nearest to their own 30 %", "at most 80 points more", "recognised 40 %", "at most 9.0 points more"),
    ),
    "open": (OPEN, "Inconclusive", "shuffled uploads", "4 groups, and 5", "So far -1.0 dB", "75 %", ": 25 %"),
    "counted": (HALF, "4 of these 8 images came back", "nothing is claimed beyond them", "4 clients, and 5"),
    "membership": (
        inference("membership", AREA, FOUND),
        *(
            "Leaks membership",
            "AUC 0.700",
            "chance: 0.500",
            "+0.100 to +0.300",
            "TPR 8.3 % at 1 % FPR",
            "uploads: 1.0 %",
        ),
    ),
    "no membership": (
        inference("none", AREA, FOUND.model_copy(update={"ci95": (0.0, 0.104)})),
        *("No leak of membership detected", "AUC 0.700", "at most 10 points more"),
    ),
    "of two seeds": (
        inference("none", AREA.model_copy(update={"least": 0.05}), n_seeds=2),
        "each of the 2 seeds by itself excludes",
    ),
    "open membership": (
        inference("untested", AREA, reasons=(FEW, BARE)),
        "Inconclusive on membership",
        "So far AUC 0.700",
    ),
    "best told": (
        inference("membership", AREA, ALONE, MANY),
        *("AUC 0.700", "1 image of the class: AUC 1.000", "+0.300 to +0.500"),
    ),
    "some members": (
        inference("membership", ALONE, MANY),
        *("membership of some images", "1 image of the class: AUC 1.000", "2-3 images of the class: AUC 0.800"),
    ),
    "property": (inference("property", ASKED, question=QUESTION), f"Leaks a property ({QUESTION})", "AUC 0.700"),
    "open property": (
        inference("untested", ASKED, question=QUESTION, reasons=(FEW,)),
        f"Inconclusive on a property ({QUESTION})",
    ),
    "in clear": (inference("property", ASKED, question=QUESTION, clear=QUESTION), f"Sent in clear: {QUESTION}"),
}
"""A verdict, and what its words hold in this order."""


@each("name", FACTS)
def test_words_hold_these_facts_in_this_order(name):
    told, *facts = FACTS[name]
    text, place = words(told), 0
    for fact in facts:
        place = text.find(fact, place)
        assert place >= 0, (fact, text)


@each(
    "changes, added",
    [
        ({"stands": True}, ""),
        ({"ci95": None}, ""),
        ({"ci95": (-3.0, 0.0)}, ""),
        ({"ci95": (-1.0, 0.1)}, "not distinguishable from 0 with 6 clients"),
        ({"ci95": (0.0, 0.1)}, "not distinguishable from 0 with 6 clients"),
        ({"ci95": (0.1, 4.0)}, "not surely above 0.5 dB, the least that counts"),
        ({"ci95": (0.5, 4.0)}, "not surely above 0.5 dB, the least that counts"),
        ({"ci95": (0.6, 4.0)}, "not sure enough among the 3 comparisons shown here"),
    ],
)
def test_a_gain_says_whether_it_can_be_told_from_none(changes, added):
    one = comparison(**({"stands": False} | changes))
    figures, _, said = gain(verdict("none", one)).partition("), ") if one.ci95 else (gain(verdict("none", one)), "", "")
    assert (figures.startswith("+2.0 dB against the baseline (mean image"), said) == (True, added)
    assert one.ci95 is None or f"{one.ci95[0]:+.1f} to {one.ci95[1]:+.1f}" in figures


@each(
    "reason, why",
    [
        (FEW, "4 clients, and 5 are the least"),
        (Reason(name="few_clients", value=1, beside=5), "1 client, and 5 are the least"),
        (BARE, "not run on shuffled uploads"),
        (Reason(name="not_converged", value=0.25, beside=0.5), "converged for 25 % of the targets"),
        (Reason(name="not_converged", value=0.0, beside=0.5), "converged for 0 % of the targets"),
        (Reason(name="not_specific", value=0.25, beside=0.5), "for 25 % of the targets of a single image"),
        (Reason(name="caveat", text="Two losses..."), "Two losses"),
        (Reason(name="at_chance", value=0.12, beside=0.1), "12 % of the test images, a constant guess for 10 %"),
        (Reason(name="at_chance", value=0.12, beside=0.0), "12 % of the test images, a constant guess for 0 %"),
        (Reason(name="undertrained", value=0.5, beside=0.9), "reaches 50 % accuracy, its method 90 % elsewhere"),
        (Reason(name="no_comparison"), "no baseline to compare with"),
        (
            Reason(name="not_excluded", value=0.5, beside=0.05, measure="identified"),
            "its share of images re-identified among decoys may lie up to 50 points above the baseline's",
        ),
        (Reason(name="not_excluded", value=0.5, beside=0.05, measure="identified"), "5.0 points would count"),
        (
            Reason(name="not_sure", value=0.6, beside=0.5, measure="images", stratum="1"),
            "among targets made of 1 image, its PSNR lies at least 0.6 dB above",
        ),
        (
            Reason(name="not_sure", value=0.1, beside=0.05, measure="membership", stratum="2-3"),
            "made of 2-3 images, its AUC lies at least 0.100 above",
        ),
        (Reason(name="not_sure", value=0.1, beside=0.05, measure="membership"), "not sure among the 3 comparisons"),
    ],
)
def test_every_reason_in_words(reason, why):
    text = words(verdict("untested", WORSE, reasons=(reason,)))
    assert text.startswith("Inconclusive: ")
    assert why in text.partition(". So far -1.0 dB")[0]
