"""Shorten what is uploaded to a largest L2 norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Gt
from torch import Tensor

from fedpriv.defenses.shared.adapted import CLASS_IDS, COMPARED, LEARNED, LIKENESS, NETWORKS, VECTORS
from fedpriv.defenses.shared.signals import SignalDefense, changed, norm, signal
from fedpriv.federation.answer import Answer
from fedpriv.federation.defense import UploadContext
from fedpriv.wire.kinds import ROWS, UPDATES
from fedpriv.wire.payload import Message, Payload

_EXACT = "compares directions, which stay exact"


@dataclass(frozen=True)
class Clip(SignalDefense):
    """Scale down whatever is longer than a bound; shorter signals stay as they are.

    Of rows (representations, prototypes, an entangled representation, class outputs) every row is clipped by itself; of
    networks and angle matrices the whole update, the difference from the broadcast, all tensors of a payload together:

        v <- v min(1, bound / ||v||_2).

    No privacy guarantee by itself: directions stay exact. It bounds what one upload can move, which is what the noise
    of ``dp-noise`` is measured against.

    Attributes:
        bound: S > 0, L2 norm, in units of the representation or of the weights.
    """

    bound: Annotated[float, Gt(0)] = 1.0

    name: ClassVar[str] = "clip"
    source: ClassVar[str] = "McMahan et al., ICLR 2018 (updates); Abadi et al., CCS 2016"
    guarantee: ClassVar[str] = "none; bounds the L2 norm of each row, or of the whole update"
    answers = (
        Answer(("dip", "pixels"), VECTORS, {"match": "direction"}, note=_EXACT),
        Answer(("joint",), ("prototype",), {"match": "direction"}, note=_EXACT),
        *LEARNED,
        Answer(("inverting-gradients", "gradient-dip"), NETWORKS, note=_EXACT),
        *(LIKENESS, CLASS_IDS, COMPARED),
    )
    keeps_sensitivity: ClassVar[bool] = True  # a projection brings no two rows further apart
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
