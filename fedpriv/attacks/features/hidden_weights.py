"""Mixing weights that a client hid, from the mixtures themselves: the answer to label encodings that say less.

A client that sends r_t = sum_c w_tc p_c and of the weights only which is the largest (or a noisy encoding) leaves w_t open,
not unknown: the protocol says how weights are drawn, u_c / sum_k u_k with u uniform, and r_t has many more coordinates than
there are classes. So the weights are latent variables.

1. Their expectation given what was sent. Of draws whose largest entry is known, mean and covariance are taken from
   simulated draws.
2. Prototypes, by the posterior of :mod:`fedpriv.attacks.features.posterior` under these weights.
3. Weights anew, given prototypes: w_t maximises

       -|r_t - w P|^2 / (2 s_t) - (w - m_t) C_t^-1 (w - m_t)' / 2    over distributions w,

   with m_t, C_t of step 1 and s_t the mean square that is left, what is not known of w and P included: early uploads, whose
   prototypes were others, leave much and keep their expectation. Then step 2 again.

Where the attacker has images, step 3 comes first, with their class means for prototypes, and step 2 last. An encoding that
is not one-hot is noise and names no class; without images such encodings are taken as they are.

Derived here from FedRE's equations 7-12.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedpriv.algebra.matrices import least_squares_in_simplex
from fedpriv.attacks.features.posterior import ANY_DRIFT, RoundPosterior, Shape, Uploads, infer
from fedpriv.util.seeds import generator

_SWEEPS = 2
"""Times that weights are found from prototypes; more changed nothing where it was tried."""

_DRAWS = 4000
_RIDGE = 1e-4
_REFINEMENTS = 3
_LEAST_LEFT = 1e-6

Shapes = Callable[[Uploads], Sequence[Shape]]
"""Makes the shapes of prototypes, which depend on the weights."""


def infer_hidden(sent: Uploads, shapes: Shapes) -> tuple[RoundPosterior, Tensor]:
    """Return the posterior of prototypes behind uploads whose weights are what was sent of them, and the weights found.

    The weights ``(T, m)`` are float64 distributions.
    """
    means, spreads = expected_weights(sent.weights)
    guesses = [shape.rows for shape in shapes(sent) if shape.leads is None]
    if guesses:
        weights = _likely_weights(sent.features, guesses[0], torch.zeros(len(guesses[0])), means, spreads)
        uploads = replace(sent, weights=weights)
        # Errors of weights look like drift as well; posteriors that allow none would take them for prototypes.
        return infer(uploads, shapes(uploads), ANY_DRIFT), weights
    if not _one_hot(sent.weights):
        return infer(sent, shapes(sent)), sent.weights
    uploads = replace(sent, weights=means)
    found = infer(uploads, shapes(uploads))
    for _ in range(_SWEEPS if sent.weights.shape[1] > 1 else 0):
        weights = _likely_weights(sent.features, found.prototypes, found.distance, means, spreads)
        uploads = replace(sent, weights=weights)
        found = infer(uploads, shapes(uploads))
    return found, uploads.weights


def expected_weights(sent: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean ``(T, m)`` and covariance ``(T, m, m)`` of weights, given encodings ``(T, m)`` of their largest.

    Encodings that are not all one-hot tell nothing here.
    """
    n_classes = sent.shape[1]
    draws = torch.rand(_DRAWS, n_classes, generator=generator(0, "hidden weights"), dtype=torch.float64)
    draws = draws / draws.sum(1, keepdim=True)
    if not _one_hot(sent):
        return _moments(draws, len(sent))
    largest = draws.argmax(1, keepdim=True)
    moments = []
    for top in sent.argmax(1).tolist():
        swapped = draws.scatter(1, largest, draws[:, [top]]).index_copy(1, torch.tensor([top]), draws.amax(1)[:, None])
        moments.append(_moments(swapped, 1))
    return torch.cat([mean for mean, _ in moments]), torch.cat([spread for _, spread in moments])


def _one_hot(sent: Tensor) -> bool:
    """True if every encoding ``(T, m)`` names one class alone."""
    return bool(((sent > 0).sum(1) == 1).all())


def _moments(draws: Tensor, times: int) -> tuple[Tensor, Tensor]:
    spread = torch.cov(draws.T).view(draws.shape[1], draws.shape[1])
    return draws.mean(0).expand(times, -1).clone(), spread.expand(times, -1, -1).clone()


def _likely_weights(features: Tensor, known: Tensor, distance: Tensor, means: Tensor, spreads: Tensor) -> Tensor:
    """Return the likeliest weights ``(T, m)`` of mixtures ``(T, d)`` of prototypes ``(m, d)``, known up to a distance."""
    n_classes, width = known.shape
    prototypes = known.double()
    ridge = _RIDGE / n_classes**2 * torch.eye(n_classes, dtype=torch.float64)
    precision = torch.linalg.inv(spreads + ridge)
    expected = torch.einsum("tij,tj->ti", precision, means)
    gram, seen = prototypes @ prototypes.T, features @ prototypes.T
    doubt = distance.double().square() / width
    least = _LEAST_LEFT * features.square().mean().clamp_min(1e-30)
    weights, left = means, (features - means @ prototypes).square().mean(1).clamp_min(least)
    for _ in range(_REFINEMENTS):
        curvature = gram / left[:, None, None] + precision
        weights = least_squares_in_simplex(curvature, seen / left[:, None] + expected)
        unknown = torch.einsum("tij,ji->t", torch.linalg.inv(curvature), gram) / width
        left = (features - weights @ prototypes).square().mean(1) + unknown + weights.square() @ doubt
        left = left.clamp_min(least)
    return weights
