"""Percentile privacy of NVFlare: small entries are dropped, large ones truncated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from fedpriv.defenses.signals import (
    LIKENESS,
    NETWORK_NAMES,
    SEARCHES,
    SignalDefense,
    signal,
    transform,
)
from fedpriv.federation.answer import Answer
from fedpriv.federation.defense import UploadContext
from fedpriv.uploads.kinds import UPDATES
from fedpriv.uploads.payload import Message

_CENSORED = "takes zeros for small entries, and the largest for truncated ones"


@dataclass(frozen=True)
class PercentilePrivacy(SignalDefense):
    """Zero the entries of an update below a percentile of all magnitudes, truncate the others to [-gamma, gamma].

    With n local steps as the client states them, u = update / n, and c the percentile (linear between order statistics)
    of |u| over all tensors of the upload: u <- 0 where |u| < c, then u <- min(max(u, -gamma), gamma), update <- n u.
    Tensors without a dimension pass as they are. **No differential privacy**: nothing is random, and what lies between
    the percentile and gamma is sent exactly. Always the difference from the broadcast, also where NVFlare's filter
    would be given whole weights.

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
    answers = (Answer(SEARCHES, NETWORK_NAMES, {"match": "censored"}, note=_CENSORED), LIKENESS)
    fits = UPDATES

    def upload(self, message: Message, context: UploadContext) -> Message:
        values = [value for payload in message for value in signal(payload, context.broadcast).values()]
        flat = [value.abs().flatten() / self.steps for value in values if value.numel()]
        cutoff = float(np.percentile(torch.cat(flat).cpu().numpy(), self.percentile)) if flat else 0.0
        change = lambda _, value: truncated(value, cutoff, self.gamma, self.steps)  # noqa: E731
        return transform(message, context.broadcast, change)


def truncated(value: Tensor, cutoff: float, gamma: float, steps: int = 1) -> Tensor:
    """Return a tensor whose entries below the cutoff are zero, and whose others are at most gamma, both times ``steps``."""
    step = value / steps
    return (torch.where(step.abs() < cutoff, 0.0, step).clamp(-gamma, gamma) if step.dim() else step) * steps
