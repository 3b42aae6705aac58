"""A variational bottleneck: representations pass through a small random code, so that gradients are random as well.

Scheliga, Maeder, Seeland: PRECODE - A Generic Model Extension to Prevent Deep Gradient Leakage, WACV 2022, section 3; the
bottleneck itself is that of Alemi, Fischer, Dillon, Murphy: Deep Variational Information Bottleneck, ICLR 2017.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

LEAST_DEVIATION = 1e-6
"""Softplus underflows to zero far below zero, where the logarithm in the divergence would be infinite."""


class VariationalBottleneck(nn.Module):
    """``(n, d)`` to ``(n, d)`` through a code ``z ~ N(mean, deviation^2)`` of K entries.

    In training the code is drawn from torch's global generator; in evaluation it is the mean. ``divergence`` is the mean
    over the newest training batch of KL(N(mean, deviation^2) || N(0, 1)), summed over the code, in nats.
    """

    def __init__(self, width: int, code: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(width, 2 * code)
        self.decoder = nn.Linear(code, width)
        self.divergence: Tensor | None = None

    def forward(self, vectors: Tensor) -> Tensor:
        """Return vectors ``(n, d)``."""
        mean, raw = self.encoder(vectors).chunk(2, 1)
        if not self.training:
            decoded: Tensor = self.decoder(mean)
            return decoded
        deviation = softplus(raw).clamp(min=LEAST_DEVIATION)
        self.divergence = divergence(mean, deviation)
        drawn: Tensor = self.decoder(mean + deviation * torch.randn_like(mean))
        return drawn

    def __getstate__(self) -> dict[str, Any]:
        """Leave the divergence behind: it hangs in a graph, which cannot be copied."""
        return self.__dict__ | {"divergence": None}


def divergence(mean: Tensor, deviation: Tensor) -> Tensor:
    """Return KL(N(mean, deviation^2) || N(0, 1)) in nats of ``(n, K)``, summed over a row, averaged over rows."""
    return (mean.square() + deviation.square() - 2 * deviation.log() - 1).sum(1).mean() / 2
