"""Clip: rows are no longer than a bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Gt
from torch import Tensor

from fedpriv.defenses.signals import (
    CLASS_IDS,
    COMPARED,
    LEARNED,
    LIKENESS,
    NETWORK_NAMES,
    VECTOR_NAMES,
    SignalDefense,
    changed,
    norm,
    signal,
)
from fedpriv.federation.answer import Answer
from fedpriv.federation.defense import UploadContext
from fedpriv.uploads.kinds import ROWS, UPDATES
from fedpriv.uploads.payload import Message, Payload

_EXACT = "compares directions, which stay exact"


@dataclass(frozen=True)
class Clip(SignalDefense):
    """Scale down whatever is longer than a bound: v <- v min(1, bound / ||v||_2).

    Of rows (representations, prototypes, an entangled representation, class outputs) every row by itself; of networks
    and angle matrices the whole update, all tensors of a payload together. No privacy guarantee by itself: directions
    stay exact.

    Attributes:
        bound: S > 0, L2 norm, in units of the representation or of the weights.
    """

    bound: Annotated[float, Gt(0)] = 1.0

    name: ClassVar[str] = "clip"
    source: ClassVar[str] = "McMahan et al., ICLR 2018 (updates); Abadi et al., CCS 2016"
    guarantee: ClassVar[str] = "none; bounds the L2 norm of each row, or of the whole update"
    answers = (
        Answer(("dip", "pixels"), VECTOR_NAMES, {"match": "direction"}, note=_EXACT),
        Answer(("joint",), ("prototype",), {"match": "direction"}, note=_EXACT),
        *LEARNED,
        Answer(("inverting-gradients", "gradient-dip"), NETWORK_NAMES, note=_EXACT),
        *(LIKENESS, CLASS_IDS, COMPARED),
    )
    fits = ROWS | UPDATES

    def upload(self, message: Message, context: UploadContext) -> Message:
        return tuple(_clipped(payload, context.broadcast, self.bound) for payload in message)


def _clipped(payload: Payload, broadcast: Message, bound: float) -> Payload:
    if payload.kind in ROWS:
        return changed(payload, broadcast, lambda _, value: clip_rows(value, bound))
    length = norm(signal(payload, broadcast))
    return changed(payload, broadcast, lambda _, value: value * (bound / length)) if length > bound else payload


def clip_rows(rows: Tensor, bound: float) -> Tensor:
    """Return rows ``(n, d)``, or one row ``(d,)``, of L2 norm at most ``bound``."""
    lengths = rows.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    shares: Tensor = (bound / lengths).clamp(max=1)
    return rows * shares
