"""Procrustes distance: a case by hand, its invariances, its least squares, its gradient."""

import math

import pytest
import torch
from compare import expect_close

from fedpriv.algebra.procrustes import prepared, procrustes_distance


def test_a_case_by_hand():
    # Centred, of norm one each; A^T B has one entry 1 / sqrt(2), so the distance is 2 - sqrt(2).
    one = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    other = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    assert float(procrustes_distance(one, other)) == pytest.approx(2 - math.sqrt(2), abs=1e-6)


@pytest.mark.parametrize("shape", [(20, 6), (5, 12)])
def test_turning_shifting_and_scaling_change_nothing(shape):
    rng = torch.Generator().manual_seed(1)
    one, other = torch.randn(2, *shape, generator=rng, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(shape[1], shape[1], generator=rng, dtype=torch.float64)).Q
    assert float(procrustes_distance(one, 3 * one @ turn + 7)) == pytest.approx(0, abs=1e-12)
    expect_close(procrustes_distance(one, other), procrustes_distance(one @ turn - 2, 5 * other), rtol=0, atol=1e-12)
    assert 0 < float(procrustes_distance(one, other)) < 2


def test_it_is_the_least_squared_distance_over_turns():
    rng = torch.Generator().manual_seed(2)
    one, other = torch.randn(2, 9, 4, generator=rng, dtype=torch.float64)
    found = float(procrustes_distance(one, other))
    a, b = prepared(one), prepared(other)
    left, _, right = torch.linalg.svd(b.T @ a)
    assert float((a - b @ left @ right).square().sum()) == pytest.approx(found, abs=1e-12)
    turns = torch.linalg.qr(torch.randn(200, 4, 4, generator=rng, dtype=torch.float64)).Q
    assert float((a - b @ turns).square().sum((1, 2)).min()) >= found


@pytest.mark.parametrize("shape", [(9, 4), (4, 9)])
def test_its_gradient_is_that_of_differences(shape):
    rng = torch.Generator().manual_seed(3)
    one, other = torch.randn(2, *shape, generator=rng, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda moving: procrustes_distance(moving, other), (one.requires_grad_(),))


def test_constant_representations_are_at_distance_two_and_give_no_nan():
    moving = torch.ones(5, 3, requires_grad=True)
    distance = procrustes_distance(moving, torch.randn(5, 3))
    assert float(distance.detach()) == 2
    assert torch.autograd.grad(distance, moving)[0].isfinite().all()
