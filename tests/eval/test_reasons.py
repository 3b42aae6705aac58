"""Why the absence of a leak says little: each reason with its figures, at the very bound."""

import pytest
from eval_cases import asked, attacked, but, compared
from fedpriv.eval.reasons import reasons_by_key
from looped import each

from fedpriv.eval.records import Training


def told(record, *beside):
    page = {"own": record} | dict(enumerate(beside))
    return [(one.name, one.value, one.beside, one.text) for one in reasons_by_key(page)["own"]]


def test_what_is_missing():
    assert told(attacked()) == [("no_comparison", None, None, "")]
    bare = attacked(compared())
    assert told(but(bare, control=but(bare.control, shuffled=None))) == [("no_control", None, None, "")]
    assert told(asked()) == [("no_comparison", None, None, ""), ("no_control", None, None, "")]
    assert told(attacked(compared(), caveat="Two losses.")) == [("caveat", None, None, "Two losses.")]


@each("converged, share", [((True, False, False), 1 / 3), ((True, False), 0.5), ((False,), 0.0)])
def test_half_of_the_targets_must_converge(converged, share):
    record = attacked(compared())
    rows = tuple(but(record.targets[0], converged=one) for one in converged)
    expected = [("not_converged", share, 0.5, "")] if share < 0.5 else []
    assert told(but(record, targets=rows)) == expected


def test_a_fit_of_single_images_must_be_specific():
    """A search that converged to a fit as good as that of any image did converge; that is another fact."""
    record = attacked(compared())
    row = but(record.targets[0], converged=True)
    for rows, expected in (
        ([(1, False), (1, True), (1, False)], [("not_specific", 1 / 3, 0.5, "")]),
        ([(1, False), (1, True)], []),
        ([(1, True), (2, False), (30, False)], []),
        ([(2, False), (30, False)], []),
        ([(1, None)], []),
    ):
        targets = tuple(but(row, n_c=number, specific=specific) for number, specific in rows)
        assert told(but(record, targets=targets)) == expected
    failed = but(row, converged=False, specific=False, n_c=1)
    assert [one[0] for one in told(but(record, targets=(failed,)))] == ["not_converged", "not_specific"]


# ---------------------------------------------------------------- training


def trained(accuracy, guess=0.2, **changes):
    return attacked(compared(), training=Training(accuracy=accuracy, guess=guess), **changes)


@each("accuracy, name", [(0.1, "at_chance"), (0.27, "at_chance"), (0.29, None), (0.2 + 0.8 * 0.1, None)])
def test_a_model_at_chance(accuracy, name):
    # Of the 80 % that a constant guess leaves wrong, a tenth is the least: 28 %.
    record = trained(accuracy + 1e-12)
    assert told(record) == ([] if name is None else [(name, pytest.approx(accuracy), 0.2, "")])


def test_a_model_far_from_what_its_method_reaches_elsewhere():
    poor, good = trained(0.5), trained(0.9)  # 3/8 and 7/8 of what is left
    assert told(poor, good) == [("undertrained", 0.5, pytest.approx(0.9), "")]
    other = trained(0.68, guess=0.6)  # a fifth of what is left; elsewhere 7/8 of it would be 95 %
    assert told(other, good) == [("undertrained", 0.68, pytest.approx(0.6 + 0.4 * 7 / 8), "")]
    assert told(good, poor) == []
    assert told(trained(0.56), good) == []  # 9/20 of 80 % is more than half of 7/8
    for elsewhere in (but(good, method="another"), but(good, dataset="another"), attacked(compared())):
        assert told(poor, elsewhere) == []
    assert told(poor, trained(0.6), good, trained(0.55))[0][2] == pytest.approx(0.9)  # the best of them
