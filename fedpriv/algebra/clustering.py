"""First-neighbour clustering, without a number of clusters to choose.

Source of the idea: Sarfraz, Sharma, Stiefelhagen: Efficient Parameter-free Clustering Using First Neighbor Relations
(FINCH), CVPR 2019, equation 1. Written from that description.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize


def first_neighbour_groups(points: Tensor) -> Tensor:
    """Return a group number for every point of ``(n, d)``, n >= 1, counted from 0 in the order of first members.

    Points i and j are linked when j is i's nearest other point, i is j's, or both have the same nearest one; groups are
    the connected components. Nearness is cosine similarity, ties go to the earlier point.
    """
    from scipy.sparse import coo_array  # type: ignore[import-untyped]
    from scipy.sparse.csgraph import connected_components  # type: ignore[import-untyped]

    n = len(points)
    if n == 1:
        return torch.zeros(1, dtype=torch.int64)
    directions = normalize(points.double().cpu(), dim=1)
    nearest = (directions @ directions.T).fill_diagonal_(-torch.inf).argmax(1).numpy()
    # Two points with one nearest neighbour are both linked to it, so linking each to its own suffices.
    links = coo_array((np.ones(n), (np.arange(n), nearest)), shape=(n, n))
    _, result = connected_components(links, directed=False)
    _, first, group = np.unique(result, return_index=True, return_inverse=True)
    return torch.from_numpy(first.argsort().argsort()[group])


def coarsest_groups(points: Tensor) -> Tensor:
    """Return groups ``(n,)`` of points ``(n, d)``: the last level that is not a single group, or the first if that is one.

    Every level joins the first neighbours among the means of the groups before; means are of the original points.
    """
    groups = first_neighbour_groups(points)
    while True:
        joined = first_neighbour_groups(group_means(points, groups))[groups]
        if int(joined.max()) in (0, int(groups.max())):
            return groups
        groups = joined


def group_means(points: Tensor, groups: Tensor) -> Tensor:
    """Return the mean ``(g, d)`` of the points ``(n, d)`` of every group ``(n,)``, summed in float64."""
    groups = groups.to(points.device)
    n_groups = int(groups.max()) + 1
    sums = torch.zeros(n_groups, points.shape[1], dtype=torch.float64, device=points.device)
    sums.index_add_(0, groups, points.double())
    return (sums / torch.bincount(groups, minlength=n_groups)[:, None]).to(points.dtype)
