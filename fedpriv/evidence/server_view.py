"""The server's view behind secure aggregation: of each round, the weighted mean of its uploads, and no upload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from fedpriv.attacks.observation import Observation
from fedpriv.util.errors import UserError
from fedpriv.wire.payloads import Message, Payload, SampleCount, find_payload


def summed(observations: Sequence[Observation]) -> tuple[Observation, ...]:
    """Return the observations with each upload replaced by the mean over its round's clients."""
    rounds = by_round(observations)
    means = {number: mean_upload([o.upload for o in group]) for number, group in rounds.items()}
    return tuple(replace(o, upload=means[o.round]) for o in observations)


def summed_without_own(observations: Sequence[Observation]) -> tuple[Observation, ...] | None:
    """Return the control: each upload replaced by the mean over the round's other clients; None with a single client.

    Nothing of a client is in what stands in its place, so what an attack still reaches, it did not get from the client.
    """
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
        own = getattr(first, spec.name)
        if not spec.metadata["private"]:
            values[spec.name] = own  # metadata, the same for everybody who answers one broadcast
        elif isinstance(own, Mapping):
            values[spec.name] = {
                name: _weighted([getattr(p, spec.name)[name] for p in payloads], shares) for name in own
            }
        elif own is not None:
            values[spec.name] = _weighted([getattr(p, spec.name) for p in payloads], shares)
    return replace(first, **values)


def _weighted(tensors: Sequence[Tensor], shares: Tensor) -> Tensor:
    total: Tensor = sum(
        (share * tensor.double() for share, tensor in zip(shares.tolist(), tensors, strict=True)),
        torch.zeros_like(tensors[0], dtype=torch.float64),
    )
    return total.to(tensors[0].dtype)


def by_round(observations: Sequence[Observation]) -> dict[int, list[Observation]]:
    """Return the observations of each round, in order."""
    found: dict[int, list[Observation]] = {}
    for observation in observations:
        found.setdefault(observation.round, []).append(observation)
    return found
