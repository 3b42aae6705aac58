"""Count floor: classes of few images are not sent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from annotated_types import Ge
from torch import Tensor

from fedpriv.defenses.signals import UNTOUCHED, SignalDefense, refuse_false_labels
from fedpriv.federation.answer import Answer
from fedpriv.federation.defense import ProtectionPlan, UploadContext
from fedpriv.uploads.kinds import BY_CLASS
from fedpriv.uploads.payload import Message, Payload


@dataclass(frozen=True)
class CountFloor(SignalDefense):
    """Leave every class of fewer than ``least`` images out of the upload; nothing left, nothing is sent.

    Each row is then a mean over at least ``least`` images (rows of representations stay single images, of common
    classes only). An entangled representation is held back while any class below the floor has weight in it. No
    guarantee beyond the number; that a class is missing says that there are few images or none.

    Attributes:
        least: k >= 2, images of a class.
    """

    least: Annotated[int, Ge(2)] = 5

    name: ClassVar[str] = "count-floor"
    source: ClassVar[str] = "derived here, after k-anonymity (Sweeney 2002)"
    guarantee: ClassVar[str] = "each uploaded mean is over at least k images; no bound on what it tells about one"
    answers = (Answer(("joint",), ("prototype",), note="inverts all images of a class together"), UNTOUCHED)
    fits = BY_CLASS

    def check(self, plan: ProtectionPlan) -> None:
        super().check(plan)
        refuse_false_labels(self.name, plan)

    def upload(self, message: Message, context: UploadContext) -> Message:
        return drop_small_classes(message, context.class_counts, self.least)


def drop_small_classes(message: Message, class_counts: Tensor, least: int) -> Message:
    """Return a message without classes of fewer than ``least`` images, of ``(C,)``; empty where none is left."""
    kept: list[Payload] = []
    for payload in message:
        weights, classes = payload.said("weights"), payload.said("classes")
        if weights is not None and bool((class_counts[weights.cpu() != 0] < least).any()):
            return ()
        if weights is None and classes is not None:
            rows = (class_counts[classes.cpu()] >= least).nonzero().squeeze(1).to(classes.device)
            if not len(rows):
                return ()
            payload = replace(payload, **{name: value[rows] for name, value in payload.tensors().items()})
        kept.append(payload)
    return tuple(kept)
