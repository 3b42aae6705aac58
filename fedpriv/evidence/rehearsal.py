"""Defenses of an upload on rows of the attacker's own: what they would have become, had the client sent them.

Which defenses run, and with which numbers, is part of the protocol, and a defense that holds only where nobody knows it
holds nothing. What the clients draw stays theirs: here it is drawn anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedpriv.attacks.observation import Observation
from fedpriv.federation.defense import Defense, DefensePipeline, Sender
from fedpriv.util.seeds import derive_seed
from fedpriv.wire.kinds import CLASS_OUTPUTS, SEPARATE
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
        own: Payload = replace(payload, **{str(payload.values_field()): rows})
        return (*self.message[: self.place], own, *self.message[self.place + 1 :])

    @property
    def possible(self) -> bool:
        """True if the defenses send every row, in the kind of upload that was seen."""
        payload = self.message[self.place]
        sent = self.pipeline.upload(self.message, self.sender, 0)
        return any(one.kind == payload.kind and one.rows().shape == payload.rows().shape for one in sent)


def changes_rows(pipeline: DefensePipeline, kind: str) -> bool:
    """True if some defense of a run may change rows of a kind of upload that holds rows."""
    alone = kind in SEPARATE | CLASS_OUTPUTS and pipeline.server_view == "each"
    return alone and any(type(defense).upload is not Defense.upload for defense in pipeline.defenses)


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
    classes, counts = payload.said("classes"), payload.said("counts")
    if classes is None:
        return None
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


def _numbers(classes: Tensor, counts: Tensor | None, many: int) -> Tensor:
    return torch.full_like(classes, many) if counts is None else counts.to(classes)


def _rows(message: Message, kind: str) -> Tensor:
    return next(payload.rows() for payload in message if payload.kind == kind)
