"""Sign: only signs are sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedpriv.defenses.quantise import coded
from fedpriv.defenses.signals import (
    LIKENESS,
    NETWORK_NAMES,
    SignalDefense,
)
from fedpriv.federation.answer import Answer
from fedpriv.federation.defense import UploadContext
from fedpriv.uploads.kinds import UPDATES
from fedpriv.uploads.ledger import Entry

_SEARCHES = ("inverting-gradients", "gradient-dip", "dlg")


SIGNS_PER_BYTE = 5
"""3^5 = 243 combinations of three values fit into a byte."""


@dataclass(frozen=True)
class Sign(SignalDefense):
    """Replace each entry of an update by its sign times the mean magnitude of the tensor's entries that are not zero.

    For networks and angle matrices, whose update (the difference from the broadcast) is what is sent. Zero stays zero,
    so there are three values: on the wire five entries take a byte, and each tensor one float32. No guarantee.
    """

    name: ClassVar[str] = "sign"
    source: ClassVar[str] = "Bernstein et al., ICML 2018 (signSGD); Karimireddy et al., ICML 2019 (scale)"
    encodes: ClassVar[bool] = True
    answers = (
        Answer(_SEARCHES, NETWORK_NAMES, {"match": "signs"}, note="compare smooth signs of candidates"),
        LIKENESS,
    )
    fits = UPDATES  # representations are hardly ever negative
    behind = ("prune",)

    def change(self, value: Tensor, context: UploadContext) -> Tensor:
        number = int(torch.count_nonzero(value))
        scale = value.abs().double().sum() / max(number, 1)
        return value.sign() * scale.to(value)

    def wire_entries(self, entries: list[Entry]) -> list[Entry]:
        return coded(entries, lambda scalars: 8 * -(-scalars // SIGNS_PER_BYTE))
