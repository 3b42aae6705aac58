"""The loss behind uploaded weights as the protocol tells it to an outsider: public, so attackers know it too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Through = Literal["cross_entropy", "logits", "representation"]
"""Where the derivative of the loss comes from, seen from the uploaded network:

``cross_entropy``: its own logits and the labels say it. ``logits``: it is that of some function of its logits, for example
of a private model's answers too. ``representation``: private parts send derivatives to its representations as well.
"""


@dataclass(frozen=True)
class PublicLoss:
    """The loss of one round's local steps, as far as it is known.

    Attributes:
        through: see :data:`Through`.
        head_apart: whether the update of the head is not the gradient of that loss, because the head began elsewhere, is
            behind something private, or has a loss of its own.
        proximal: weight mu of mu / 2 |w - w_broadcast|^2 in the loss.
        besides: in words, what else moves the uploaded weights from the first step on, and cannot be computed by an
            outsider or is not by the attacks; empty for nothing.
        later: likewise, what moves them from the second step of a round on.
    """

    through: Through = "cross_entropy"
    head_apart: bool = False
    proximal: float = 0.0
    besides: str = ""
    later: str = ""
