"""Columns of single images in a gradient's span, found as the masked slopes of their labels.

Behind a fully connected layer with a ReLU stands one more such layer, the head W. An image of label y puts into the gradient
of the first layer's bias the column m * (W^T (p - e_y)), m being 1 where its output was positive and 0 elsewhere. Where the
predictions p of all images are much alike, as they are early in training, W^T (p - e_y) is known by label. So the column of
every image lies in two sets: the span of the gradient, and the slopes of its label under any mask. Points of both are searched
for by Douglas and Rachford's averaged reflections from random masks. A point that comes near enough is certain to be an
image's: a span of r dimensions has no right to meet a mask over hundreds of outputs by chance, and a mixture of two images of
one label leaves it wherever just one of them is active.

The two sets are derived here, and take batches several times as large as zeros alone do (Dimitrov et al., "SPEAR", NeurIPS
2024). Reflections: Elser, "Phase retrieval by iterated projections" (Journal of the Optical Society of America A 20, 40-55,
2003), for sets that are not convex.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

_STARTS, _MOST_STARTS = 16, 512
"""Random masks that are started from, for each image of a label, and at most."""

_STEPS, _EVERY = 400, 10
"""Reflections at most, and how many between two looks."""

_MET = 0.999
"""Cosine of a column and its label's masked slopes from which on it is an image's. Mixtures stay below 0.98."""

_SAME = 0.99
"""Cosine of two columns from which on they are one."""


@dataclass(frozen=True)
class LabelSlopes:
    """The derivatives at a layer's outputs by label, where all outputs are positive.

    Attributes:
        slopes: ``(K, m)`` W^T (p - e_y), float64, up to one common factor.
        counts: ``(K,)`` int64, images of each label in the batch.
    """

    slopes: Tensor
    counts: Tensor

    def at(self, outputs: Tensor) -> LabelSlopes:
        """Return those at some outputs ``(u,)``."""
        return LabelSlopes(self.slopes[:, outputs], self.counts)


def masked_columns(columns: Tensor, known: LabelSlopes, generator: torch.Generator) -> Tensor:
    """Return unit directions ``(s, r)`` whose columns are the masked slopes of some label, each once.

    Args:
        columns: ``(u, r)`` L; a direction q stands for the column L q.
        known: of the same u outputs.
        generator: draws the masks; on the CPU.
    """
    basis, onto = torch.linalg.qr(columns)
    found = [
        _of_label(basis, known.slopes[label], count, generator)
        for label, count in enumerate(known.counts.tolist())
        if count
    ]
    points = torch.cat(found) if found else basis.new_zeros(0, basis.shape[1])
    return functional.normalize(torch.linalg.solve_triangular(onto, points.T, upper=True).T)


def _of_label(basis: Tensor, slopes: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return up to ``count`` points ``(s, r)`` of the span's orthonormal basis ``(u, r)`` at masked slopes ``(u,)``."""
    half, signs = 0.5 * slopes.abs(), slopes.sign()

    def masked(points: Tensor) -> Tensor:
        return torch.where(points * signs > half, slopes, 0.0)

    starts = min(_STARTS * count, _MOST_STARTS)
    points = torch.rand(starts, len(basis), generator=generator, dtype=basis.dtype).round_() * slopes
    found = basis.new_zeros(0, basis.shape[1])
    for step in range(_STEPS):
        here = masked(points)
        there = (2 * here - points) @ basis
        points += there @ basis.T - here
        if step % _EVERY == _EVERY - 1:
            inside = here @ basis
            # The part of a vector inside the span is as long as the cosine of both says.
            met = inside.norm(dim=1) > _MET * here.norm(dim=1)
            found = _distinct(torch.cat([found, inside[met & here.any(1)]]), count)
            if len(found) == count:
                break
    return found


def _distinct(points: Tensor, most: int) -> Tensor:
    """Return the first of points ``(s, r)`` that are none twice, at most so many."""
    chosen: list[int] = []
    alike = functional.normalize(points)
    alike = alike @ alike.T > _SAME
    for place in range(len(points)):
        if len(chosen) < most and not bool(alike[place, chosen].any()):
            chosen.append(place)
    return points[chosen]
