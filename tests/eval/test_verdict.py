"""Words of verdicts: the first sentence alone gives the right idea, and no error or rate stands without its guess."""

from eval_cases import asked, attacked, but, compared, summary
from fedpriv.eval.judgement import judge, judge_page
from fedpriv.eval.verdict import words
from looped import each

from fedpriv.eval.records import FeatureMeasure, Upload

SURE = 1e-6


def told(*comparisons, **changes):
    return words(judge(attacked(*comparisons, **changes)))


def test_a_small_gain_is_called_small():
    assert "not surely above 0.5 dB, the least that counts" in told(compared("images", 0.8, 0.2, ci95=(0.2, 1.4)))
    many = {n: attacked(compared("images", 2.0, 0.02, ci95=(0.6, 3.4))) for n in range(5)}
    assert "not sure enough among the 5 comparisons shown here" in words(judge_page(many)[0])


def test_vectors_are_told_by_stratum_with_errors_called_errors():
    record = attacked(
        compared("images", -3.5, 0.9),
        compared("vectors", 0.26, SURE, stratum="2-3", n=1, against="auxiliary"),
        upload=Upload(vectors="class prototypes"),
    )
    errors = summary(0.3, kind=FeatureMeasure, per_target=(0.2, 0.4))
    rows = tuple(but(row, stratum=name) for row, name in zip(record.targets, ("2-3", "4-10"), strict=True))
    text = words(judge(but(record, targets=rows, metrics=but(record.metrics, relative_error=errors))))
    assert text.startswith(
        "Class prototypes of targets made of 2-3 images are recovered: relative error 2-3 images: 20 % ("
    )
    assert ": 46 %)" in text
    assert "Images are not shown to come back: on average -3.5 dB" in text


def test_an_area_below_the_least_effect_is_no_leak():
    small = {"against": "chance", "least": 0.05, "ci95": (0.014, 0.05)}
    text = words(judge(asked(auc=0.532, control=0.5, comparisons=(compared("membership", 0.032, 0.9, **small),))))
    assert text.startswith("No leak of membership detected: AUC 0.532 (baseline, ")
    leak = words(judge(asked(control=0.5, comparisons=(compared("membership", 0.2, SURE, against="chance"),))))
    assert leak.startswith("Leaks membership: AUC 0.700 (baseline, chance: 0.500")


@each("measure", ["images", "beyond_3db", "identified", "vectors", "vectors_identified", "classes"])
@each("p_value", [SURE, 0.9])
def test_no_sentence_claims_and_takes_back(measure, p_value):
    first = told(compared("images", -1.0, 0.9), compared(measure, 0.4, p_value)).partition(": ")[0]
    said = (
        " leak to",
        "Images leak",
        "come back",
        "are recovered",
        "re-identified",
        "are matched",
        "are recognised",
    )
    claims = any(word in first for word in said)
    denies = any(word in first for word in ("No leak", "not distinguishable", "Inconclusive"))
    assert claims != denies, first
