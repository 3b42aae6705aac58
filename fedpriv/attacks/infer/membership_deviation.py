"""Membership from means: does an upload deviate from what is expected as the candidate does, seen against the scatter?

A prototype is the mean of its members' representations, a mixture a weighted mean of such. Of n images of class y whose
representations scatter around m_y with covariance S, the upload deviates by p - m_y = sum_i (g(x_i) - m_y) / n. A member's
own deviation z = g(x) - m_y is part of that sum, a stranger's is not, and the most powerful test between the two weighs
directions by the inverse of S (Dwork et al., "Robust traceability from trace amounts", FOCS 2015, for attributes that are
independent): members' scores lie about sqrt(k / n) standard deviations above strangers', with k the dimensions in which
representations scatter, where a distance sees but the few in which they scatter most. The score is the cosine

    z^T P D / sqrt(z^T P z  D^T P D),    P = (S + r tr(S) / d I)^-1,    D = upload - sum_c w_c m_c,

which asks neither for n nor for the scale of either. Means and covariance are of the attacker's own images under the
client's extractor; a class of which it has none takes the mean of all.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.util.seeds import generator

RIDGE = 0.01
"""r; chosen on two federations among 1, 0.1, 0.01 and 0.001, of which the last three did alike."""

FEWEST = 20
"""Own images, less one for each of their classes, below which no covariance is made of them."""

FOLDS = 5
"""Parts of the own images, each scored by what the others say."""

_TINY = 1e-30
"""Least variance and least squared length that is divided by: a network that answers everything alike scatters nowhere."""


@dataclass(frozen=True)
class Scatter:
    """Where representations of classes lie.

    Attributes:
        means: class -> mean ``(d,)``.
        overall: mean of all ``(d,)``.
        directions: ``(k, d)`` orthonormal rows, in which own images scatter.
        variances: along these ``(k,)``, r tr(S) / d included.
        least: r tr(S) / d, the variance in every other direction.
    """

    means: dict[int, Tensor]
    overall: Tensor
    directions: Tensor
    variances: Tensor
    least: Tensor

    def mean(self, label: int) -> Tensor:
        """Return the expected representation ``(d,)`` of an image of a class."""
        return self.means.get(label, self.overall)

    def inner(self, first: Tensor, second: Tensor) -> Tensor:
        """Return x^T P y of rows ``(n, d)`` and a row ``(d,)`` or as many rows: ``(n,)``."""
        one, other = first @ self.directions.T, second @ self.directions.T
        known, whole = (one * other), (first * second).sum(-1)
        found: Tensor = (known / self.variances).sum(-1) + (whole - known.sum(-1)) / self.least
        return found


def enough(labels: Tensor) -> bool:
    """True if own images of these classes make a covariance."""
    return len(labels) - len(labels.unique()) >= FEWEST


def scatter(features: Tensor, labels: Tensor) -> Scatter:
    """Return where own images ``(n, d)`` float64 of classes ``(n,)`` lie, pooled within classes."""
    means, apart = {}, []
    for label in labels.unique().tolist():
        own = features[labels == label]
        means[label] = own.mean(0)
        apart.append(own - means[label])
    rows = torch.cat(apart)
    free = max(1, len(rows) - len(means))
    _, values, directions = torch.linalg.svd(rows, full_matrices=False)
    variances = values.square() / free
    least = (RIDGE * variances.sum() / rows.shape[1]).clamp_min(_TINY)
    return Scatter(means, features.mean(0), directions, variances + least, least)


def deviations(
    there: Scatter, features: Tensor, labels: Tensor, rows: Tensor, classes: Tensor, weights: Tensor | None
) -> Tensor:
    """Return the cosine of candidates' deviations with the upload's ``(n,)``; minus infinity for classes it does not hold.

    Args:
        there: where own images lie.
        features: of candidates ``(n, d)``, float64.
        labels: of candidates ``(n,)``.
        rows: one mean a class ``(k, d)``, or one mixture for all, expanded.
        classes: of the rows ``(k,)``.
        weights: of a mixture, of every class ``(C,)``; None of means.
    """
    found = torch.full((len(features),), -torch.inf, dtype=torch.float64)
    together = None
    if weights is not None:
        parts = [float(weights[label]) * there.mean(label) for label in weights.nonzero().squeeze(1).tolist()]
        together = torch.stack(parts).sum(0)
    for row, label in zip(rows, classes.tolist(), strict=True):
        asked = labels == label
        deviation = row - (there.mean(label) if together is None else together)
        own = features[asked] - there.mean(label)
        lengths = [there.inner(one, one).clamp_min(_TINY).sqrt() for one in (own, deviation)]
        found[asked] = there.inner(own, deviation) / (lengths[0] * lengths[1])
    return found


def left_out(
    features: Tensor, labels: Tensor, rows: Tensor, classes: Tensor, weights: Tensor | None, *seed: int | str
) -> Tensor:
    """Return scores of own images ``(n, d)``, each by the others': finite ones alone, in no order that matters."""
    parts = torch.randperm(len(labels), generator=generator(*seed)) % FOLDS
    found = []
    for part in range(FOLDS):
        kept = parts != part
        if bool((~kept).any()) and enough(labels[kept]):
            there = scatter(features[kept], labels[kept])
            found.append(deviations(there, features[~kept], labels[~kept], rows, classes, weights))
    scores = torch.cat(found) if found else torch.empty(0, dtype=torch.float64)
    return scores[scores.isfinite()]
