"""A plain Gaussian process of FedRE's uploads over rounds, as anybody would write it first, to stand beside ``unmix``.

Prototypes p_c(t) have the prior mean s h_c, h the centred rows of the broadcast head, and r_t = sum_c w_tc p_c(t) + e_t the
covariance

    K_tu = a + w_t.w_u + min(D_t, D_u) (q w_t.w_u + q') + [t = u] nu w_t.w_t

with D_t the drift that gathers from round t on, whose share in a round falls as 1 / t^gamma. The hyperparameters are those
of the highest marginal likelihood over a grid; s too, or it is fixed.
"""

from __future__ import annotations

import itertools
import math

import torch

from fedpriv.attacks.observation import Observation
from fedpriv.attacks.recover.round_shapes import head_rows
from fedpriv.attacks.recover.unmixing import ClientUnmixed, uploads_of

_JITTER, _NOISE = 1e-9, 1e-6

GRID = tuple(
    itertools.product(
        (1.0, 10.0, 100.0),  # a
        (1e-5, 1e-3, 1e-2, 1e-1, 1.0),  # q
        (1e-5, 1e-3, 1e-2, 1e-1, 1.0),  # q'
        (1e-4, 1e-2, 1e-1),  # nu
        (0.0, 1.0, 2.0),  # gamma
    )
)


def plain_posterior(observations: tuple[Observation, ...], client: int, scale: float | None = None) -> ClientUnmixed:
    """Return a client's prototypes as of the last round.

    Args:
        observations: all that the server saw.
        client: whose.
        scale: s; None for the likeliest.
    """
    features, weights, classes = uploads_of(observations, client)
    uploads, weights = features.double(), weights.double()
    rows = head_rows([seen for seen in observations if seen.client == client], features.shape[1])
    assert rows is not None
    shape = (rows[-1] - rows[-1].mean(0))[classes]
    mixed, best = weights @ shape, (-math.inf, torch.empty(0))
    for level, drift, common, per_round, settling in GRID:
        shares = 1 / torch.arange(1, len(uploads) + 1).double() ** settling
        gathered = shares.flip(0).cumsum(0).flip(0) - shares
        alike = weights @ weights.T
        covariance = level + alike + torch.minimum(gathered[:, None], gathered) * (drift * alike + common)
        covariance += torch.diag(per_round * alike.diagonal() + _NOISE + _JITTER)
        root = torch.linalg.cholesky(covariance)
        solved = torch.cholesky_solve(mixed, root)
        s = float((solved * uploads).sum() / (solved * mixed).sum()) if scale is None else scale
        left = uploads - s * mixed
        gain = torch.cholesky_solve(left, root)
        variance = (left * gain).sum() / left.numel()
        likelihood = float(-left.numel() / 2 * variance.log() - uploads.shape[1] * root.diagonal().log().sum())
        if likelihood > best[0]:
            reach = level + weights.T
            reach = torch.cat([reach[:, :-1], reach[:, -1:] + per_round * weights[-1:].T], 1)
            best = (likelihood, s * shape + reach @ gain)
    return ClientUnmixed(best[1].clamp_min(0).float(), classes)
