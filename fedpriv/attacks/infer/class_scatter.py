"""Where representations of a class lie, by images of the attacker's own, and what that makes of distances.

Means by class, and one covariance S within classes, pooled: P = (S + r tr(S) / d I)^-1 weighs directions so that images
scatter alike in each of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

RIDGE = 0.01
"""r; chosen on two federations among 1, 0.1, 0.01 and 0.001, of which the last three did alike."""

USUAL = 10
"""Images that a noisy mean is taken to be of."""

FEWEST = 20
"""Own images, less one for each of their classes, below which no covariance is made of them."""

FOLDS = 5
"""Parts of the own images, each judged by what the others say."""

TINY = 1e-30
"""Least variance and squared length that is divided by: a network that answers everything alike scatters nowhere."""


@dataclass(frozen=True)
class Scatter:
    """Where representations of classes lie.

    Attributes:
        means: class -> mean ``(d,)``.
        overall: mean of all ``(d,)``.
        numbers: class -> images that its mean is of.
        directions: ``(k, d)`` orthonormal rows, in which own images scatter.
        variances: along these ``(k,)``, r tr(S) / d included.
        least: r tr(S) / d, the variance in every other direction.
    """

    means: dict[int, Tensor]
    overall: Tensor
    numbers: dict[int, int]
    directions: Tensor
    variances: Tensor
    least: Tensor

    @property
    def trace(self) -> float:
        """Trace of P."""
        d, k = self.directions.shape[1], len(self.variances)
        return float((1 / self.variances).sum() + (d - k) / self.least)

    def mean(self, label: int) -> Tensor:
        """Return the expected representation ``(d,)`` of an image of a class."""
        return self.means.get(label, self.overall)

    def without(self, features: Tensor, labels: Tensor) -> Tensor:
        """Return the way that a class's mean moves when one of its images is left out, for each of these ``(n, d)``.

        Of the only one of its class it moves to the mean of all.
        """
        found = torch.empty_like(features)
        for label in labels.unique().tolist():
            asked, middle, number = labels == label, self.means[label], self.numbers[label]
            found[asked] = (middle - features[asked]) / (number - 1) if number > 1 else self.overall - middle
        return found

    def whiten(self, rows: Tensor) -> Tensor:
        """Return P^(1/2) x of rows ``(n, d)``, by the symmetric root."""
        parts = rows @ self.directions.T
        found: Tensor = (parts / self.variances.sqrt()) @ self.directions
        return found + (rows - parts @ self.directions) / self.least.sqrt()

    def inner(self, first: Tensor, second: Tensor) -> Tensor:
        """Return x^T P y of rows ``(n, d)`` and a row ``(d,)`` or as many rows: ``(n,)``."""
        one, other = first @ self.directions.T, second @ self.directions.T
        known, whole = (one * other), (first * second).sum(-1)
        found: Tensor = (known / self.variances).sum(-1) + (whole - known.sum(-1)) / self.least
        return found


def enough(labels: Tensor) -> bool:
    """True if own images of these classes make a covariance."""
    return len(labels) - len(labels.unique()) >= FEWEST


def scatter(features: Tensor, labels: Tensor, noise: float = 0.0) -> Scatter:
    """Return where own images ``(n, d)`` float64 of classes ``(n,)`` lie, pooled within classes.

    With ``noise``, the variance of each entry of an upload, directions weigh by what :data:`USUAL` images' mean scatters.
    """
    means, numbers, apart = {}, {}, []
    for label in labels.unique().tolist():
        own = features[labels == label]
        means[label], numbers[label] = own.mean(0), len(own)
        apart.append(own - means[label])
    rows = torch.cat(apart)
    free = max(1, len(rows) - len(means))
    variances, directions = _principal(rows)
    variances = variances / free
    least = (RIDGE * variances.sum() / rows.shape[1]).clamp_min(TINY) + USUAL * noise
    return Scatter(means, features.mean(0), numbers, directions, variances + least, least)


def _principal(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return squared singular values ``(k,)`` of rows ``(n, d)`` and the right singular vectors, as rows ``(k, d)``.

    By the smaller of the two products, several times as fast as by singular values; those of which rounding leaves nothing
    sure are left out.
    """
    wide = rows.shape[1] > rows.shape[0]
    values, vectors = torch.linalg.eigh(rows @ rows.T if wide else rows.T @ rows)
    kept = values > values[-1].clamp_min(0) * 1e-10
    values, vectors = values[kept], vectors[:, kept]
    directions: Tensor = (vectors.T @ rows) / values.sqrt()[:, None] if wide else vectors.T
    return values, directions
