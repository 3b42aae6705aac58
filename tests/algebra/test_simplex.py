"""Points of the simplex: each the best of all, by the conditions of optimality."""

import pytest
import torch
from compare import expect_close
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.algebra.simplex import least_squares_in_simplex, nearest_distribution


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=8))
def test_the_nearest_distribution_is_one_and_no_other_is_nearer(values):
    wanted = torch.tensor(values, dtype=torch.float64)
    found = nearest_distribution(wanted)
    assert float(found.sum()) == pytest.approx(1)
    assert bool((found >= 0).all())
    for other in torch.eye(len(values), dtype=torch.float64):  # the condition of optimality at every corner
        assert float((wanted - found) @ (other - found)) <= 1e-9


def test_rows_are_projected_each_for_itself():
    rows = torch.tensor([[0.2, 0.2], [3.0, -1.0], [-1.0, -1.0]])
    expect_close(nearest_distribution(rows), torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.5, 0.5]]))


@given(st.integers(0, 999), st.integers(1, 6))
def test_no_corner_is_downhill_from_the_least_squares_in_the_simplex(seed, size):
    rng = torch.Generator().manual_seed(seed)
    root = torch.randn(3, size, size + 2, generator=rng, dtype=torch.float64)
    curvature, slope = root @ root.mT, torch.randn(3, size, generator=rng, dtype=torch.float64)
    found = least_squares_in_simplex(curvature, slope)
    expect_close(found.sum(1), torch.ones(3, dtype=torch.float64), atol=1e-9)
    uphill = torch.einsum("tij,tj->ti", curvature, found) - slope
    for corner in torch.eye(size, dtype=torch.float64):
        assert bool((((corner - found) * uphill).sum(1) >= -1e-3).all())
