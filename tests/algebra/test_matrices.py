"""Diagonal blocks, kernels and their alignment, Procrustes distance, and the simplex, each against its laws."""

import pytest
import torch
from compare import expect_close, expect_same
from hypothesis import given
from hypothesis import strategies as st
from looped import each
from scipy.linalg import orthogonal_procrustes

from fedpriv.algebra.matrices import (
    alignment,
    dense,
    diagonal_blocks,
    linear_kernel,
    nearest_distribution,
    procrustes_distance,
    rbf_kernel,
)
from fedpriv.util.errors import UserError


def test_two_blocks_of_a_matrix_of_four_by_hand():
    matrix = torch.arange(16.0).reshape(4, 4)
    blocks = diagonal_blocks(matrix, 2)
    assert blocks.tolist() == [[[0, 1], [4, 5]], [[10, 11], [14, 15]]]
    assert dense(blocks).tolist() == [[0, 1, 0, 0], [4, 5, 0, 0], [0, 0, 10, 11], [0, 0, 14, 15]]


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 1000))
def test_assembled_blocks_are_the_masked_matrix_and_come_apart_again(n_blocks, side, seed):
    width = n_blocks * side
    matrix = torch.randn(width, width, generator=torch.Generator().manual_seed(seed))
    blocks = diagonal_blocks(matrix, n_blocks)
    assert blocks.shape == (n_blocks, side, side)
    expect_same(dense(blocks), matrix * torch.block_diag(*torch.ones_like(blocks)))
    expect_same(diagonal_blocks(dense(blocks), n_blocks), blocks)


@pytest.mark.parametrize(("n_blocks", "nearby"), [(3, "1, 2, 4"), (0, "1, 2, 4"), (501, "125, 250, 500")])
def test_numbers_that_do_not_divide_are_refused_with_some_that_do(n_blocks, nearby):
    with pytest.raises(UserError, match=rf"{n_blocks} diagonal blocks.*width 500.*: {nearby}$"):
        diagonal_blocks(torch.zeros(500, 500), n_blocks)


def direct_hsic(one, other):
    size = len(one)
    h = torch.eye(size, dtype=one.dtype) - torch.ones(size, size, dtype=one.dtype) / size
    return torch.trace(one @ h @ other @ h) / (size - 1) ** 2


def draw(seed, size=9, width=5):
    return torch.randn(size, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("kernel", [linear_kernel, rbf_kernel], ids=["linear", "rbf"])
def test_alignment_is_the_normalised_trace_with_the_centring_matrix(kernel):
    one, other = kernel(draw(0)), kernel(draw(1, width=3))
    direct = direct_hsic(one, other) / (direct_hsic(one, one) * direct_hsic(other, other)).sqrt()
    expect_close(alignment(one, other), direct)


def test_rbf_by_hand():
    # Distances 3, 4, 5: the median is 4, so s = 2 at scale 1/2.
    points = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
    expected = torch.exp(-torch.tensor([[0.0, 9, 16], [9, 0, 25], [16, 25, 0]]) / 8)
    expect_close(rbf_kernel(points, 0.5), expected, atol=1e-6)


@given(st.integers(0, 10**6), st.floats(0.01, 100))
def test_alignment_ignores_rotation_and_scale_and_is_one_with_itself(seed, scale):
    features = draw(seed)
    rotation = torch.linalg.qr(draw(seed + 1, 5)).Q
    for kernel in (linear_kernel, rbf_kernel):
        one, other = kernel(features), kernel(draw(seed + 2))
        assert alignment(one, one).item() == pytest.approx(1)
        assert 0 <= alignment(one, other).item() <= 1
        turned = kernel(scale * features @ rotation)
        assert alignment(turned, other).item() == pytest.approx(alignment(one, other).item(), abs=1e-9)


@each("size", [9, 4])  # more inputs than the width of five, and fewer
def test_procrustes_distance_is_the_least_squared_distance_over_turns(size):
    made = [matrix - matrix.mean(0) for matrix in (draw(0, size), draw(1, size))]
    one, other = (matrix / sum(float(x) ** 2 for row in matrix for x in row) ** 0.5 for matrix in made)
    turn, _ = orthogonal_procrustes(other, one)
    turned = [[sum(float(row[k]) * turn[k, j] for k in range(5)) for j in range(5)] for row in other]
    least = sum((float(one[i, j]) - turned[i][j]) ** 2 for i in range(size) for j in range(5))
    found = procrustes_distance(draw(0, size).requires_grad_(), 3 * draw(1, size) + 1)
    assert found.item() == pytest.approx(least, abs=1e-6)
    assert procrustes_distance(draw(0, size) @ torch.linalg.qr(draw(2, 5)).Q, draw(0, size)).item() == pytest.approx(0)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=8))
def test_the_nearest_distribution_is_one_and_no_other_is_nearer(values):
    wanted = torch.tensor(values, dtype=torch.float64)
    found = nearest_distribution(wanted)
    assert float(found.sum()) == pytest.approx(1)
    assert bool((found >= 0).all())
    for other in torch.eye(len(values), dtype=torch.float64):  # the condition of optimality at every corner
        assert float((wanted - found) @ (other - found)) <= 1e-9
