"""Columns of single images in a gradient's span, found as the masked slopes of their labels.

Behind a fully connected layer with a ReLU stands one more such layer, the head W. An image of label y puts into the gradient
of the first layer's bias the column m * (W^T (p - e_y)), p being the head's predictions for it and m 1 where its output was
positive, 0 elsewhere. So the column of every image lies in two sets: the span of the gradient, and the slopes of its label
under any mask. Points of both are searched for by Douglas and Rachford's averaged reflections from random masks. Early in
training the predictions of all images are much alike, so that the slopes are known; later each point has predictions of its
own, drawn at first and then fitted to it. A point that comes near enough is all but certain to be an image's: a span of r
dimensions does not meet a mask over hundreds of outputs by chance, and a mixture of two images of one label leaves it
wherever just one of them is active.

The two sets are derived here, and take batches several times as large as zeros alone do (Dimitrov et al., "SPEAR", NeurIPS
2024). Reflections: Elser, "Phase retrieval by iterated projections" (Journal of the Optical Society of America A 20, 40-55,
2003), for sets that are not convex.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

_EVERY = 10
"""Reflections between two looks."""

_MOST_CLASSES = 32
"""Classes up to which points have predictions of their own, which takes a system of equations of this size for each."""

_TURNS = 4
"""Searches with predictions of its own for each point, as long as images of a label are missing."""

_MET, _OWN_MET = 0.999, 0.99999
"""Cosine of a column and masked slopes from which on it is an image's, where mixtures stay below 0.98; and the same where
the slopes were fitted to it."""

_SAME = 0.99
"""Cosine of two columns from which on they are one."""

_RIDGE, _LEAST_RIDGE = 0.1, 1e-6
"""Weights of first predictions in fitting own ones, in shares of a class's mean square: on the way, and before a look."""

_FITS = 3
"""Fits of predictions and masks in turn before a look."""


@dataclass(frozen=True)
class _Search:
    """Starts for each image of a label and at most, reflections at most, and how widely first predictions are drawn."""

    starts: int
    most: int
    steps: int
    spread: float = 0.0


_ALIKE, _OWN = _Search(16, 512, 400), _Search(64, 1024, 150, spread=2.0)
"""Where predictions are taken for alike, and for those that are left."""


@dataclass(frozen=True)
class LabelSlopes:
    """A head behind a layer with a ReLU, and what is known of the batch.

    Attributes:
        head: ``(C, m)`` W, float64.
        chances: ``(C,)`` the mean prediction.
        counts: ``(C,)`` int64, images of each label.
    """

    head: Tensor
    chances: Tensor
    counts: Tensor

    def at(self, outputs: Tensor) -> LabelSlopes:
        """Return the same at some outputs ``(u,)`` alone."""
        return replace(self, head=self.head[:, outputs].contiguous())

    @cached_property
    def products(self) -> Tensor:
        """Return the products of each two classes' weights ``(m, C C)``."""
        return (self.head.T.unsqueeze(2) * self.head.T.unsqueeze(1)).flatten(1)


def masked_columns(columns: Tensor, known: LabelSlopes, generator: torch.Generator) -> Tensor:
    """Return unit directions ``(s, r)`` whose columns are the masked slopes of some label, each once.

    Args:
        columns: ``(u, r)`` L; a direction q stands for the column L q.
        known: of the same u outputs.
        generator: draws masks and predictions; on the CPU.
    """
    basis, onto = torch.linalg.qr(columns)
    found = []
    for label, count in enumerate(known.counts.tolist()):
        own = basis.new_zeros(0, basis.shape[1])
        if count:
            own = _searched(basis, _Alike(known, label, _ALIKE, count, generator), own, count)
        for _ in range(_TURNS if len(known.counts) <= _MOST_CLASSES else 0):
            if len(own) < count:
                own = _searched(basis, _Own(known, label, _OWN, count, generator), own, count)
        found.append(own)
    return functional.normalize(torch.linalg.solve_triangular(onto, torch.cat(found).T, upper=True).T)


