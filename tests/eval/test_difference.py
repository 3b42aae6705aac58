"""Differences between two results: cases computed by hand, and what is told from noise."""

import math
from types import SimpleNamespace

import pytest

from fedpriv.eval.difference import Difference, of_inferences, of_reconstructions, separated


def record(scores, *, floors=None, dataset="digits", comparison=None, sizes=None):
    """What a difference reads of a record: one target a client."""
    floors, sizes = floors or [10.0] * len(scores), sizes or [1] * len(scores)
    targets = [
        SimpleNamespace(client=k, index=0, label=k % 3, n_c=sizes[k], psnr_db=score, floor_psnr_db=floors[k])
        for k, score in enumerate(scores)
    ]
    mean = sum(scores) / len(scores) - sum(floors) / len(floors)
    return SimpleNamespace(
        **{"dataset": dataset, "targets": targets, "groups": {}, "unit_of": lambda client: client},
        comparisons=() if comparison is None else (comparison,),
        advantage_db=SimpleNamespace(mean=mean),
    )


def compared(mean, low, high, degrees):
    return SimpleNamespace(measure="images", stratum="all", mean=mean, ci95=(low, high), degrees=degrees)


def rates(value, low, high):
    return SimpleNamespace(auc=SimpleNamespace(value=value, ci95=None if low is None else (low, high)))


def test_the_same_images_are_compared_one_by_one():
    found = of_reconstructions(record([10, 11, 12, 13]), record([11, 13, 15, 17]))
    assert (found.quantity, found.before, found.after, found.mean) == ("PSNR", 11.5, 14, 2.5)
    half = 3.182446 * math.sqrt(5 / 3) / 2  # Student's t of 3 degrees, differences 1, 2, 3, 4
    assert found.ci95 == pytest.approx((2.5 - half, 2.5 + half), abs=1e-5)
    assert found.p_value == pytest.approx(0.030466, abs=1e-5)


@pytest.mark.parametrize(
    "other",
    [
        record([1, 2, 3, 4], dataset="fashion"),
        record([1, 2, 3, 4], floors=[10, 10, 10, 10.1]),
        record([1, 2, 3, 4], sizes=[1, 1, 1, 2]),
        record([1, 2, 3]),
    ],
    ids=["data set", "floor", "number of images", "targets"],
)
def test_other_images_are_compared_by_what_is_ahead_of_the_guess(other):
    found = of_reconstructions(record([1, 2, 3, 4]), other)
    assert (found.quantity, found.ci95, found.p_value) == ("advantage", None, None)


def test_two_advantages_are_compared_as_welch_does():
    first, second = compared(1.0, 0.0, 2.0, 4.0), compared(3.0, 2.0, 4.0, 4.0)
    found = of_reconstructions(record([1], comparison=first), record([3], floors=[9], comparison=second))
    half = 2.306004 * math.sqrt(2) / 2.776445  # t of 8 degrees; both errors are one over t of 4
    assert found.ci95 == pytest.approx((2 - half, 2 + half), abs=1e-5)
    assert found.p_value == pytest.approx(0.004454, abs=1e-4)


def test_two_areas_have_the_limits_of_both():
    found = of_inferences(rates(0.6, 0.5, 0.7), rates(0.8, 0.75, 0.84))
    assert found.mean == pytest.approx(0.2)
    assert found.ci95 == pytest.approx((0.2 - math.hypot(0.05, 0.1), 0.2 + math.hypot(0.04, 0.1)))
    assert found.p_value == pytest.approx(math.erfc(0.2 / math.hypot(0.05, 0.1) * 1.959964 / math.sqrt(2)))
    assert of_inferences(rates(0.6, 0.5, 0.7), rates(0.6, 0.5, 0.7)).p_value == 1
    assert of_inferences(rates(0.6, None, None), rates(0.8, 0.75, 0.84)).ci95 is None


def test_differences_are_tested_together():
    def difference(p_value):
        return Difference("PSNR", 0.0, 1.0, 1.0, (0.0, 2.0), p_value)

    assert separated([difference(0.01), difference(None), difference(0.04), difference(0.03)]) == [
        *(True, False, False, False)
    ]
    assert separated([difference(0.04)]) == [True]
