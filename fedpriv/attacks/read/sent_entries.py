"""The part of a gradient that a client sent, where it pruned, truncated or reduced its update to signs, of candidates too.

A pruned update is exactly zero in most places. That says that the gradient was small there, not that it was zero; candidates
that are compared in all places are pulled to gradients without small entries. The server sees which places these are, and
leaves them out. An update of signs is compared with the signs of candidates, made smooth.

An update without its smallest entries and with its large ones truncated is *censored*: of what is zero it says that it was
below the smallest magnitude sent, of what has the largest magnitude that it was that or more. Candidates in keeping with
that are not pulled anywhere; others are, from however far.

Noise in proportion to each tensor leaves small tensors as clear as large ones, which decide alone where all entries count
alike. Taken *relative* to its root mean square in the update, every tensor has noise of one size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

GradientMatch = Literal["all", "sent", "signs", "censored", "relative"]
"""The compared part of an update: ``all`` entries; those ``sent``, which are not zero (``prune``); their ``signs``; all as
far as a ``censored`` update tells of them (``percentile-privacy``); or all ``relative`` to the tensor's size (``noise``)."""

_SMOOTH = 0.03
"""Width of the smooth sign, in root mean squares of the candidate's gradient."""

_TINY = 1e-30

_TRUNCATED = 1 - 1e-3
"""Share of the largest magnitude from which an entry counts as truncated: weights are rounded after it was added to them."""


@dataclass(frozen=True)
class SentEntries:
    """A projection of candidate gradients onto what N clients sent.

    Attributes:
        wanted: name -> observed gradient ``(N, ...)``; zero where nothing was sent.
        signs: whether it holds signs times one magnitude a tensor. Candidates' entries g then become
            ``magnitude * g / sqrt(g^2 + (0.03 rms(g))^2)``, with rms(g) over the entries that were sent.
        limits: ``(N, 2)`` smallest and largest magnitude sent, over all tensors, where updates are censored; else None.
        relative: name -> what a tensor is divided by ``(N, 1, ...)``; None for nothing.
    """

    wanted: Mapping[str, Tensor]
    signs: bool = False
    limits: Tensor | None = None
    relative: Mapping[str, Tensor] | None = None

    def __call__(self, gradient: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the projection of gradients ``(N, ...)`` by name."""
        if self.limits is not None:
            return {name: censored(value, self.wanted[name], self.limits) for name, value in gradient.items()}
        if self.relative is not None:
            return {name: value / self.relative[name] for name, value in gradient.items()}
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
    wanted = {name: value.unsqueeze(0) for name, value in gradient.items()}
    if match == "relative":
        return SentEntries(wanted, relative={name: _size(value) for name, value in wanted.items()})
    return SentEntries(wanted, match == "signs", _limits(gradient) if match == "censored" else None)


def censored(gradient: Tensor, wanted: Tensor, limits: Tensor) -> Tensor:
    """Return gradients ``(N, ...)`` less all that a censored update leaves open.

    Where nothing was sent, what exceeds the smallest magnitude sent; where the largest was sent, the gradient but no more
    than that; elsewhere the gradient. Equal to ``wanted`` for the gradient that it was made of.

    Args:
        gradient: of candidates, in the units of ``wanted``.
        wanted: ``(N, ...)`` as sent.
        limits: ``(N, 2)`` smallest and largest magnitude sent.
    """
    least, most = (limits[:, place].view(-1, *[1] * (wanted.dim() - 1)) for place in (0, 1))
    sign = wanted.sign()
    beyond = gradient.sign() * (gradient.abs() - least).clamp_min(0)
    shortened = sign * torch.minimum(sign * gradient, most)
    truncated = wanted.abs() >= _TRUNCATED * most
    return torch.where(wanted == 0, beyond, torch.where(truncated, shortened, gradient))


def _size(gradient: Tensor) -> Tensor:
    """Return the root mean square of each row of ``(N, ...)``, which broadcasts; one where all is zero."""
    size = gradient.square().flatten(1).mean(1).sqrt().view(-1, *[1] * (gradient.dim() - 1))
    return torch.where(size > 0, size, 1.0)


def _limits(gradient: Mapping[str, Tensor]) -> Tensor:
    """Return the smallest magnitude that is not zero, and the largest, over all tensors ``(1, 2)``; zeros for none."""
    magnitudes = torch.cat([value.detach().abs().flatten() for value in gradient.values()])
    kept = magnitudes[magnitudes > 0]
    return torch.stack([kept.min(), kept.max()])[None] if len(kept) else magnitudes.new_zeros(1, 2)


def stacked_entries(projections: Sequence[SentEntries]) -> SentEntries:
    """Return the projections of several updates of the same parameters as one."""
    wanted = {name: torch.cat([one.wanted[name] for one in projections]) for name in projections[0].wanted}
    limits = [one.limits for one in projections if one.limits is not None]
    sizes = [one.relative for one in projections if one.relative is not None]
    relative = {name: torch.cat([one[name] for one in sizes]) for name in sizes[0]} if sizes else None
    return SentEntries(wanted, projections[0].signs, torch.cat(limits) if limits else None, relative)
