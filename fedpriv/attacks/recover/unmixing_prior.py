"""Class prototypes from several rounds of mixtures and the attacker's own images: the posterior mean of a Gaussian model.

A prototype is a mean of n_c representations of a class, of which the attacker's own images under the client's extractor
show mean and spread. In each coordinate j, with s_j the spread of representations within classes,

    p_c(T)     ~ N(q_c, s_j^2 (1/n_c + 1/N_c))      q_c the mean of N_c images of the attacker's own,
    p_c(t - 1) = p_c(t) + N(0, s_j^2 v)             the extractor moves from round to round,
    r_t        = sum_c w_tc p_c(t) + N(0, s_j^2 e),

so that with S = diag(1/n_c + 1/N_c), all coordinates divided by s_j, and T - t the age of an upload,

    E[P | R] = Q + S W' (W S W' + e I + v (W W') * min(age, age'))^-1 (R - W Q).

e, v and the n_c, which no client says, are those of the highest marginal likelihood. One round of it, with S the same for
all classes, is ``unmix-prior``. Derived here from FedRE's equations 7-12.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedpriv.attacks.recover.unmixing_once import prior_of_images

ROUNDS_A_CLASS = 3
"""Last rounds that are used, for each class held: what came long before tells of another extractor."""

_LEAST_ROUNDS, _MOST_ROUNDS = 6, 60
_LEAST_SPREAD = 0.05
"""Share of the mean spread below which no coordinate's is taken: one that hardly moves would outweigh all others."""

_IMAGES = (1.0, 2.0, 3.0, 5.0, 8.0, 15.0, 30.0, 100.0, 1000.0)
_VARIANCES = tuple(10.0 ** (power / 2) for power in range(-10, 3))
_SWEEPS = 6


@dataclass(frozen=True)
class ClassPrior:
    """Expected prototypes before any upload is seen.

    Attributes:
        means: ``(m, d)`` float64, of the attacker's own images by class.
        spread: ``(d,)`` float64, standard deviation of representations within classes, > 0.
        doubt: ``(m,)`` float64, variance of the means themselves, in squared spreads: 1/N_c.
    """

    means: Tensor
    spread: Tensor
    doubt: Tensor


@dataclass(frozen=True)
class Variances:
    """Unknowns of the model, in squared spreads.

    Attributes:
        images: n_c of each class, one a class.
        noise: e of an upload.
        walk: v of a prototype from one round to the next.
    """

    images: tuple[float, ...]
    noise: float
    walk: float


def class_prior(features: Tensor, labels: Tensor, n_classes: int, classes: Tensor) -> ClassPrior:
    """Return the prior of some classes ``(m,)`` from representations ``(n, d)`` of own images with labels ``(n,)``.

    A class without any gets the mean of all, and as its doubt the variance between classes.
    """
    known = features.double().cpu()
    means = prior_of_images(known, labels, n_classes)
    counts = torch.bincount(labels, minlength=n_classes).double()
    freedom = max(1, len(known) - int((counts > 0).sum()))
    spread = ((known - means[labels]).square().sum(0) / freedom).sqrt()
    spread = spread.clamp_min(max(_LEAST_SPREAD * float(spread.square().mean().sqrt()), 1e-6))
    between = float((means[counts > 0] / spread).var(0, correction=0).mean())
    doubt = torch.where(counts > 0, 1 / counts.clamp_min(1), max(between, 1.0))
    return ClassPrior(means[classes], spread, doubt[classes])


def unmix_with_prior(features: Tensor, weights: Tensor, prior: ClassPrior) -> Tensor:
    """Return the expected prototypes ``(m, d)`` float32 after T rounds of uploads ``(T, d)`` with weights ``(T, m)``."""
    used = min(max(_LEAST_ROUNDS, ROUNDS_A_CLASS * weights.shape[1]), _MOST_ROUNDS)
    mixing = weights[-used:].double().cpu()
    surprise = features[-used:].double().cpu() / prior.spread - mixing @ (prior.means / prior.spread)
    chosen = likeliest(surprise, mixing, prior.doubt)
    return (prior.means + posterior_shift(surprise, mixing, prior.doubt, chosen) * prior.spread).float()


def posterior_shift(surprise: Tensor, weights: Tensor, doubt: Tensor, known: Variances) -> Tensor:
    """Return the expected shift ``(m, d)`` of the prototypes from their prior means, in spreads.

    ``surprise`` ``(T, d)`` holds what the uploads are off the mixtures of prior means, in spreads.
    """
    mobility, covariance = _covariance(weights, doubt, known)
    shift: Tensor = mobility[:, None] * (weights.T @ torch.linalg.solve(covariance, surprise))
    return shift


def likeliest(surprise: Tensor, weights: Tensor, doubt: Tensor) -> Variances:
    """Return the variances of the highest marginal likelihood, one after the other along grids, until none gains."""
    width, products = surprise.shape[1], surprise @ surprise.T

    def likelihood(known: Variances) -> float:
        factor = torch.linalg.cholesky(_covariance(weights, doubt, known)[1])
        fit = torch.cholesky_solve(products, factor).diagonal().sum()
        return -0.5 * float(2 * width * factor.diagonal().log().sum() + fit)

    best = Variances((5.0,) * weights.shape[1], 0.1, 0.01)
    highest = likelihood(best)
    for _ in range(_SWEEPS):
        before = highest
        for options in _moves(weights.shape[1]):
            for option in options:
                tried = option(best)
                value = likelihood(tried)
                if value > highest:
                    best, highest = tried, value
        if highest == before:
            break
    return best


def _moves(n_classes: int) -> list[Sequence[Callable[[Variances], Variances]]]:
    """Return the changes that are tried: of the noise, of the walk, of each class's number of images."""

    def to(**changes: Any) -> Callable[[Variances], Variances]:
        return lambda now: replace(now, **changes)

    def images(place: int, number: float) -> Callable[[Variances], Variances]:
        return lambda now: replace(now, images=(*now.images[:place], number, *now.images[place + 1 :]))

    moves: list[Sequence[Callable[[Variances], Variances]]] = [
        [to(noise=value) for value in _VARIANCES],
        [to(walk=value) for value in (0.0, *_VARIANCES)],
    ]
    return moves + [[images(place, number) for number in _IMAGES] for place in range(n_classes)]


def _covariance(weights: Tensor, doubt: Tensor, known: Variances) -> tuple[Tensor, Tensor]:
    """Return the prior variance ``(m,)`` of each prototype, and the covariance ``(T, T)`` of the uploads."""
    age = torch.arange(len(weights) - 1, -1, -1, dtype=weights.dtype)
    mobility = 1 / torch.tensor(known.images, dtype=weights.dtype) + doubt
    moved = known.walk * (weights @ weights.T) * torch.minimum(age[:, None], age[None])
    noise = known.noise * torch.eye(len(weights), dtype=weights.dtype)
    return mobility, (weights * mobility) @ weights.T + noise + moved
