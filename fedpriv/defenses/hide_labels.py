"""Hide the weights of a mixture, which travel as its label encoding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from fedpriv.defenses.shared.signals import SignalDefense
from fedpriv.federation.answer import Answer
from fedpriv.federation.defense import ProtectionPlan, UploadContext
from fedpriv.wire.kinds import MIXTURES, payload_kind
from fedpriv.wire.ledger import Entry
from fedpriv.wire.payload import Message, Payload

_WEIGHTS = "the weights are found with the prototypes, from how they are drawn and which is the largest"
_ENTANGLED = ("entangled",)


@dataclass(frozen=True)
class HideLabels(SignalDefense):
    """Replace the label encoding of an entangled upload by its class of largest weight alone, as a one-hot vector.

    On the wire: one class id. The server learns from the wrong mixture of labels, which costs accuracy.
    """

    name: ClassVar[str] = "hide-labels"
    source: ClassVar[str] = "derived here"
    guarantee: ClassVar[str] = "none"
    answers = (
        Answer(("unmix",), _ENTANGLED, {"weights": "hidden"}, note=_WEIGHTS),
        Answer(("membership",), _ENTANGLED, {"classes": "any"}, note="believes no label encoding to rule a class out"),
        Answer(("property",), _ENTANGLED, {"encodings": "hidden"}, note="learns from the mixture alone"),
    )
    fits = MIXTURES
    behind = ("prune", "quantise", "diagonal")

    def after(self, plan: ProtectionPlan) -> ProtectionPlan:
        return replace(plan, false_labels=self.name)

    def upload(self, message: Message, context: UploadContext) -> Message:
        return tuple(_without_weights(payload) for payload in message)

    def wire_entries(self, entries: list[Entry]) -> list[Entry]:
        return [replace(e, shape=(1,), dtype="int64", itemsize=8) if _is_encoding(e) else e for e in entries]


def _without_weights(payload: Payload) -> Payload:
    name, encoding = payload.field_that_says("weights"), payload.said("weights")
    if encoding is None:
        return payload
    largest = torch.zeros_like(encoding).index_fill_(0, encoding.argmax(), 1.0)
    return replace(payload, **{str(name): largest})


def _is_encoding(entry: Entry) -> bool:
    kind, _, name = entry.name.partition(".")
    return name == payload_kind(kind).field_that_says("weights")
