"""Defenses of an upload on rows of the attacker's own: what they would have become, had the client sent them.

Which defenses run, and with which numbers, is part of the protocol. What the clients draw stays theirs: it is drawn anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedpriv.attacks.observation import Observation
from fedpriv.federation.defense import Defense, DefensePipeline, Sender
from fedpriv.uploads.kinds import CLASS_OUTPUTS, MIXTURES, SEPARATE
from fedpriv.uploads.payloads import Message
from fedpriv.util.seeds import derive_seed

_MOST_OF_A_CLASS = 1 << 12
"""Images of a class up to which it is tried how many a client must hold to have sent what it sent."""


@dataclass(frozen=True)
class Rehearsed:
    """The defenses of one upload, on other rows: as many at a time as it holds, because some go by all rows together."""

    pipeline: DefensePipeline
    message: Message  # the upload as it was sent
    place: int  # of the attacked payload in the message
    sender: Sender  # the client, as far as the server knows it

    def __call__(self, rows: Tensor, seed: int) -> Tensor:
        """Return rows ``(n, d)`` as they would have been sent, every draw by ``seed``."""
        payload = self.message[self.place]
        name, size = str(payload.values_field()), len(payload.rows())
        result = []
        for number, part in enumerate(rows.split(size)):
            filled = part[torch.arange(size, device=part.device) % len(part)].reshape(getattr(payload, name).shape)
            message = (*self.message[: self.place], replace(payload, **{name: filled}), *self.message[self.place + 1 :])
            sent = self.pipeline.upload(message, self.sender, derive_seed(seed, number))
            result.append(next(item for item in sent if item.kind == payload.kind).rows()[: len(part)])
        return torch.cat(result)


def changes_rows(pipeline: DefensePipeline, kind: str) -> bool:
    """True if some defense of a run may change rows of a kind of upload that holds rows."""
    return kind in SEPARATE | CLASS_OUTPUTS | MIXTURES and changes_uploads(_on(pipeline, kind))


def changes_uploads(pipeline: DefensePipeline) -> bool:
    """True if some defense changes what clients send, one by one."""
    changing = any(type(defense).upload is not Defense.upload for defense in pipeline.defenses)
    return changing and pipeline.server_view == "each"


def sends_weights(pipeline: DefensePipeline, seen: Observation, kind: str, n_classes: int, rounds: int) -> bool:
    """True if defenses send weights of the kind and shapes that were seen; arguments as of :func:`rehearsed`."""
    nobody = torch.zeros(0, dtype=torch.int64)  # what defenses do to weights does not depend on whose they are
    sent = pipeline.upload(seen.upload, Sender(seen.round, seen.client, n_classes, nobody, seen.broadcast, rounds), 0)
    before, after = (
        [{n: value.shape for n, value in entry.parameters().items()} for entry in message if entry.kind == kind][:1]
        for message in (seen.upload, sent)
    )
    return bool(before) and before == after


def rehearsed(pipeline: DefensePipeline, seen: Observation, kind: str, n_classes: int, rounds: int) -> Rehearsed | None:
    """Return the defenses of an upload, for other rows; None where they hold some back or make another kind of it."""
    position = next((index for index, payload in enumerate(seen.upload) if payload.kind == kind), None)
    if position is None or not len(seen.upload[position].rows()):
        return None
    payload = seen.upload[position]
    classes, counts, weights = payload.said("classes"), payload.said("counts"), payload.said("weights")
    if weights is not None:
        classes = weights.flatten().nonzero().squeeze(1)
    if classes is None or not len(classes):
        return None
    pipeline, of_images, many = _on(pipeline, kind), payload.computed_from == "image", 1
    while many <= (1 if of_images or counts is not None else _MOST_OF_A_CLASS):
        # Where no counts are sent: so many that no class is held back, as none was.
        numbers = torch.full_like(classes, many) if counts is None else counts.to(classes)
        labels = classes if of_images else classes.repeat_interleave(numbers)
        sender = Sender(seen.round, seen.client, n_classes, labels.cpu(), seen.broadcast, rounds)
        sent = pipeline.upload(seen.upload, sender, 0)
        if any(item.kind == kind and item.rows().shape == payload.rows().shape for item in sent):
            return Rehearsed(pipeline, seen.upload, position, sender)
        many *= 2
    return None


def _on(pipeline: DefensePipeline, kind: str) -> DefensePipeline:
    """Return the defenses that rows of a kind go through: of a mixture those behind whatever mixed it."""
    mixing = [index for index, defense in enumerate(pipeline.defenses) if defense.mixes]
    return DefensePipeline(pipeline.defenses[mixing[-1] + 1 :]) if mixing and kind in MIXTURES else pipeline
