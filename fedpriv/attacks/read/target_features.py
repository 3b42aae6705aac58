"""Which vectors an upload holds, and the vector of a target."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fedpriv.attacks.observation import Observation, TargetId
from fedpriv.util.errors import UserError
from fedpriv.wire.payloads import ClassLogits, Entangled, Prototypes, Representations, optional_part

FEATURE_KINDS = ("representation", "prototype", "entangled")
"""Kinds of payload that hold vectors of the representation space."""


def list_targets(observations: Sequence[Observation], kind: str) -> tuple[TargetId, ...]:
    """Return every target of a kind, in the order of the observations.

    A payload of vectors or class outputs gives one target a row, labelled as the upload says (an entangled vector by its
    heaviest class); any other payload gives one target as a whole, labelled -1. Observations without the payload give none.

    Args:
        observations: what the server saw.
        kind: ``Payload.kind`` of what is to be inverted.
    """
    found: list[TargetId] = []
    for seen in observations:
        for payload in seen.upload:
            if payload.kind != kind:
                continue
            for index, label in enumerate(_labels(payload)):
                found.append(TargetId(seen.round, seen.client, index, label))
    return tuple(found)


def _labels(payload: object) -> list[int]:
    if isinstance(payload, Representations):
        return [int(label) for label in payload.labels]
    if isinstance(payload, (Prototypes, ClassLogits)):
        return [int(label) for label in payload.classes]
    if isinstance(payload, Entangled):
        return [int(payload.label_encoding.argmax())]
    return [-1]


def observation_of(observations: Sequence[Observation], target: TargetId) -> Observation:
    """Return the observation that a target points into.

    Raises:
        UserError: when there is none.
    """
    for seen in observations:
        if (seen.round, seen.client) == (target.round, target.client):
            return seen
    raise UserError(f"no upload of client {target.client} in round {target.round} among the observations")


def target_feature(observations: Sequence[Observation], target: TargetId, kind: str | None = None) -> Tensor:
    """Return the vector ``(d,)`` of a target.

    Args:
        observations: what the server saw.
        target: round, client and position.
        kind: one of :data:`FEATURE_KINDS`; None takes the one that the upload holds.

    Raises:
        UserError: when the upload holds no such vector, or vectors of several kinds and ``kind`` is None.
    """
    seen = observation_of(observations, target)
    where = f"upload of client {target.client} in round {target.round}"
    held = {payload.kind for payload in seen.upload} & set(FEATURE_KINDS)
    if kind is None:
        if len(held) != 1:
            raise UserError(f"{where} holds {sorted(held) or 'no vectors'}; expected one of {', '.join(FEATURE_KINDS)}")
        kind = held.pop()
    rows: Tensor | None = None
    if kind == "representation" and (raw := optional_part(seen.upload, Representations)) is not None:
        rows = raw.features
    elif kind == "prototype" and (means := optional_part(seen.upload, Prototypes)) is not None:
        rows = means.features
    elif kind == "entangled" and (mixed := optional_part(seen.upload, Entangled)) is not None:
        rows = mixed.feature.unsqueeze(0)
    if rows is None:
        raise UserError(f"{where} holds no {kind}; it holds {', '.join(payload.kind for payload in seen.upload)}")
    if not 0 <= target.index < len(rows):
        raise UserError(f"{where}: target index {target.index}, expected 0..{len(rows) - 1}")
    return rows[target.index]
