"""Send nothing about classes of which a client holds few images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from annotated_types import Ge
from torch import Tensor

from fedpriv.defenses.shared.adapted import UNTOUCHED
from fedpriv.defenses.shared.signals import refuse_false_labels, require
from fedpriv.federation.answer import Answer
from fedpriv.federation.defense import Defense, ProtectionPlan, UploadContext
from fedpriv.wire.kinds import BY_CLASS
from fedpriv.wire.payload import Message, Payload


@dataclass(frozen=True)
class CountFloor(Defense):
    """Leave every class of fewer than ``least`` images out of the upload; nothing left, nothing is sent.

    A prototype of one image is its representation, and of two it can be inverted jointly. With the floor each row is a
    mean over at least ``least`` images (rows of representations stay single images, of common classes only). An
    entangled representation is mixed already and no class can be taken out of it: it is held back while any class below
    the floor has weight in it. ``count-floor`` before ``entangle`` does leave only those classes out of the mixture.

    No guarantee beyond the number: a mean over ``least`` images says something about each. That a class is missing says
    that there are few images or none.

    Attributes:
        least: k >= 2, images of a class.
    """

    least: Annotated[int, Ge(2)] = 5

    name: ClassVar[str] = "count-floor"
    source: ClassVar[str] = "derived here, after k-anonymity (Sweeney 2002)"
    guarantee: ClassVar[str] = "each uploaded mean is over at least k images; no bound on what it tells about one"
    answers: ClassVar[tuple[Answer, ...]] = (
        Answer(("joint",), ("prototype",), note="inverts all images of a class together"),
        UNTOUCHED,
    )

    def check(self, plan: ProtectionPlan) -> None:
        """Refuse uploads that are not divided by class, and mixtures that do not say which classes have weight."""
        require(self.name, plan, BY_CLASS)
        refuse_false_labels(self.name, plan)

    def preserves_sensitivity(self) -> bool:
        """True: what stays is as it was."""
        return True

    def upload(self, message: Message, context: UploadContext) -> Message:
        """Return the message without rare classes; empty where nothing is left."""
        return drop_small_classes(message, context.class_counts, self.least)


def drop_small_classes(message: Message, class_counts: Tensor, least: int) -> Message:
    """Return a message without classes of fewer than ``least`` images, of ``(C,)``; empty where none is left."""
    kept: list[Payload] = []
    for payload in message:
        rest = _without(payload, class_counts, least)
        if rest is None:
            return ()
        kept.append(rest)
    return tuple(kept)


def _without(payload: Payload, class_counts: Tensor, least: int) -> Payload | None:
    weights, classes = payload.said("weights"), payload.said("classes")
    if weights is not None:
        return None if bool((class_counts[weights.cpu() != 0] < least).any()) else payload
    if classes is None:
        return payload
    rows = (class_counts[classes.cpu()] >= least).nonzero().squeeze(1).to(classes.device)
    return replace(payload, **{name: value[rows] for name, value in payload.tensors().items()}) if len(rows) else None
