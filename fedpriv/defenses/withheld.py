"""Parts of uploads that the server does not get: rare classes, labels of a mixture, rounds, single clients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge

from fedpriv.defenses.signals import LAYER_NAMES, NETWORK_NAMES, UNTOUCHED, SignalDefense
from fedpriv.federation.answer import Answer
from fedpriv.federation.defense import Defense, ProtectionPlan, UploadContext
from fedpriv.uploads.kinds import BY_CLASS, MIXTURES, payload_kind
from fedpriv.uploads.ledger import Entry
from fedpriv.uploads.payload import Message, Payload
from fedpriv.util.errors import UserError

_ENTANGLED = ("entangled",)
_WEIGHTS = "the weights are found with the prototypes, from how they are drawn and which is the largest"
_ONE_OF = "as it is: the mean tells that one of its clients trained on an image, not which one"


@dataclass(frozen=True)
class CountFloor(SignalDefense):
    """Leave every class of fewer than ``least`` images out of the upload; nothing left, nothing is sent.

    Each row is then a mean over at least ``least`` images (rows of representations stay single images, of common
    classes only). An entangled representation is held back while any class below the floor has weight in it. No
    guarantee beyond the number; that a class is missing says that there are few images or none.
    """

    least: Annotated[int, Ge(2)] = 5

    name = "count-floor"
    source = "derived here, after k-anonymity (Sweeney 2002)"
    guarantee = "each uploaded mean is over at least k images; no bound on what it tells about one"
    answers = (UNTOUCHED,)
    fits = BY_CLASS

    def check(self, plan: ProtectionPlan) -> None:
        super().check(plan)
        if plan.false_labels:
            raise UserError(
                f"defense {self.name!r} behind {plan.false_labels!r}: needs the weight of every class, which the label "
                f"encoding does not say any more; give {self.name} first"
            )

    def upload(self, message: Message, context: UploadContext) -> Message:
        kept: list[Payload] = []
        for payload in message:
            weights, classes = payload.said("weights"), payload.said("classes")
            if weights is not None and bool((context.class_counts[weights.cpu() != 0] < self.least).any()):
                return ()
            if weights is None and classes is not None:
                rows = (context.class_counts[classes.cpu()] >= self.least).nonzero().squeeze(1).to(classes.device)
                if not len(rows):
                    return ()
                payload = replace(payload, **{name: value[rows] for name, value in payload.tensors().items()})
            kept.append(payload)
        return tuple(kept)


@dataclass(frozen=True)
class HideLabels(SignalDefense):
    """Replace the label encoding of an entangled upload by its class of largest weight alone, as a one-hot vector.

    On the wire: one class id. The server learns from the wrong mixture of labels, which costs accuracy.
    """

    name = "hide-labels"
    source = "derived here"
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

    def protected(self, payload: Payload, context: UploadContext) -> Payload:
        encoding = payload.said("weights")
        if encoding is None:
            return payload
        largest = torch.zeros_like(encoding).index_fill_(0, encoding.argmax(), 1.0)
        return replace(payload, **{str(payload.field_that_says("weights")): largest})

    def wire_entries(self, entries: list[Entry]) -> list[Entry]:
        names = {f"{kind}.{payload_kind(kind).field_that_says('weights')}" for kind in MIXTURES}
        return [replace(e, shape=(1,), dtype="int64", itemsize=8) if e.name in names else e for e in entries]


@dataclass(frozen=True)
class UploadInterval(SignalDefense):
    """Send the uploads of rounds k, 2 k, 3 k, ... and of no other; clients train in all of them.

    The server sees 1 / k of the equations. No guarantee: what is sent is sent whole.
    """

    k: Annotated[int, Ge(2)] = 5

    name = "upload-interval"
    source = "derived here"
    guarantee = "none; 1 / k as many uploads"
    answers = (Answer(("unmix",), ("entangled",), note="one posterior of the uploads there are"), UNTOUCHED)
    behind = ("prune", "quantise", "sign", "diagonal")

    def check(self, plan: ProtectionPlan) -> None:
        super().check(plan)
        if self.k > plan.rounds:
            raise UserError(
                f"options of defense upload-interval: k: nothing would be sent in {plan.rounds} rounds, got {self.k}; use a "
                "smaller k"
            )
        once = [kind for kind in plan.uploads if payload_kind(kind).once]
        if once:
            raise UserError(
                f"defense 'upload-interval' does not fit method {plan.method!r}, whose clients send {', '.join(once)} in "
                "their first round only"
            )

    def upload(self, message: Message, context: UploadContext) -> Message:
        return message if context.round % self.k == 0 else ()


@dataclass(frozen=True)
class SecureAggregation(Defense):
    """Uploads are masked so that the server learns their weighted mean over a round's clients and nothing else.

    A switch of the threat model, not an implementation of the protocol: clients compute what they always do, and an
    attacker on the run is handed the mean of each round in place of its parts. Messages for the masks (keys, shares)
    are not in the ledger. No guarantee about the mean itself: it can be taken apart over rounds of different clients.
    """

    name = "secure-aggregation"
    source = "Bonawitz et al., CCS 2017"
    encodes = True
    guarantee = "the server sees weighted means over a round's clients only; nothing about what those tell"
    answers = (
        Answer(("pooled",), ("model", "small-model"), note="one step of all clients is one of a larger batch"),
        Answer(("membership",), (*NETWORK_NAMES, *LAYER_NAMES), note=_ONE_OF),
        Answer(note="they see every client alike, so that nothing tells one from another"),
    )
    server_view = "sum"

    def check(self, plan: ProtectionPlan) -> None:
        if not plan.linear_aggregation or not plan.uploads:
            raise UserError(
                f"defense 'secure-aggregation': the server of method {plan.method!r} needs single uploads, not their mean; "
                "methods that average do with sums, for example fedavg, fedrep, lg-fedavg, fedral"
            )
        if plan.encoded:
            raise UserError(
                f"defense 'secure-aggregation' behind {plan.encoded[-1]!r}: a masked upload is as long as the whole signal, "
                "so nothing is saved on the wire; drop one of the two"
            )
        if plan.n_clients < 2:
            raise UserError("defense 'secure-aggregation' hides an upload among others; it needs at least two clients")
