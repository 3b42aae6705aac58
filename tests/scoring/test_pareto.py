"""The partial order of uploads: what is known of one, and which of two leaks less, by hand."""

import pytest

from fedpriv.pages.frontier import Effect, Objectives, dominates, undominated


def effect(value=1.0, low=None, high=None, *, stands=False, tested=True, unit="prototype"):
    return Effect("dip", value, low, high, stands, tested, unit)


def uploads(costs=None, **effects):
    return Objectives(effects, {"error": 1.0} if costs is None else costs)


@pytest.mark.parametrize(
    ("one", "known", "found", "grade"),
    [
        (effect(), True, "none", 0),
        (effect(tested=False), False, "untested", 0),
        (effect(stands=True), True, "leak", 1),
        (effect(stands=True, tested=False), True, "leak", 1),
        (effect(None, stands=True), True, "outright", 2),
        (effect(None), True, "outright", 2),
    ],
)
def test_what_is_known_of_an_upload(one, known, found, grade):
    assert (one.known, one.found, one.grade) == (known, found, grade)


LEAK, NONE = effect(2.0, stands=True), effect(-1.0)


@pytest.mark.parametrize(
    ("one", "two", "better"),
    [
        (NONE, LEAK, True),
        (LEAK, NONE, False),
        (LEAK, LEAK, False),
        (effect(1.0, stands=True), LEAK, True),
        (LEAK, effect(None, stands=True), True),
        (effect(None, stands=True), effect(None, stands=True), False),
        (NONE, effect(tested=False), False),
        (effect(tested=False), NONE, False),
        (effect(1.0, stands=True), effect(2.0, stands=True, unit="entangled"), False),
        (NONE, effect(0.0, unit="entangled"), False),  # no leak of either: neither leaks less
        (NONE, effect(2.0, stands=True, unit="entangled"), True),
    ],
)
def test_which_leaks_less(one, two, better):
    assert dominates(uploads(images=one), uploads(images=two)) is better


def test_where_nothing_leaks_cost_decides_even_of_other_targets_or_what_was_not_tested():
    cheap, dear = {"error": 0.5}, {"error": 1.0}
    assert dominates(uploads(cheap, images=NONE), uploads(dear, images=effect(-1.0, unit="entangled")))
    assert dominates(uploads(cheap, images=NONE), uploads(dear, images=effect(tested=False)))
    assert dominates(uploads(cheap, images=NONE), uploads(dear))
    assert not dominates(uploads(cheap, images=LEAK), uploads(dear))
    assert not dominates(uploads(cheap, images=LEAK), uploads(dear, images=effect(tested=False)))
    assert not dominates(uploads(cheap, images=LEAK), uploads(dear, images=effect(9.0, stands=True, unit="entangled")))
    assert not dominates(uploads(cheap), uploads(dear, images=LEAK))
    assert dominates(uploads(cheap, images=effect(None)), uploads(dear, images=effect(None)))


def test_costs_must_be_the_same_ones_and_all_as_low():
    assert dominates(uploads({"a": 1.0, "b": 1.0}), uploads({"a": 1.0, "b": 2.0}))
    assert not dominates(uploads({"a": 1.0, "b": 3.0}), uploads({"a": 2.0, "b": 2.0}))
    assert not dominates(uploads({"a": 1.0}), uploads({"a": 2.0, "b": 2.0}))
    assert not dominates(uploads({"a": 1.0}), uploads({"a": 1.0}))
    assert not dominates(Objectives({}, {"a": 1.0}, may_dominate=False), uploads({"a": 2.0}))
    assert dominates(uploads({"a": 1.0}), Objectives({}, {"a": 2.0}, may_dominate=False))


def test_what_no_other_betters():
    points = [uploads({"a": cost}, images=one) for cost, one in ((1.0, LEAK), (2.0, NONE), (3.0, NONE), (1.0, LEAK))]
    assert undominated(points) == [True, True, False, True]
    assert undominated([]) == []
