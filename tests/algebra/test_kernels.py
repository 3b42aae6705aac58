"""Centred kernel alignment against the formula with the centring matrix, and against the two laws it must obey."""

import pytest
import torch
from compare import expect_close
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.algebra.kernels import alignment, centred, linear_kernel, rbf_kernel


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


def test_linear_alignment_is_a_ratio_of_norms_of_centred_representations():
    a, b = draw(2), draw(3, width=4)
    a, b = a - a.mean(0), b - b.mean(0)
    ratio = (b.T @ a).norm() ** 2 / ((a.T @ a).norm() * (b.T @ b).norm())
    expect_close(alignment(linear_kernel(a + 7), linear_kernel(b - 3)), ratio)


def test_centring_by_hand():
    assert centred(torch.tensor([[4.0, 2.0], [2.0, 0.0]])).tolist() == [[0, 0], [0, 0]]
    assert centred(torch.tensor([[2.0, 0.0], [0.0, 2.0]])).tolist() == [[1, -1], [-1, 1]]


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


def test_constant_representations_have_no_alignment_and_a_finite_gradient():
    for kernel in (linear_kernel, rbf_kernel):
        features = torch.zeros(6, 3, requires_grad=True)
        value = alignment(kernel(features), linear_kernel(torch.randn(6, 3)))
        value.backward()
        assert value.item() == 0
        assert features.grad.isfinite().all()
