"""Figures that a verdict carries: what attack and guess reach, by the measures that are told."""

import pytest
from eval_cases import asked, attacked, but, compared, summary

from fedpriv.eval.judgement import judge
from fedpriv.eval.records import (
    Advantage,
    ClassAccuracy,
    FeatureIdentification,
    FeatureMeasure,
    FiniteSummary,
    Rate,
)

SURE = 1e-6


def rate(value):
    return Rate(value=value, ci95=None)


@pytest.mark.parametrize(
    ("source", "auc", "clear"),
    [("the upload itself", 1.0, True), ("the upload itself", 0.9, False), ("others", 1.0, False)],
)
def test_a_property_is_in_clear_where_the_upload_says_it_and_every_answer_is_right(source, auc, clear):
    verdict = judge(asked("property", auc, None, learned_from=source, control=0.5, comparisons=(compared("property"),)))
    question = "is it the client's most frequent class"
    assert (verdict.kind, verdict.clear) == (("property", question) if clear else ("none", ""))
    assert verdict.question == question
    other = judge(asked("property", 0.7, control=0.5, question="of their own?"))
    assert other.question == "of their own"


def returned(record, gains):
    return but(record, advantage_db=summary(0.0, kind=Advantage, share_3db=0.0, best_floor="noise", per_target=gains))


def rows(record, *strata):
    return but(record, targets=tuple(but(record.targets[0], stratum=name) for name in strata))


@pytest.mark.parametrize(
    ("measure", "field"),
    [
        ("images", "psnr_db"),
        ("identified", "identification_top1"),
        ("vectors", "relative_error"),
        ("vectors_identified", "feature_identification"),
        ("classes", "class_accuracy"),
    ],
)
def test_every_measure_is_told_by_its_own_values(measure, field):
    record = attacked(compared(measure), compared(measure, stratum="1", n=1), compared(measure, stratum="2-3", n=2))
    kinds = {
        "psnr_db": (FiniteSummary, {}),
        "identification_top1": (type(record.metrics.identification_top1), {"chance": 0.0, "chance_of": "noise"}),
        "relative_error": (FeatureMeasure, {}),
        "feature_identification": (FeatureIdentification, {"chance": 0.0, "chance_of": "vectors"}),
        "class_accuracy": (
            ClassAccuracy,
            {"real": 1.0, "chance": 0.0, "chance_of": "a", "floors": {}, "trained_on": ()},
        ),
    }
    kind, more = kinds[field]
    if field == "identification_top1":
        more |= {"mean_rank": 1.0, "decoys": (20,), "n_left_out": 0}
    own = summary(0.6, kind=kind, per_target=(0.3, 0.75, 0.75), n=3, **more)
    told = judge(rows(but(record, metrics=but(record.metrics, **{field: own})), "1", "2-3", "2-3"))
    assert [one.value for one in told.compared] == [0.6, 0.3, 0.75]
