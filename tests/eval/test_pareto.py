"""The partial order of uploads: what is known of one, and which of two leaks less, by hand."""

from looped import each

from fedpriv.reports.frontier import Effect, Objectives, dominates

NONE, LEAK, LESS = Effect(0), Effect(1, 2.0, "prototype"), Effect(1, 1.0, "prototype")
OUTRIGHT, OTHER = Effect(2), Effect(1, 2.0, "entangled")


def uploads(costs=None, **effects):
    return Objectives(effects, {"error": 1.0} if costs is None else costs)


@each(
    "one, two, better",
    [
        *((NONE, LEAK, True), (LEAK, NONE, False), (LEAK, LEAK, False), (LESS, LEAK, True), (LEAK, OUTRIGHT, True)),
        *((OUTRIGHT, OUTRIGHT, False), (NONE, None, False), (None, NONE, False), (LESS, OTHER, False)),
    ],
)
def test_which_leaks_less(one, two, better):
    assert dominates(uploads(images=one), uploads(images=two)) is better


@each("one, two, better", [(NONE, NONE, True), (OUTRIGHT, OUTRIGHT, True), (LEAK, None, False), (None, LEAK, False)])
def test_among_equal_leaks_cost_decides(one, two, better):
    assert dominates(uploads({"error": 0.5}, images=one), uploads({"error": 1.0}, images=two)) is better


def test_costs_must_be_the_same_ones_and_all_as_low():
    assert dominates(uploads({"a": 1.0, "b": 1.0}), uploads({"a": 1.0, "b": 2.0}))
    assert not dominates(uploads({"a": 1.0, "b": 3.0}), uploads({"a": 2.0, "b": 2.0}))
    assert not dominates(uploads({"a": 1.0}), uploads({"a": 2.0, "b": 2.0}))
    assert not dominates(Objectives({}, {"a": 1.0}, may_dominate=False), uploads({"a": 2.0}))
