"""Recovered vectors by hand: which is nearest to its own, errors beside guesses and the control, and what is left "
"out."""

import dataclasses

import pytest
import torch
from eval_cases import reconstruction, truths

from fedpriv.eval.intervals import Means
from fedpriv.eval.vectors import identify_directions, identify_features, score_vectors

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
    hits, chance = identify_features(TRUE.roll(1, 0), TRUE, [0, 1, 2, 3])
    assert (hits, chance) == ([1, 1, 1, 1], 1)
    hits, chance = identify_features(TRUE[[1, 0, 2, 3]], TRUE, [0, 0, 1, 1])
    assert (hits, chance) == ([0, 0, 1, 1], 0.5)
    hits, chance = identify_features(TRUE, TRUE, [0, 0, 0, 1])
    assert hits == [1] * 4
    assert chance == pytest.approx((1 / 3 + 1 / 3 + 1 / 3 + 1) / 4)
    broken = TRUE.clone()
    broken[2, 0] = torch.nan  # counts as zero, to which the fourth is nearer than the third
    assert identify_features(broken, TRUE, [0, 0, 1, 1])[0] == [1, 1, 0, 1]


def test_the_control_stands_beside_every_measure():
    control = torch.zeros(4, 3)
    control[0] = TRUE[0]
    part = scored(0.5 * TRUE, control)
    error, like = part.metrics["relative_error"], part.metrics["cosine"]
    assert (error.shuffled.mean, error.shuffled.median) == (0.75, 1)
    assert error.shuffled.difference.mean == pytest.approx(0.5 - 0.75)
    assert like.shuffled.mean == pytest.approx(0.25)
    told = part.metrics["feature_identification"]
    rates = identify_features(control, TRUE, [0, 0, 1, 1])[0]
    assert told.shuffled.mean == told.blind["shuffled"] == sum(rates) / 4
    assert told.shuffled.difference.mean == 1 - sum(rates) / 4
    assert (told.chance, told.chance_of) == (sum(rates) / 4, "shuffled")
    assert part.floors["shuffled"].relative_error == pytest.approx(0.75)
    assert {one.against for one in part.comparisons} == {"shuffled"}


def test_nothing_is_scored_where_nothing_was_recovered_or_no_truth_is_known():
    for part in (
        score_vectors(found(None), None, secrets(near=TRUE), MEANS),
        score_vectors(found(TRUE), None, truths([1] * 4), MEANS),
        score_vectors(found(TRUE), None, (*secrets()[:3], truths([1])[0]), MEANS),
    ):
        assert (part.metrics, part.floors, part.comparisons) == ({}, {}, ())


def test_vectors_that_are_not_finite_have_no_mean_error():
    broken = TRUE.clone()
    broken[1, 0] = torch.inf
    part = scored(TRUE, broken, near=broken)
    assert part.floors["near"].relative_error is None
    assert part.metrics["relative_error"].shuffled.mean is None
    assert part.metrics["relative_error"].shuffled.difference is None
    errors = next(one for one in part.comparisons if one.measure == "vectors")
    assert errors.mean == pytest.approx(1 / 4)  # as a zero vector it is off by its whole length


def test_directions_from_the_clients_mean_by_hand():
    # Of clients 0, 0, 1, 1; shrunk to a tenth about the mean and turned over, or not, and all alike.
    mean = torch.stack([TRUE[:2].mean(0), TRUE[2:].mean(0)]).repeat_interleave(2, 0)
    shrunk = mean + 0.1 * (TRUE - mean)
    assert identify_directions(shrunk, TRUE, [0, 0, 1, 1]) == [1] * 4
    assert identify_directions(2 * mean - TRUE, TRUE, [0, 0, 1, 1]) == [0] * 4
    assert identify_directions(mean, TRUE, [0, 0, 1, 1]) == [1, 0, 1, 0]
    # As directions that need no centring: both of client 0 point to its second.
    ways = torch.stack([TRUE[1] - mean[1]] * 2 + [TRUE[2] - mean[2], TRUE[3] - mean[3]])
    assert identify_directions(ways, TRUE, [0, 0, 1, 1], centred=True) == [0, 1, 1, 1]
    broken = shrunk.clone()
    broken[0, 0] = torch.nan  # counts as zero
    assert identify_directions(broken, TRUE, [0, 0, 1, 1])[2:] == [1, 1]
