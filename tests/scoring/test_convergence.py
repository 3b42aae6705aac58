"""Convergence: whose fit is specific, and what the objective of a record is."""

import pytest
from eval_cases import attacked, but

from fedpriv.scoring.convergence import Convergence, convergence, is_specific, objective
from fedpriv.scoring.records.reconstruction import Fit


@pytest.mark.parametrize(
    ("fit", "specific"),
    [
        (None, None),
        (Fit(own=None, shuffled=1.0, auxiliary=1.0), False),
        (Fit(own=0.05, shuffled=0.1, auxiliary=1.0), True),
        (Fit(own=0.05, shuffled=0.05, auxiliary=1.0), False),
        (Fit(own=0.1, shuffled=0.2, auxiliary=1.0), False),  # not below a tenth of auxiliary images'
        (Fit(own=0.09, shuffled=0.2, auxiliary=1.0), True),
        (Fit(own=0.15, shuffled=0.2, auxiliary=2.0), True),
        (Fit(own=0.15, shuffled=0.2, auxiliary=0.5), False),
        (Fit(own=0.3, shuffled=0.2, auxiliary=9.0), False),
        (Fit(own=0.05, shuffled=None, auxiliary=1.0), True),
        (Fit(own=0.5, shuffled=None, auxiliary=1.0), False),
        (Fit(own=0.5, shuffled=1.0, auxiliary=None), True),
        (Fit(own=1.5, shuffled=1.0, auxiliary=None), False),
        (Fit(own=0.5, shuffled=None, auxiliary=None), True),
    ],
)
def test_a_fit_is_specific_where_it_is_far_below_that_of_other_images(fit, specific):
    assert is_specific(fit) is specific


def with_rows(*rows):
    record = attacked()
    row = record.targets[0]
    names = ("objective", "converged", "specific", "n_c")
    return but(record, targets=tuple(but(row, **dict(zip(names, one, strict=True))) for one in rows))


def test_whether_the_search_converged_and_whether_its_fit_is_specific_are_two_readings():
    rows = [(3.0, True, True, 1), (1.0, True, None, 1), (8.0, True, False, 1), (None, False, False, 1)]
    assert convergence(with_rows(*rows)) == Convergence(converged=0.75, specific=1 / 3, objective=3.0)
    for row, expected in (
        ((1.0, True, False, 1), Convergence(1.0, 0.0, 1.0)),
        ((1.0, False, True, 1), Convergence(0.0, 1.0, 1.0)),
        ((None, True, None, 1), Convergence(1.0, None, None)),
        ((1.0, True, False, 2), Convergence(1.0, None, 1.0)),  # a mean does not determine its images
    ):
        assert convergence(with_rows(row)) == expected
    mixed = convergence(with_rows((1.0, True, True, 1), (2.0, True, False, 2), (2.0, True, False, 30)))
    assert mixed == Convergence(1.0, 1.0, 2.0)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0.0, "0"), (1e-3, "0.001"), (0.00099, "9.9e-04"), (99.0, "99"), (-0.25, "-0.25")),
        *((100.0, "1.0e+02"), (-1234.5, "-1.2e+03"), (None, "–")),
    ],
)
def test_objectives_in_tables(value, text):
    assert objective(value) == text
