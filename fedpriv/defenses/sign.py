"""Send signs only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedpriv.defenses.quantise import coded
from fedpriv.defenses.shared.adapted import LIKENESS, NETWORKS
from fedpriv.defenses.shared.signals import require, transform
from fedpriv.federation.answer import NO_OTHERS, Answer
from fedpriv.federation.defense import Defense, ProtectionPlan, UploadContext
from fedpriv.wire.kinds import UPDATES
from fedpriv.wire.ledger import Entry
from fedpriv.wire.payloads import Message

SIGNS_PER_BYTE = 5
"""3^5 = 243 combinations of three values fit into a byte."""


@dataclass(frozen=True)
class Sign(Defense):
    """Replace each entry of an update by its sign times the mean magnitude of the tensor's entries that are not zero.

    For networks and angle matrices, whose update (the difference from the broadcast) is what is sent. Zero stays zero,
    so there are three values: on the wire five entries take a byte, and each tensor one float32. No guarantee.
    """

    name: ClassVar[str] = "sign"
    source: ClassVar[str] = "Bernstein et al., ICML 2018 (signSGD); Karimireddy et al., ICML 2019 (scale)"
    encodes: ClassVar[bool] = True
    guarantee: ClassVar[str] = "none"
    answers: ClassVar[tuple[Answer, ...]] = (
        Answer(
            ("inverting-gradients", "gradient-dip", "dlg"),
            NETWORKS,
            {"match": "signs"},
            note="compare smooth signs of candidates",
        ),
        LIKENESS,
    )
    unanswered: ClassVar[str] = NO_OTHERS

    def check(self, plan: ProtectionPlan) -> None:
        """Refuse methods that upload no updates: representations are hardly ever negative."""
        require(self.name, plan, UPDATES, behind=("prune",))

    def upload(self, message: Message, context: UploadContext) -> Message:
        """Return the message with the signs of its updates."""
        return transform(message, context.broadcast, lambda _, value: scaled_sign(value))

    def wire_entries(self, entries: list[Entry]) -> list[Entry]:
        """Return five entries to a byte, and a scale a tensor."""
        return coded(entries, lambda scalars: 8 * -(-scalars // SIGNS_PER_BYTE))


def scaled_sign(value: Tensor) -> Tensor:
    """Return sign(v) times the mean of |v| over entries that are not zero, in the shape of v."""
    number = int(torch.count_nonzero(value))
    scale = value.abs().double().sum() / max(number, 1)
    return value.sign() * scale.to(value)
