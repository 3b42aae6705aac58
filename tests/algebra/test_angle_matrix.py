"""The diagonal sparsification of FedRAL."""

import pytest
import torch
from compare import expect_same
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.algebra.angle_matrix import dense, diagonal_blocks, published_blocks, support
from fedpriv.util.errors import UserError


def test_two_blocks_of_a_matrix_of_four_by_hand():
    matrix = torch.arange(16.0).reshape(4, 4)
    blocks = diagonal_blocks(matrix, 2)
    assert blocks.tolist() == [[[0, 1], [4, 5]], [[10, 11], [14, 15]]]
    assert dense(blocks).tolist() == [[0, 1, 0, 0], [4, 5, 0, 0], [0, 0, 10, 11], [0, 0, 14, 15]]


def test_one_block_is_everything_and_d_blocks_are_the_diagonal():
    matrix = torch.randn(6, 6)
    expect_same(diagonal_blocks(matrix, 1), matrix[None])
    expect_same(dense(diagonal_blocks(matrix, 1)), matrix)
    expect_same(diagonal_blocks(matrix, 6).flatten(), matrix.diag())
    expect_same(dense(diagonal_blocks(matrix, 6)), matrix.diag().diag())


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 1000))
def test_assembled_blocks_are_the_masked_matrix_and_come_apart_again(n_blocks, side, seed):
    width = n_blocks * side
    matrix = torch.randn(width, width, generator=torch.Generator().manual_seed(seed))
    blocks = diagonal_blocks(matrix, n_blocks)
    assert blocks.shape == (n_blocks, side, side)
    expect_same(dense(blocks), matrix * support(n_blocks, width))
    expect_same(dense(blocks), torch.block_diag(*blocks))
    expect_same(diagonal_blocks(dense(blocks), n_blocks), blocks)
    assert int(support(n_blocks, width).sum()) == width**2 // n_blocks


def test_blocks_are_a_copy():
    matrix = torch.zeros(4, 4)
    diagonal_blocks(matrix, 1).add_(1)
    assert not matrix.any()


@pytest.mark.parametrize(("n_blocks", "nearby"), [(3, "1, 2, 4"), (0, "1, 2, 4"), (501, "125, 250, 500")])
def test_numbers_that_do_not_divide_are_refused_with_some_that_do(n_blocks, nearby):
    with pytest.raises(UserError, match=rf"{n_blocks} diagonal blocks.*width 500.*: {nearby}$"):
        diagonal_blocks(torch.zeros(500, 500), n_blocks)


def test_published_block_counts_give_the_published_numbers_of_scalars():
    # Table 4, KB of float32: 9.77 is 2,500 scalars at d = 500.
    assert 500**2 // published_blocks(500) == 2500
    assert [published_blocks(width) for width in (50, 512, 64, 7)] == [10, 128, 16, 7]
