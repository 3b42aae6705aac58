"""The part of a gradient that a client sent, where it pruned its update or reduced it to signs, made of candidates too.

A pruned update is exactly zero in most places. That says that the gradient was small there, not that it was zero; candidates
that are compared in all places are pulled to gradients without small entries. The server sees which places these are, and
leaves them out. An update of signs is compared with the signs of candidates, made smooth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

GradientMatch = Literal["all", "sent", "signs"]
"""The compared part of an update: ``all`` entries; those ``sent``, which are not zero (``prune``); or their ``signs``."""

_SMOOTH = 0.03
"""Width of the smooth sign, in root mean squares of the candidate's gradient."""

_TINY = 1e-30


@dataclass(frozen=True)
class SentEntries:
    """A projection of candidate gradients onto what N clients sent.

    Attributes:
        wanted: name -> observed gradient ``(N, ...)``; zero where nothing was sent.
        signs: whether it holds signs times one magnitude a tensor. Candidates' entries g then become
            ``magnitude * g / sqrt(g^2 + (0.03 rms(g))^2)``, with rms(g) over the entries that were sent.
    """

    wanted: Mapping[str, Tensor]
    signs: bool = False

    def __call__(self, gradient: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the projection of gradients ``(N, ...)`` by name."""
        found = {}
        for name, value in gradient.items():
            sent = self.wanted[name] != 0
            kept = value * sent
            if self.signs:
                rows = tuple(range(1, value.dim()))
                number = sent.sum(rows, keepdim=True).clamp_min(1)
                square = kept.square().sum(rows, keepdim=True) / number
                magnitude = self.wanted[name].abs().amax(rows, keepdim=True)
                kept = magnitude * kept / (kept.square() + _SMOOTH**2 * square + _TINY).sqrt()
            found[name] = kept
        return found


def sent_entries(gradient: Mapping[str, Tensor], match: GradientMatch) -> SentEntries | None:
    """Return the projection for one observed gradient, by name and without leading axis; None for ``all``."""
    if match == "all":
        return None
    return SentEntries({name: value.unsqueeze(0) for name, value in gradient.items()}, match == "signs")


def stacked_entries(projections: Sequence[SentEntries]) -> SentEntries:
    """Return the projections of several updates of the same parameters as one."""
    names = projections[0].wanted
    return SentEntries(
        {name: torch.cat([one.wanted[name] for one in projections]) for name in names}, projections[0].signs
    )
