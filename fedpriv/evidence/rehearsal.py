"""Defenses of an upload on rows or weights of the attacker's own: what they would have become, had the client sent them.

Which defenses run, and with which numbers, is part of the protocol, and a defense that holds only where nobody knows it
holds nothing. What the clients draw stays theirs: here it is drawn anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedpriv.algebra.low_rank import compress_like, recover
from fedpriv.attacks.observation import Observation
from fedpriv.federation.defense import Defense, DefensePipeline, Sender
from fedpriv.util.seeds import derive_seed
from fedpriv.wire.kinds import CLASS_OUTPUTS, FACTORS, MIXTURES, SEPARATE, UPDATES
from fedpriv.wire.payload import Payload
from fedpriv.wire.payloads import Message

_MOST_OF_A_CLASS = 1 << 12
"""Images of a class up to which it is tried how many a client must hold to have sent what it sent."""


@dataclass(frozen=True)
class Rehearsed:
    """The defenses of one upload, on other rows.

    Attributes:
        pipeline: the defenses.
        message: the upload as it was sent. Classes and counts stay; rows are replaced by others, as many at a time as it
            holds, because some defenses go by all rows together.
        place: of the rows' payload in the message.
        sender: the client, as far as the server knows it.
    """

    pipeline: DefensePipeline
    message: Message
    place: int
    sender: Sender

    def __call__(self, rows: Tensor, seed: int) -> Tensor:
        """Return rows ``(n, d)`` as they would have been sent, every draw by ``seed``."""
        payload = self.message[self.place]
        size = len(payload.rows())
        found = []
        for number, part in enumerate(rows.split(size)):
            filled = part[torch.arange(size, device=part.device) % len(part)]
            sent = self.pipeline.upload(self._with(filled), self.sender, derive_seed(seed, number))
            found.append(_rows(sent, payload.kind)[: len(part)])
        return torch.cat(found)

    def _with(self, rows: Tensor) -> Message:
        payload = self.message[self.place]
        field = str(payload.values_field())
        return _replaced(self.message, self.place, rows.reshape(getattr(payload, field).shape))

    @property
    def possible(self) -> bool:
        """True if the defenses send every row, in the kind of upload that was seen."""
        payload = self.message[self.place]
        sent = self.pipeline.upload(self.message, self.sender, 0)
        return any(one.kind == payload.kind and one.rows().shape == payload.rows().shape for one in sent)


@dataclass(frozen=True)
class RehearsedWeights:
    """The defenses of one upload of weights, on other weights.

    Attributes:
        pipeline: the defenses.
        message: the upload as it was sent.
        place: of the weights' payload in the message.
        sender: the client, as far as the server knows it.
    """

    pipeline: DefensePipeline
    message: Message
    place: int
    sender: Sender

    def __call__(self, weights: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
        """Return weights by name as they would have been sent, every draw by ``seed``.

        Parameters of the upload that are not named are sent as the client sent them. Truncated matrices keep their ranks.
        """
        payload = self.message[self.place]
        before = payload.parameters()
        given = compress_like(weights, before) if payload.space == "factors" else weights
        values = {**before, **{name: value.to(before[name]) for name, value in given.items()}}
        field = str(payload.values_field())
        filled: Any = values if isinstance(getattr(payload, field), Mapping) else values[field]
        message = _replaced(self.message, self.place, filled)
        sent = self.pipeline.upload(message, self.sender, derive_seed(seed, "rehearsed"))  # never the client's draws
        found = next(one.parameters() for one in sent if one.kind == payload.kind)
        if payload.space == "factors":
            found = recover(found)
        return {name: found[name].to(value) for name, value in weights.items()}

    @property
    def possible(self) -> bool:
        """True if the defenses send weights of the kind and shapes that were seen."""
        payload = self.message[self.place]
        sent = self.pipeline.upload(self.message, self.sender, 0)
        same = [one for one in sent if one.kind == payload.kind]
        shapes = [{name: value.shape for name, value in one.parameters().items()} for one in same]
        return shapes == [{name: value.shape for name, value in payload.parameters().items()}]


def changes_rows(pipeline: DefensePipeline, kind: str) -> bool:
    """True if some defense of a run may change rows of a kind of upload that holds rows."""
    return kind in SEPARATE | CLASS_OUTPUTS | MIXTURES and changes_uploads(_on(pipeline, kind))


def changes_weights(pipeline: DefensePipeline, kind: str) -> bool:
    """True if weights of a kind may be changed before they are sent: by some defense of a run, or by truncation."""
    truncated = kind in FACTORS and pipeline.server_view == "each"
    return truncated or (kind in UPDATES and changes_uploads(pipeline))


def rehearsed_weights(
    pipeline: DefensePipeline, seen: Observation, kind: str, n_classes: int, rounds: int
) -> RehearsedWeights | None:
    """Return the defenses of an upload, for other weights; None where they hold it back or make another kind of it.

    Arguments as :func:`rehearsed` has them.
    """
    place = next((place for place, payload in enumerate(seen.upload) if payload.kind == kind), None)
    if place is None:
        return None
    nobody = torch.zeros(0, dtype=torch.int64)  # what defenses do to weights does not depend on whose they are
    tried = RehearsedWeights(
        pipeline, seen.upload, place, Sender(seen.round, seen.client, n_classes, nobody, seen.broadcast, rounds)
    )
    return tried if tried.possible else None


def rehearsed(pipeline: DefensePipeline, seen: Observation, kind: str, n_classes: int, rounds: int) -> Rehearsed | None:
    """Return the defenses of an upload, for other rows; None where they hold some back or make another kind of it.

    Args:
        pipeline: of the run.
        seen: the upload.
        kind: of payload that is attacked.
        n_classes: number of classes of the federation.
        rounds: of the run, which defenses with a budget divide it by.
    """
    place = next((place for place, payload in enumerate(seen.upload) if payload.kind == kind), None)
    if place is None or not len(seen.upload[place].rows()):
        return None
    payload, many = seen.upload[place], 1
    classes, counts, weights = payload.said("classes"), payload.said("counts"), payload.said("weights")
    if weights is not None:
        classes = weights.flatten().nonzero().squeeze(1)
    if classes is None or not len(classes):
        return None
    pipeline = _on(pipeline, kind)
    while many <= _MOST_OF_A_CLASS:
        # Where no counts are sent: so many that no class is held back, as none was.
        held = (
            classes if payload.computed_from == "image" else classes.repeat_interleave(_numbers(classes, counts, many))
        )
        sender = Sender(seen.round, seen.client, n_classes, held.cpu(), seen.broadcast, rounds)
        tried = Rehearsed(pipeline, seen.upload, place, sender)
        if tried.possible:
            return tried
        if counts is not None or payload.computed_from == "image":
            return None
        many *= 2
    return None


def _on(pipeline: DefensePipeline, kind: str) -> DefensePipeline:
    """Return the defenses that rows of a kind go through: of a mixture those behind whatever mixed it."""
    mixing = [place for place, defense in enumerate(pipeline.defenses) if defense.mixes]
    return DefensePipeline(pipeline.defenses[mixing[-1] + 1 :]) if mixing and kind in MIXTURES else pipeline


def changes_uploads(pipeline: DefensePipeline) -> bool:
    """True if some defense changes what clients send, one by one."""
    changing = any(type(defense).upload is not Defense.upload for defense in pipeline.defenses)
    return changing and pipeline.server_view == "each"


def _replaced(message: Message, place: int, values: Any) -> Message:
    """Return a message with other values in one of its payloads."""
    payload = message[place]
    own: Payload = replace(payload, **{str(payload.values_field()): values})
    return (*message[:place], own, *message[place + 1 :])


def _numbers(classes: Tensor, counts: Tensor | None, many: int) -> Tensor:
    return torch.full_like(classes, many) if counts is None else counts.to(classes)


def _rows(message: Message, kind: str) -> Tensor:
    return next(payload.rows() for payload in message if payload.kind == kind)
