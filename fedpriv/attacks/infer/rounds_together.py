"""Several rounds of one client side by side: whitened, and how alike they show the same image.

An image deviates from what is expected of it in every round, under the extractor of each; extractors move, and defenses
leave other entries out, so that what two rounds t and s show of it is alike in part. The attacker's own images say how far:
with their deviations Z, whitened by what is known of the scatter of each round,

    C_ts = tr Z_t^T Z_s / (|Z_t| |Z_s|).

Whitening is by the symmetric root of the inverse, which changes little where an extractor does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.attacks.infer.class_scatter import TINY, Scatter, scatter
from fedpriv.attacks.infer.sent_means import Round


@dataclass(frozen=True)
class Together:
    """Rounds of one client.

    Attributes:
        rounds: T of them.
        scatters: of own images, one each.
        lengths: mean squared length of a whitened own image in each ``(T,)`` float64.
        alike: C ``(T, T)``.
    """

    rounds: tuple[Round, ...]
    scatters: tuple[Scatter, ...]
    lengths: Tensor
    alike: Tensor

    @property
    def noise(self) -> Tensor:
        """Squared length of what defenses add to a whitened row of each round, over that of an own image ``(T,)``."""
        added = [one.noise * there.trace for one, there in zip(self.rounds, self.scatters, strict=True)]
        return torch.tensor(added, dtype=torch.float64) / self.lengths.clamp_min(TINY)

    def chosen(self, which: Sequence[bool]) -> Together:
        """Return some of the rounds."""
        kept = [place for place, one in enumerate(which) if one]
        rounds, scatters = [self.rounds[place] for place in kept], [self.scatters[place] for place in kept]
        return Together(tuple(rounds), tuple(scatters), self.lengths[kept], self.alike[kept][:, kept])


def together(rounds: Sequence[Round], own_labels: Tensor) -> Together:
    """Return rounds side by side.

    Args:
        rounds: at least one, with the attacker's own images ``(m, d)`` each.
        own_labels: their classes ``(m,)``.
    """
    scatters = tuple(scatter(one.own, own_labels, one.noise) for one in rounds)
    rows = [whitened(there, one.own, own_labels).flatten() for one, there in zip(rounds, scatters, strict=True)]
    squares = torch.stack([row.square().sum() for row in rows])
    unit = torch.stack([row / square.clamp_min(TINY).sqrt() for row, square in zip(rows, squares, strict=True)])
    return Together(tuple(rounds), scatters, squares / max(1, len(own_labels)), unit @ unit.T)


def whitened(there: Scatter, features: Tensor, labels: Tensor) -> Tensor:
    """Return whitened deviations of representations ``(n, d)`` from what is expected of their classes ``(n,)``."""
    found: Tensor = there.whiten(features - torch.stack([there.mean(int(label)) for label in labels]))
    return found


def off(one: Round, there: Scatter, place: int = 0) -> Tensor:
    """Return the whitened deviation ``(d,)`` of a row of what was sent."""
    found: Tensor = there.whiten(one.sent.deviation(there, place)[None])[0]
    return found
