"""The partial order of uploads: what is known of one, and which of two leaks less, by hand."""

from looped import each

from fedpriv.reports.frontier import Effect, Objectives, dominates


def effect(value=1.0, *, stands=False, tested=True, unit="prototype"):
    return Effect("dip", value, None, None, stands, tested, unit)


def uploads(costs=None, **effects):
    return Objectives(effects, {"error": 1.0} if costs is None else costs)


LEAK, NONE, UNTESTED = effect(2.0, stands=True), effect(-1.0), effect(tested=False)
OUTRIGHT, OTHER = effect(None, stands=True), effect(2.0, stands=True, unit="entangled")


@each(
    "one, two, better",
    [
        *((NONE, LEAK, True), (LEAK, NONE, False), (LEAK, LEAK, False), (effect(1.0, stands=True), LEAK, True)),
        *((LEAK, OUTRIGHT, True), (OUTRIGHT, OUTRIGHT, False), (NONE, UNTESTED, False), (UNTESTED, NONE, False)),
        *((effect(1.0, stands=True), OTHER, False), (NONE, effect(0.0, unit="entangled"), False), (NONE, OTHER, True)),
    ],
)
def test_which_leaks_less(one, two, better):
    assert dominates(uploads(images=one), uploads(images=two)) is better


@each(
    "one, two, better",
    [
        *(
            (NONE, effect(-1.0, unit="entangled"), True),
            (NONE, UNTESTED, True),
            (NONE, None, True),
            (OUTRIGHT, OUTRIGHT, True),
        ),
        *((LEAK, None, False), (LEAK, UNTESTED, False), (LEAK, OTHER, False), (None, LEAK, False)),
    ],
)
def test_where_nothing_leaks_cost_decides_even_of_other_targets_or_what_was_not_tested(one, two, better):
    cheap, dear = ({} if item is None else {"images": item} for item in (one, two))
    assert dominates(uploads({"error": 0.5}, **cheap), uploads({"error": 1.0}, **dear)) is better


def test_costs_must_be_the_same_ones_and_all_as_low():
    assert dominates(uploads({"a": 1.0, "b": 1.0}), uploads({"a": 1.0, "b": 2.0}))
    assert not dominates(uploads({"a": 1.0, "b": 3.0}), uploads({"a": 2.0, "b": 2.0}))
    assert not dominates(uploads({"a": 1.0}), uploads({"a": 2.0, "b": 2.0}))
    assert not dominates(Objectives({}, {"a": 1.0}, may_dominate=False), uploads({"a": 2.0}))
