"""The shuffled control, and the server's view behind secure aggregation: of each round the weighted mean of its uploads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from fedpriv.attacks.observation import Observation
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import BY_CLASS, CLASS_OUTPUTS
from fedpriv.wire.payloads import Message, Payload, SampleCount, find_payload


def by_round(observations: Sequence[Observation]) -> dict[int, list[Observation]]:
    """Return the observations of each round, in order."""
    groups: dict[int, list[Observation]] = {}
    for observation in observations:
        groups.setdefault(observation.round, []).append(observation)
    return groups


def shuffle(observations: Sequence[Observation]) -> tuple[Observation, ...] | None:
    """Give every client's place the upload of the next client of the same round; None where a round has one client.

    Rows keep their number and labels, so that targets still point at something; only what was computed from images is
    the other client's. What an attack still reaches, it did not get from the upload.
    """
    groups = by_round(observations).values()
    if any(len(group) < 2 for group in groups):
        return None
    return tuple(
        replace(seen, upload=_in_place_of(seen.upload, other.upload))
        for group in groups
        for seen, other in zip(group, [*group[1:], group[0]], strict=True)
    )


def _in_place_of(message: Message, other: Message) -> Message:
    """Return the other client's payloads of the own kinds; what the other did not send (it is sent once) is left out."""
    pairs = ((mine, find_payload(other, type(mine))) for mine in message)
    return tuple(_payload_in_place_of(mine, theirs) for mine, theirs in pairs if theirs is not None)


def _payload_in_place_of(payload: Payload, other: Payload) -> Payload:
    if payload.kind not in BY_CLASS:
        return other
    values, classes, others = payload.values_field(), payload.said("classes"), other.said("classes")
    theirs: Tensor = getattr(other, str(values))
    if classes is not None and others is not None:
        rows = torch.arange(len(classes)) % len(others)
        theirs = theirs[_rows_of_other_classes(classes, others) if payload.kind in CLASS_OUTPUTS else rows]
    return replace(payload, **{str(values): theirs})


def _rows_of_other_classes(values: Tensor, other: Tensor) -> Tensor:
    """Return a row of the other upload for each own class, of another class where there is one.

    A class's output looks much the same from every client, so a row of the same class would be no control.
    """
    rows = []
    for index, label in enumerate(values.tolist()):
        differs = (other != label).nonzero().squeeze(1).tolist() or list(range(len(other)))
        rows.append(differs[index % len(differs)])
    return torch.tensor(rows, dtype=torch.int64)


def summed(observations: Sequence[Observation]) -> tuple[Observation, ...]:
    """Return the observations with each upload replaced by the mean over its round's clients."""
    means = {number: mean_upload([o.upload for o in group]) for number, group in by_round(observations).items()}
    return tuple(replace(o, upload=means[o.round]) for o in observations)


def summed_without_own(observations: Sequence[Observation]) -> tuple[Observation, ...] | None:
    """Return the control: each upload replaced by the mean over the round's other clients; None with a single client."""
    rounds = by_round(observations)
    if any(len(group) < 2 for group in rounds.values()):
        return None
    return tuple(
        replace(o, upload=mean_upload([other.upload for other in rounds[o.round] if other.client != o.client]))
        for o in observations
    )


def mean_upload(uploads: Sequence[Message]) -> Message:
    """Return the mean of uploads of the same kinds, weighted by numbers of samples where they are uploaded.

    Numbers of samples themselves are added up. Angle matrices become dense, as the server's mean is.
    """
    counts = [find_payload(upload, SampleCount) for upload in uploads]
    weights = torch.tensor([1 if count is None else int(count.count) for count in counts], dtype=torch.float64)
    shares = weights / weights.sum()
    return tuple(_mean(payloads, shares) for payloads in zip(*uploads, strict=True))


def _mean(payloads: Sequence[Payload], shares: Tensor) -> Payload:
    payloads = [payload.addable() for payload in payloads]
    first = payloads[0]
    if first.aggregation == "none":
        raise UserError(f"uploads of {first.kind} are not added up: the server of a method that sends them needs each")
    if first.aggregation == "sum":
        shares = torch.ones_like(shares)
    values: dict[str, Any] = {}
    for spec in fields(first):
        entries = [getattr(payload, spec.name) for payload in payloads]
        if not spec.metadata["private"]:
            values[spec.name] = entries[0]  # metadata, the same for everybody who answers one broadcast
        elif isinstance(entries[0], Mapping):
            values[spec.name] = {name: _weighted([each[name] for each in entries], shares) for name in entries[0]}
        elif entries[0] is not None:
            values[spec.name] = _weighted(entries, shares)
    return replace(first, **values)


def _weighted(tensors: Sequence[Tensor], shares: Tensor) -> Tensor:
    total = torch.zeros_like(tensors[0], dtype=torch.float64)
    for share, tensor in zip(shares.tolist(), tensors, strict=True):
        total = total + share * tensor.double()
    return total.to(tensors[0].dtype)
