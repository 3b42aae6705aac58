"""The vectors that an upload holds, and the vector of a target."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fedpriv.attacks.observation import Observation, TargetId
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import VECTORS, Kinds
from fedpriv.wire.payload import Payload


def list_targets(observations: Sequence[Observation], kind: str) -> tuple[TargetId, ...]:
    """Return every target of a kind of payload, in the order of the observations.

    A payload of vectors or class outputs gives one target a row, labelled as the upload says (an entangled vector by its
    heaviest class); any other payload gives one target as a whole, labelled -1. Observations without the payload give none.
    """
    found: list[TargetId] = []
    for seen in observations:
        for payload in seen.upload:
            if payload.kind != kind:
                continue
            classes = payload.row_classes()
            for index, label in enumerate([-1] if classes is None else classes.tolist()):
                found.append(TargetId(seen.round, seen.client, index, label))
    return tuple(found)


def observation_of(observations: Sequence[Observation], target: TargetId) -> Observation:
    """Return the observation that a target points into, or refuse where there is none."""
    for seen in observations:
        if (seen.round, seen.client) == (target.round, target.client):
            return seen
    raise UserError(f"no upload of client {target.client} in round {target.round} among the observations")


def kinds_in(message: Sequence[Payload]) -> str:
    """Return the kinds of payload in a message, for sentences."""
    return ", ".join(payload.kind for payload in message) or "nothing"


def upload_holds(seen: Observation) -> str:
    """Say whose upload holds which kinds of payload."""
    return f"upload of client {seen.client} in round {seen.round} holds {kinds_in(seen.upload)}"


def rounds_of(observations: Sequence[Observation], client: int) -> list[Observation]:
    """Return a client's observations in the order of rounds."""
    return sorted((seen for seen in observations if seen.client == client), key=lambda seen: seen.round)


def target_feature(observations: Sequence[Observation], target: TargetId, kinds: Kinds = VECTORS) -> Tensor:
    """Return the vector ``(d,)`` of a target, of which its upload holds one of the kinds.

    Raises:
        UserError: when the upload holds no such vector, or vectors of several of the kinds.
    """
    seen = observation_of(observations, target)
    where = f"upload of client {target.client} in round {target.round}"
    held = [payload for payload in seen.upload if payload.kind in kinds]
    if len(held) != 1:
        raise UserError(f"{where} holds {kinds_in(held or seen.upload)}; expected one of {', '.join(kinds)}")
    rows = held[0].rows()
    if not 0 <= target.index < len(rows):
        raise UserError(f"{where}: target index {target.index}, expected 0..{len(rows) - 1}")
    return rows[target.index]
