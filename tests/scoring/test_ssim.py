"""Structural similarity by banded products is torchmetrics', and that of single windows by hand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.functional.image import structural_similarity_index_measure

from fedpriv.scoring.ssim import band, structural_similarity, window


def drawn(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_torchmetrics(images, truth):
    gaussian = min(images.shape[-2:]) >= 11
    border = 5 if gaussian else 3
    _, maps = structural_similarity_index_measure(
        images,
        truth,
        gaussian_kernel=gaussian,
        sigma=1.5,
        kernel_size=7,
        data_range=1.0,
        reduction="none",
        return_full_image=True,
    )
    return maps[..., border:-border, border:-border].mean(dim=(1, 2, 3))


@pytest.mark.parametrize(
    "shape", [(3, 1, 28, 28), (4, 3, 32, 32), (2, 3, 11, 40), (2, 1, 8, 8), (2, 3, 7, 10), (2, 3, 64, 48)]
)
@pytest.mark.parametrize("near", [0.0, 0.1, 1.0])
def test_it_is_that_of_torchmetrics(shape, near):
    truth = drawn(*shape)
    images = (1 - near) * truth + near * drawn(*shape, seed=1)
    torch.testing.assert_close(structural_similarity(images, truth), by_torchmetrics(images, truth), atol=1e-9, rtol=0)


def test_one_window_by_hand():
    left, right = drawn(1, 1, 7, 7), drawn(1, 1, 7, 7, seed=1)
    one, two = left.flatten(), right.flatten()
    covariance = ((one - one.mean()) * (two - two.mean())).mean()
    expected = (2 * one.mean() * two.mean() + 1e-4) / (one.mean() ** 2 + two.mean() ** 2 + 1e-4)
    expected = expected * (2 * covariance + 9e-4) / (one.var(correction=0) + two.var(correction=0) + 9e-4)
    assert structural_similarity(left, right).item() == pytest.approx(expected.item(), abs=1e-12)


def test_a_flat_image_of_another_grey_differs_in_light_alone():
    dark, bright = (
        torch.full((1, 1, 16, 16), 0.25, dtype=torch.float64),
        torch.full((1, 1, 16, 16), 0.75, dtype=torch.float64),
    )
    expected = (2 * 0.25 * 0.75 + 1e-4) / (0.25**2 + 0.75**2 + 1e-4)
    assert structural_similarity(dark, bright).item() == pytest.approx(expected, abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.integers(7, 40), st.integers(7, 40), st.integers(1, 3), st.integers(0, 99))
def test_it_is_symmetric_bounded_and_one_of_equals(height, width, channels, seed):
    one, two = drawn(2, channels, height, width, seed=seed), drawn(2, channels, height, width, seed=seed + 1)
    found = structural_similarity(one, two)
    torch.testing.assert_close(found, structural_similarity(two, one), atol=1e-12, rtol=0)
    assert (found.abs() <= 1 + 1e-12).all()
    torch.testing.assert_close(structural_similarity(one, one), torch.ones(2, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(found[:1], structural_similarity(one[:1], two[:1]), atol=1e-12, rtol=0)


def test_weights_sum_to_one_and_lie_in_every_row_of_the_band():
    for side in (7, 10, 11, 64):
        weights = window(side)
        assert weights.sum().item() == pytest.approx(1)
        torch.testing.assert_close(band(weights, side).sum(1), torch.ones(side - len(weights) + 1, dtype=torch.float64))
