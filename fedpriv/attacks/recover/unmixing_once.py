"""Guess class prototypes behind one entangled upload, from one round: what the weights, and a prior, give without others.

One upload r = sum_c w_c p_c is one equation in as many prototypes as the client has classes. Two ways to answer it:

- *label*: the label encoding alone. Without a prior one class is like another, and the best guess of every prototype is the
  upload itself (or, of the class with most weight, r / w_max as if the others' terms were zero). Exact where one class has
  all the weight, as RSR and RSP give it.
- *prior*: the posterior mean under p_c ~ N(q_c, S) independently and r = sum_c w_c p_c + N(0, s^2):

      p_c = q_c + w_c S (sum_k w_k^2 S + s^2)^-1 (r - sum_k w_k q_k).

  It needs no rank condition; classes of little weight keep q_c.

The prior means q_c come from what a server has: other clients' uploads of the round, the rows of the classifier that it
broadcast, or the class means of its own images under the client's extractor or a shadow of it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_RIDGES = (*(10.0**power for power in (-3, -2, -1, 0, 1, 2)), math.inf)


def label_only(feature: Tensor, weights: Tensor, *, scaled: bool = False) -> Tensor:
    """Return a guess of each prototype ``(m, d)`` from an upload and its label encoding alone.

    Args:
        feature: ``(d,)`` the upload.
        weights: ``(m,)`` weights of the client's classes.
        scaled: divide the upload by the largest weight for the class that has it.
    """
    guess = feature.repeat(len(weights), 1)
    if scaled:
        top = int(weights.abs().argmax())
        guess[top] = feature / weights[top]
    return guess


def posterior_mean(feature: Tensor, weights: Tensor, prior: Tensor, noise: float = 0.0) -> Tensor:
    """Return the posterior mean of each prototype ``(m, d)`` given one upload.

    Args:
        feature: ``(d,)`` the upload.
        weights: ``(m,)`` weights of the client's classes.
        prior: ``(m, d)`` prior means q.
        noise: s^2 over S, >= 0; at 0 the guess fits the upload exactly.
    """
    surprise = feature - weights @ prior
    gain = weights / (weights.square().sum() + noise).clamp_min(1e-12)
    return prior + torch.outer(gain, surprise)


def prior_of_others(features: Tensor, weights: Tensor, shape: Tensor | None = None) -> Tensor:
    """Return prior prototypes ``(C, d)`` from one round's uploads of K other clients.

    Clients' prototypes of a class are alike where a common head aligns their extractors, so the K uploads are K equations
    in C shared prototypes. They are solved by ridge regression towards a start that K equations do determine: the mean
    upload, plus the classifier's centred rows times one scale. How much ridge is chosen by predicting each upload
    from the others.

    Args:
        features: ``(K, d)`` uploads, K >= 1.
        weights: ``(K, C)`` label encodings.
        shape: ``(C, d)`` rows of the broadcast classifier, or None.
    """
    uploads, mixing = features.double(), weights.double()
    rows = None if shape is None else (shape - shape.mean(0)).double()
    if len(uploads) < 3:
        return _start(uploads, mixing, rows).float()
    errors = []
    for ridge in _RIDGES:
        total = 0.0
        for left in range(len(uploads)):
            others = torch.arange(len(uploads)) != left
            guess = _ridge(uploads[others], mixing[others], rows, ridge)
            total += float((mixing[left] @ guess - uploads[left]).square().sum())
        errors.append(total)
    best = _RIDGES[min(range(len(_RIDGES)), key=errors.__getitem__)]
    return _ridge(uploads, mixing, rows, best).float()


def _start(uploads: Tensor, mixing: Tensor, rows: Tensor | None) -> Tensor:
    """Return ``mean + scale * rows`` ``(C, d)`` fitted to the uploads by least squares over mean and scale."""
    centre = uploads.mean(0)
    if rows is None:
        return centre.repeat(mixing.shape[1], 1)
    shown = mixing @ rows
    apart = shown - shown.mean(0)
    scale = float((apart * (uploads - centre)).sum() / apart.square().sum().clamp_min(1e-12))
    return centre - scale * shown.mean(0) + scale * rows


def _ridge(uploads: Tensor, mixing: Tensor, rows: Tensor | None, ridge: float) -> Tensor:
    start = _start(uploads, mixing, rows)
    if math.isinf(ridge):
        return start
    gram = mixing @ mixing.T + ridge * torch.eye(len(mixing), dtype=mixing.dtype)
    found: Tensor = start + mixing.T @ torch.linalg.solve(gram, uploads - mixing @ start)
    return found


def prior_of_images(features: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Return the class means ``(C, d)`` of the attacker's own images; their overall mean for a class without any.

    Args:
        features: ``(p, d)`` representations of the images.
        labels: ``(p,)`` int64.
        n_classes: C.
    """
    counts = torch.bincount(labels, minlength=n_classes).to(features)
    sums = torch.zeros(n_classes, features.shape[1]).to(features).index_add(0, labels, features)
    return torch.where(counts[:, None] > 0, sums / counts.clamp_min(1)[:, None], features.mean(0))