class _Alike:
    """The masked slopes of a label, by the mean prediction.

    Attributes:
        begin: ``(s, u)`` slopes under random masks.
        steps: reflections at most.
    """

    met = _MET

    def __init__(self, known: LabelSlopes, label: int, search: _Search, count: int, generator: torch.Generator) -> None:
        self.known, self.steps = known, search.steps
        number = min(search.starts * count, search.most)
        chances = known.chances
        if search.spread:
            draws = torch.randn(number, len(chances), generator=generator, dtype=chances.dtype)
            chances = (chances.clamp(min=1e-6).log() + search.spread * draws).softmax(1)
        self.first = chances.expand(number, -1).clone()
        self.first[:, label] -= 1
        self.slopes = self.first[: number if search.spread else 1] @ known.head
        masks = torch.rand(number, known.head.shape[1], generator=generator, dtype=chances.dtype).round_()
        self.begin = masks * self.slopes

    def nearest(self, points: Tensor) -> Tensor:
        """Return the masked slopes nearest to points ``(s, u)``."""
        return torch.where(points * self.slopes.sign() > 0.5 * self.slopes.abs(), self.slopes, 0.0)

    def polished(self, points: Tensor, basis: Tensor) -> Tensor:
        """Return masked slopes ``(s, u)`` that were on the way, as they are to be judged."""
        return points


class _Own(_Alike):
    """The masked slopes of a label, by each point's own predictions."""

    met = _OWN_MET

    def nearest(self, points: Tensor) -> Tensor:
        """Return masked slopes near to points ``(s, u)``: their masks by the predictions so far, which are fitted then."""
        return self._fitted(super().nearest(points) != 0, points, _RIDGE)

    def polished(self, points: Tensor, basis: Tensor) -> Tensor:
        """Return masked slopes ``(s, u)`` near points of the span, fitted without regard to the first predictions."""
        kept, inside = self.slopes, points
        for _ in range(_FITS):
            points = self._fitted(super().nearest(inside) != 0, inside, _LEAST_RIDGE)
            inside = (points @ basis) @ basis.T
        self.slopes = kept
        return points

    def _fitted(self, masks: Tensor, points: Tensor, ridge: float) -> Tensor:
        head, number = self.known.head, len(self.known.chances)
        weights = masks.to(points)
        sums = (weights @ self.known.products).view(-1, number, number)
        least = ridge * float(head.square().sum()) / number
        sums.diagonal(dim1=1, dim2=2).add_(least)
        wanted = (weights * points) @ head.T + least * self.first
        slopes = torch.cholesky_solve(wanted.unsqueeze(2), torch.linalg.cholesky_ex(sums)[0])[:, :, 0]
        self.slopes = slopes @ head
        return weights * self.slopes


def _searched(basis: Tensor, near: _Alike, found: Tensor, most: int) -> Tensor:
    """Return points ``(s, r)`` of the span's orthonormal basis ``(u, r)`` at masked slopes, beside those that were found."""
    points = near.begin
    for step in range(near.steps):
        here = near.nearest(points)
        points = points + ((2 * here - points) @ basis) @ basis.T - here
        if step % _EVERY == _EVERY - 1:
            judged = near.polished(here, basis)
            inside = judged @ basis
            # The part of a vector inside the span is as long as the cosine of both says.
            met = judged.any(1) & (inside.norm(dim=1) > near.met * judged.norm(dim=1))
            found = _distinct(torch.cat([found, inside[met]]), most)
            if len(found) == most:
                break
    return found


def _distinct(points: Tensor, most: int) -> Tensor:
    """Return the first of points ``(s, r)`` that are none twice, at most so many."""
    chosen: list[int] = []
    alike = functional.normalize(points)
    alike = (alike @ alike.T).abs() > _SAME
    for place in range(len(points)):
        if len(chosen) < most and not bool(alike[place, chosen].any()):
            chosen.append(place)
    return points[chosen]
