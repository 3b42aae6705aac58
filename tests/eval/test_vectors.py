"""Recovered vectors by hand: which is nearest to its own, errors beside guesses and the control, and what is left "
"out."""

import dataclasses

import pytest
import torch
from eval_cases import reconstruction, truths

from fedpriv.eval.intervals import Means
from fedpriv.eval.vectors import identify_features, score_vectors

TRUE = torch.tensor([[1.0, 0, 0], [0, 2.0, 0], [0, 0, 4.0], [1.0, 1.0, 0]])
MEANS = Means((0, 0, 1, 1))


def secrets(*sizes, **vectors):
    made = truths(sizes or [1] * 4)
    return tuple(
        dataclasses.replace(one, feature=feature, vectors={name: own[row] for name, own in vectors.items()})
        for row, (one, feature) in enumerate(zip(made, TRUE, strict=True))
    )


def found(features):
    return reconstruction(torch.zeros(4, 1, 1, 8, 8), features=features)


def scored(features, control=None, sizes=(), **vectors):
    shuffled = None if control is None else found(control)
    return score_vectors(found(features), shuffled, secrets(*sizes, **vectors), MEANS)


def test_a_vector_is_told_apart_from_those_of_its_client_alone():
    assert identify_features(TRUE.roll(1, 0), TRUE, [0, 1, 2, 3]).tolist() == [1, 1, 1, 1]
    assert identify_features(TRUE[[1, 0, 2, 3]], TRUE, [0, 0, 1, 1]).tolist() == [0, 0, 1, 1]
    assert identify_features(TRUE, TRUE, [0, 0, 0, 1]).tolist() == [1] * 4
    broken = TRUE.clone()
    broken[2, 0] = torch.nan  # counts as zero, to which the fourth is nearer than the third
    assert identify_features(broken, TRUE, [0, 0, 1, 1]).tolist() == [1, 1, 0, 1]


def test_the_control_stands_beside_every_measure():
    control = torch.zeros(4, 3)
    control[0] = TRUE[0]
    metrics, comparisons = scored(0.5 * TRUE, control)
    assert metrics["relative_error"].guesses == {"shuffled": 0.75}
    assert metrics["cosine"].guesses == {"shuffled": pytest.approx(0.25)}
    told, rates = metrics["feature_identification"], identify_features(control, TRUE, [0, 0, 1, 1])
    assert told.guesses == {"shuffled": rates.mean()}
    assert (told.chance, told.chance_of) == (rates.mean(), "shuffled")
    assert {one.against for one in comparisons} == {"shuffled"}
    alone = scored(TRUE)[0]["feature_identification"]
    assert (alone.chance, alone.chance_of, alone.guesses) == (0.5, "vectors", {})  # of two vectors a client


def test_nothing_is_scored_where_nothing_was_recovered_or_no_truth_is_known():
    assert score_vectors(found(None), None, secrets(near=TRUE), MEANS) == ({}, ())
    assert score_vectors(found(TRUE), None, truths([1] * 4), MEANS) == ({}, ())
    assert score_vectors(found(TRUE), None, (*secrets()[:3], truths([1])[0]), MEANS) == ({}, ())


def test_vectors_that_are_not_finite_have_no_mean_error():
    broken = TRUE.clone()
    broken[1, 0] = torch.inf
    metrics, comparisons = scored(TRUE, broken, near=broken)
    assert metrics["relative_error"].guesses == {"near": None, "shuffled": None}
    errors = next(one for one in comparisons if one.measure == "vectors")
    assert errors.mean == pytest.approx(1 / 4)  # as a zero vector it is off by its whole length
