"""Hide labels: of a mixture's labels the largest class alone is sent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from fedpriv.defenses.signals import SignalDefense
from fedpriv.federation.answer import Answer
from fedpriv.federation.defense import ProtectionPlan, UploadContext
from fedpriv.uploads.kinds import MIXTURES, payload_kind
from fedpriv.uploads.ledger import Entry
from fedpriv.uploads.payload import Message, Payload

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
        Answer(
            ("labels", "property"), _ENTANGLED, {"encodings": "hidden"}, note="learns from the entangled vector alone"
        ),
    )
    fits = MIXTURES
    behind = ("prune", "quantise", "diagonal")

    def after(self, plan: ProtectionPlan) -> ProtectionPlan:
        return replace(plan, false_labels=self.name)

    def upload(self, message: Message, context: UploadContext) -> Message:
        sent: list[Payload] = []
        for payload in message:
            encoding = payload.said("weights")
            if encoding is not None:
                largest = torch.zeros_like(encoding).index_fill_(0, encoding.argmax(), 1.0)
                payload = replace(payload, **{str(payload.field_that_says("weights")): largest})
            sent.append(payload)
        return tuple(sent)

    def wire_entries(self, entries: list[Entry]) -> list[Entry]:
        names = {f"{kind}.{payload_kind(kind).field_that_says('weights')}" for kind in MIXTURES}
        return [replace(e, shape=(1,), dtype="int64", itemsize=8) if e.name in names else e for e in entries]
