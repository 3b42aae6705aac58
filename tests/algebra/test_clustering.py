"""Clustering by first neighbours: a drawn example, and its laws."""

import math

import torch
from compare import expect_same
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.methods.fpl import coarsest_groups, first_neighbour_groups


def at(*degrees):
    """Unit vectors at angles, whose cosine distances grow with the angle between them."""
    return torch.tensor([[math.cos(math.radians(a)), math.sin(math.radians(a))] for a in degrees])


def test_a_drawn_example():
    #  first neighbours: 0 <-> 4, 10 -> 4 | 60 <-> 65 | 150 <-> 158, 170 -> 158 | 260 <-> 262
    points = at(0, 60, 150, 4, 260, 65, 10, 158, 262, 170)
    assert first_neighbour_groups(points).tolist() == [0, 1, 2, 0, 3, 1, 0, 2, 3, 2]
    # Means lie near 5, 62, 159 and 261 degrees: 5 and 62 are nearest to each other (57), so are 159 and 62 (97, 102):
    # 159 -> 62 joins {5, 62}, while 261 -> 159 joins too, so the next level is one group and is dropped.
    assert coarsest_groups(points).tolist() == [0, 1, 2, 0, 3, 1, 0, 2, 3, 2]


def test_one_or_two_points_are_one_group_and_lengths_do_not_matter():
    assert coarsest_groups(at(7)).tolist() == [0]
    assert coarsest_groups(at(7, 190)).tolist() == [0, 0]
    points = at(0, 1, 20, 21, 180, 181, 200, 201)
    expect_same(first_neighbour_groups(points), first_neighbour_groups(points * torch.arange(1.0, 9)[:, None]))


@given(st.integers(2, 30), st.integers(0, 10**6))
def test_every_group_has_at_least_two_members_and_order_does_not_matter(size, seed):
    rng = torch.Generator().manual_seed(seed)
    points = torch.randn(size, 4, generator=rng)
    groups = coarsest_groups(points)
    assert torch.bincount(groups).min() >= 2
    order = torch.randperm(size, generator=rng)
    shuffled = coarsest_groups(points[order])
    together = groups[order][:, None] == groups[order]
    expect_same(together, shuffled[:, None] == shuffled)
