"""Convergence: whose fit is specific, and what the objective of a record is."""

import pytest
from eval_cases import attacked, but

from fedpriv.scoring.convergence import Convergence, convergence, is_specific, objective
from fedpriv.scoring.records.reconstruction import Fit


@pytest.mark.parametrize(
    ("fit", "specific"),
    [
        (None, None),
        (Fit(own=None, permuted=1.0, strangers=1.0), False),
        (Fit(own=0.05, permuted=0.1, strangers=1.0), True),
        (Fit(own=0.05, permuted=0.05, strangers=1.0), False),
        (Fit(own=0.1, permuted=0.2, strangers=1.0), False),  # not below a tenth of strangers'
        (Fit(own=0.09, permuted=0.2, strangers=1.0), True),
        (Fit(own=0.15, permuted=0.2, strangers=2.0), True),
        (Fit(own=0.15, permuted=0.2, strangers=0.5), False),
        (Fit(own=0.3, permuted=0.2, strangers=9.0), False),
        (Fit(own=0.05, permuted=None, strangers=1.0), True),
        (Fit(own=0.5, permuted=None, strangers=1.0), False),
        (Fit(own=0.5, permuted=1.0, strangers=None), True),
        (Fit(own=1.5, permuted=1.0, strangers=None), False),
        (Fit(own=0.5, permuted=None, strangers=None), True),
    ],
)
def test_a_fit_is_specific_where_it_is_far_below_that_of_other_images(fit, specific):
    assert is_specific(fit) is specific


def with_rows(*rows):
    record = attacked()
    row = record.targets[0]
    return but(record, targets=tuple(but(row, objective=o, converged=c, specific=s) for o, c, s in rows))


def test_targets_that_converged_to_a_fit_of_their_own():
    rows = [(3.0, True, True), (1.0, True, None), (8.0, True, False), (None, False, True)]
    assert convergence(with_rows(*rows)) == Convergence(share=0.5, objective=3.0)
    assert convergence(with_rows((1.0, True, True))) == Convergence(1.0, 1.0)
    assert convergence(with_rows((1.0, True, False))) == Convergence(0.0, 1.0)
    assert convergence(with_rows((None, True, None))) == Convergence(1.0, None)
    assert convergence(with_rows((1.0, False, None), (2.0, False, None))) == Convergence(0.0, 1.5)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0.0, "0"), (1e-3, "0.001"), (0.00099, "9.9e-04"), (99.0, "99"), (-0.25, "-0.25")),
        *((100.0, "1.0e+02"), (-1234.5, "-1.2e+03"), (None, "–")),
    ],
)
def test_objectives_in_tables(value, text):
    assert objective(value) == text
