"""NVFlare's ``PercentilePrivacy``: leave out the smallest entries of an update, truncate the large ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from fedpriv.defenses.shared.adapted import LIKENESS, NETWORKS
from fedpriv.defenses.shared.signals import changed, require, signal
from fedpriv.federation.answer import NO_OTHERS, Answer
from fedpriv.federation.defense import Defense, ProtectionPlan, UploadContext
from fedpriv.wire.kinds import UPDATES
from fedpriv.wire.payloads import Message


@dataclass(frozen=True)
class PercentilePrivacy(Defense):
    """Zero the entries of an update below a percentile of all magnitudes, truncate the others to [-gamma, gamma].

    With n local steps as the client states them, u = update / n, and c the percentile (linear between order statistics) of
    |u| over all entries of all tensors of the upload:

        u <- 0 where |u| < c,    u <- min(max(u, -gamma), gamma),    update <- n u.

    Tensors without a dimension pass as they are. **No differential privacy**: nothing is random, what lies between the
    percentile and gamma is sent exactly, and which entries were too small or too large is told, too. Where NVFlare's filter
    is given whole weights instead of differences it truncates the weights; here it is always the difference from the
    broadcast, which is how the filter is meant.

    Attributes:
        percentile: in percent, [0, 100]; entries of smaller magnitude are not sent.
        gamma: > 0, in units of the weights and per step.
        steps: n as the client states it; clients that state none count as 1.
    """

    percentile: Annotated[float, Ge(0), Le(100)] = 10
    gamma: Annotated[float, Gt(0)] = 0.01
    steps: Annotated[int, Ge(1)] = 1

    name: ClassVar[str] = "percentile-privacy"
    source: ClassVar[str] = "PercentilePrivacy of NVFlare 2.9; Shokri and Shmatikov, CCS 2015 (selective sharing)"
    guarantee: ClassVar[str] = "none: no differential privacy, whatever the name says"
    answers: ClassVar[tuple[Answer, ...]] = (
        Answer(
            ("dlg", "inverting-gradients", "gradient-dip"),
            NETWORKS,
            {"match": "censored"},
            note="takes zeros for small entries, and the largest for truncated ones",
        ),
        LIKENESS,
    )
    unanswered: ClassVar[str] = NO_OTHERS

    def check(self, plan: ProtectionPlan) -> None:
        """Refuse methods that upload no updates."""
        require(self.name, plan, UPDATES)

    def upload(self, message: Message, context: UploadContext) -> Message:
        """Return the message with its updates thinned and truncated, by one percentile of them all."""
        signals = [signal(payload, context.broadcast) for payload in message]
        cutoff = magnitude_percentile([own for each in signals for own in each.values()], self.percentile, self.steps)

        def change(_: str, value: Tensor) -> Tensor:
            return truncated(value, cutoff, self.gamma, self.steps)

        return tuple(changed(payload, context.broadcast, change) for payload in message)


def magnitude_percentile(values: list[Tensor], percentile: float, steps: int = 1) -> float:
    """Return a percentile, in percent, of |v / steps| over all entries of several tensors; 0 where there are none."""
    flat = [value.abs().flatten() / steps for value in values if value.numel()]
    return float(np.percentile(torch.cat(flat).cpu().numpy(), percentile)) if flat else 0.0


def truncated(value: Tensor, cutoff: float, gamma: float, steps: int = 1) -> Tensor:
    """Return a tensor whose entries below the cutoff are zero, and whose others are at most gamma, both times ``steps``."""
    own = value / steps
    return (torch.where(own.abs() < cutoff, 0.0, own).clamp(-gamma, gamma) if own.dim() else own) * steps
