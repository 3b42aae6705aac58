"""Class outputs that clients upload: softmax vectors or logits, and how far a model's answer is from one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedpriv.attacks.observation import Observation, TargetId
from fedpriv.attacks.optim.objectives import relative_feature_distance
from fedpriv.attacks.read.target_features import observation_of
from fedpriv.util.errors import UserError
from fedpriv.wire.payloads import ClassLogits, find_payload

_TINY = 1e-12


_LIKELY_SUMS = (0.6, 1.4)
"""Mean sum of rows that may have been softmax vectors. That of logits stays what it was before training, about zero, for
gradients of the cross-entropy sum to zero."""

_MOST_CHANGED = 0.25
"""Share of outputs' squares that may lie beside the nearest distributions where they are changed softmax vectors."""


def is_distribution(rows: Tensor) -> bool:
    """True where rows of outputs ``(n, C)`` are softmax vectors, not logits, as they are or as a defense left them."""
    return as_distributions(rows) is not None


def as_distributions(rows: Tensor) -> Tensor | None:
    """Return rows ``(n, C)`` that are non-negative and sum to one, or None for logits.

    Softmax vectors that were rounded, thinned out or have noise on them are replaced by the nearest distributions. They are
    told from logits by their sums and by how far from distributions they are.
    """
    if bool((rows >= 0).all()) and bool(((rows.sum(1) - 1).abs() < 1e-4).all()):
        return rows
    if not len(rows) or not bool(rows.isfinite().all()):
        return None
    mended = nearest_distributions(rows)
    apart, size = (rows - mended).double().square().sum(), rows.double().square().sum()
    likely = _LIKELY_SUMS[0] <= float(rows.double().sum(1).mean()) <= _LIKELY_SUMS[1]
    return mended if likely and bool(apart <= _MOST_CHANGED * size) else None


def read_outputs(rows: Tensor) -> tuple[Tensor, bool]:
    """Return softmax vectors ``(n, C)`` and True, or logits as they are and False; see :func:`as_distributions`."""
    shares = as_distributions(rows)
    return (rows, False) if shares is None else (shares, True)


def nearest_distributions(rows: Tensor) -> Tensor:
    """Return the Euclidean projection of each row ``(n, C)`` onto the probability simplex.

    Source: Held, Wolfe, Crowder, "Validation of subgradient optimization" (Mathematical Programming 1974): entries
    are lowered by one number, and cut off at zero, so that they sum to one.
    """
    ordered = rows.sort(1, descending=True).values
    number = torch.arange(1, rows.shape[1] + 1, device=rows.device, dtype=rows.dtype)
    lowered = (ordered.cumsum(1) - 1) / number
    kept = (ordered > lowered).sum(1, keepdim=True).clamp_min(1)
    return (rows - lowered.gather(1, kept - 1)).clamp_min(0)


def output_distance(logits: Tensor, wanted: Tensor, *, softmax: bool) -> Tensor:
    """Return the distance ``(n,)`` of answers z ``(n, C)`` from uploaded outputs u ``(n, C)``, zero where they agree.

    Softmax outputs are compared by KL(u || softmax(z)), logits by ``||z - u||^2 / ||u||^2``.
    """
    if not softmax:
        return relative_feature_distance(logits, wanted)
    own = (wanted * wanted.clamp_min(_TINY).log()).sum(1)
    return (own - (wanted * logits.log_softmax(1)).sum(1)).clamp_min(0)


def uploaded_output(observations: Sequence[Observation], target: TargetId) -> tuple[Tensor, bool]:
    """Return the output ``(C,)`` that a target points at, and whether the upload holds softmax vectors."""
    sent = find_payload(observation_of(observations, target).upload, ClassLogits)
    where = f"upload of client {target.client} in round {target.round}"
    if sent is None:
        raise UserError(f"{where} holds no class outputs")
    if not 0 <= target.index < len(sent.values):
        raise UserError(f"{where}: target index {target.index}, expected 0..{len(sent.values) - 1}")
    values, softmax = read_outputs(sent.values)
    return values[target.index], softmax
