"""Class outputs that clients upload: softmax vectors or logits, and how far a model's answer is from one."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fedpriv.attacks.observation import Observation, TargetId
from fedpriv.attacks.optim.objectives import relative_feature_distance
from fedpriv.attacks.read.target_features import observation_of
from fedpriv.util.errors import UserError
from fedpriv.wire.payloads import ClassLogits, find_payload

_TINY = 1e-12


def is_distribution(rows: Tensor) -> bool:
    """True where every row of outputs ``(n, C)`` is non-negative and sums to one: softmax vectors, not logits."""
    return bool((rows >= 0).all()) and bool(((rows.sum(1) - 1).abs() < 1e-4).all())


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
    return sent.values[target.index], is_distribution(sent.values)
