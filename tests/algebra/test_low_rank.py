"""Truncated singular value decompositions by energy (FedKD)."""

import pytest
import torch
from compare import expect_close

from fedpriv.algebra.low_rank import _decompose, compress, factorise, leading, rank_for_energy, recover


def test_the_smallest_count_that_reaches_the_energy_by_hand():
    values = torch.tensor([4.0, 2.0, 2.0, 1.0])  # squares 16, 4, 4, 1 of 25: 64 %, 80 %, 96 %, 100 %
    for energy, rank in ((0.01, 1), (0.63, 1), (0.64, 1), (0.65, 2), (0.80, 2), (0.95, 3), (0.97, 4), (1.0, 4)):
        assert rank_for_energy(values, energy) == rank


def matrix(rows, columns, values):
    rng = torch.Generator().manual_seed(0)
    left = torch.linalg.qr(torch.randn(rows, len(values), generator=rng))[0]
    right = torch.linalg.qr(torch.randn(columns, len(values), generator=rng))[0]
    return left @ torch.diag(torch.tensor(values)) @ right.T


def test_a_matrix_is_cut_to_its_leading_singular_values():
    full = matrix(10, 8, [4.0, 2.0, 2.0, 1.0])
    factors = compress({"w": full}, 0.63)
    assert {name: tuple(value.shape) for name, value in factors.items()} == {"w.u": (10, 1), "w.s": (1,), "w.v": (1, 8)}
    assert float(factors["w.s"]) == pytest.approx(4.0, abs=1e-5)
    # What is missing has the energy of the values left out: 4 + 4 + 1.
    assert float((recover(factors)["w"] - full).square().sum()) == pytest.approx(9.0, abs=1e-4)


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (6, 6), (2, 1), (3, 5)])
def test_factors_agree_with_the_general_decomposition(shape):
    value = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * torch.logspace(0, -2, shape[1])
    left, values, right = _decompose(value)
    oracle = torch.linalg.svd(value, full_matrices=False)
    assert [tuple(factor.shape) for factor in (left, values, right)] == [tuple(factor.shape) for factor in oracle]
    expect_close(values, oracle.S, atol=1e-6)
    kept = rank_for_energy(values, 0.9)
    assert 0 < kept < len(values) or len(values) == 1
    for part, whole in zip(_decompose(value, 0.9), (left[:, :kept], values[:kept], right[:kept]), strict=True):
        expect_close(part, whole, atol=1e-6)
    # Singular vectors are unique up to a common sign.
    signs = (left * oracle.U).sum(0).sign()
    expect_close(left * signs, oracle.U, atol=1e-4)
    expect_close(right * signs[:, None], oracle.Vh, atol=1e-4)


def test_a_convolution_is_decomposed_slice_by_slice():
    outer = torch.einsum("oia,oib->oiab", torch.randn(3, 2, 5), torch.randn(3, 2, 5))  # every slice has rank one
    factors = compress({"conv": outer}, 0.999)
    assert factors["conv.u"].shape == (3, 2, 5, 1)
    assert sum(value.numel() for value in factors.values()) == 3 * 2 * 11
    expect_close(recover(factors)["conv"], outer, atol=1e-5)
    # Three values of five would cost 33 scalars a slice instead of 25.
    assert factorise(torch.randn(3, 2, 5, 5), 0.999) is None


def test_factors_of_a_given_rank_are_those_of_the_largest_values_and_nan_is_none():
    weight = matrix(6, 9, [4.0, 2.0, 1.0])
    left, values, right = leading(weight, 2)
    expect_close(values, torch.tensor([4.0, 2.0]))
    again = recover({"w.u": left, "w.s": values, "w.v": right})
    expect_close(again["w"], (left * values) @ right)
    assert leading(torch.full((3, 4), torch.nan), 2)[1].tolist() == [0, 0]


def test_published_count_of_the_cnn():
    # Table 11 of FedRE, CIFAR-10: ranks (1, 1, 147, 5) for the four-layer CNN's weights make 337,428 scalars.
    shapes = ((32, 3, 5, 5), (64, 32, 5, 5), (512, 1600), (10, 512))
    counted = 32 + 64 + 512 + 10
    for shape, rank in zip(shapes, (1, 1, 147, 5), strict=True):
        rows, columns = shape[-2:]
        slices = shape[0] * shape[1] if len(shape) == 4 else 1
        values = torch.zeros(slices, min(rows, columns))
        values[:, :rank] = 1.0
        kept = rank_for_energy(values, 0.999)
        assert kept == rank
        counted += slices * kept * (rows + 1 + columns)
    assert counted == 337_428
