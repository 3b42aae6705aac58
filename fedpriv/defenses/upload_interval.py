"""Upload interval: clients upload in some rounds only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

from fedpriv.defenses.signals import UNTOUCHED, SignalDefense
from fedpriv.federation.answer import Answer
from fedpriv.federation.defense import ProtectionPlan, UploadContext
from fedpriv.uploads.kinds import payload_kind
from fedpriv.uploads.payload import Message
from fedpriv.util.errors import UserError


@dataclass(frozen=True)
class UploadInterval(SignalDefense):
    """Send the uploads of rounds k, 2 k, 3 k, ... and of no other; clients train in all of them.

    The server sees 1 / k of the equations. No guarantee: what is sent is sent whole.

    Attributes:
        k: >= 2, rounds from one upload to the next.
    """

    k: Annotated[int, Ge(2)] = 5

    name: ClassVar[str] = "upload-interval"
    source: ClassVar[str] = "derived here"
    guarantee: ClassVar[str] = "none; 1 / k as many uploads"
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

    def period(self) -> int:
        return self.k

    def upload(self, message: Message, context: UploadContext) -> Message:
        return message if context.round % self.k == 0 else ()
