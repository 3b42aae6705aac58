"""Entries of a signal are shortened, left out, or sent in few bits; each is computed from the signal alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor

from fedpriv.defenses import signals
from fedpriv.defenses.signals import SignalDefense, changed, is_signal, norm, signal, transform
from fedpriv.federation.answer import Answer
from fedpriv.federation.defense import UploadContext
from fedpriv.uploads.kinds import ROWS, UPDATES
from fedpriv.uploads.ledger import Entry
from fedpriv.uploads.payload import Message, Payload

_EXACT = "compares directions, which stay exact"
_SENT = "leaves out what was not sent"
_CENSORED = "takes zeros for small entries, and the largest for truncated ones"
SIGNS_PER_BYTE = 5
"""3^5 = 243 combinations of three values fit into a byte."""


@dataclass(frozen=True)
class Clip(SignalDefense):
    """Scale down whatever is longer than a bound: v <- v min(1, bound / ||v||_2).

    Of rows (representations, prototypes, an entangled representation, class outputs) every row by itself; of networks
    and angle matrices the whole update, all tensors of a payload together. No privacy guarantee by itself: directions
    stay exact. The ``bound`` is in units of the representation or of the weights.
    """

    bound: Annotated[float, Gt(0)] = 1.0

    name = "clip"
    source = "McMahan et al., ICLR 2018 (updates); Abadi et al., CCS 2016"
    guarantee = "none; bounds the L2 norm of each row, or of the whole update"
    answers = (
        Answer(("dip", "pixels"), signals.VECTOR_NAMES, {"match": "direction"}, note=_EXACT),
        *signals.LEARNED,
        Answer(("inverting-gradients",), signals.NETWORK_NAMES, note=_EXACT),
        *signals.UNCHANGED,
    )
    fits = ROWS | UPDATES

    def protected(self, payload: Payload, context: UploadContext) -> Payload:
        if payload.kind in ROWS:
            return changed(payload, context.broadcast, lambda _, value: clip_rows(value, self.bound))
        length = norm(signal(payload, context.broadcast))
        if not length > self.bound:
            return payload
        return changed(payload, context.broadcast, lambda _, value: value * (self.bound / length))


def clip_rows(rows: Tensor, bound: float) -> Tensor:
    """Return rows ``(n, d)``, or one row ``(d,)``, of L2 norm at most ``bound``."""
    lengths = rows.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    shares: Tensor = (bound / lengths).clamp(max=1)
    return rows * shares


@dataclass(frozen=True)
class Prune(SignalDefense):
    """Keep the entries of largest magnitude of each tensor of a signal; the others become zero.

    Of a network or an angle matrix, it is the update that is pruned: where nothing is sent, the server keeps what it
    broadcast. No guarantee: what is kept is exact, and its places are sent too: on the wire each kept entry costs its value
    and its place, or the places one bit for every entry of the tensor where that is shorter. ``keep`` is the share of the
    entries of each tensor that is sent, in (0, 1); at least one entry is.
    """

    keep: Annotated[float, Gt(0), Lt(1)] = 0.1

    name = "prune"
    source = "Zhu et al., NeurIPS 2019; Aji & Heafield, EMNLP 2017"
    encodes = True
    answers = (
        Answer(("dip", "pixels"), signals.VECTOR_NAMES, {"match": "pruned"}, note=_SENT),
        *signals.LEARNED,
        Answer(signals.SEARCHES, signals.NETWORK_NAMES, {"match": "sent"}, note=_SENT),
        *signals.UNCHANGED,
    )
    fits = ROWS | UPDATES

    def change(self, value: Tensor, context: UploadContext) -> Tensor:
        return pruned(value, self.keep)

    def wire_entries(self, entries: list[Entry]) -> list[Entry]:
        return [part for entry in entries for part in (self._sparse(entry) if is_signal(entry) else [entry])]

    def _sparse(self, entry: Entry) -> list[Entry]:
        size = entry.scalars
        number = kept(size, self.keep)
        places = min(size, number * max(1, math.ceil(math.log2(max(size, 1)))))
        return [
            replace(entry, shape=(number,)),
            replace(entry, name=f"{entry.name}#places", shape=(number,), dtype="bits", itemsize=0, bits=places),
        ]


def kept(size: int, share: float) -> int:
    """Return the number of entries that a share of ``size`` is: at least one, if there is any."""
    return min(size, max(1, math.ceil(share * size - 1e-9)))


def pruned(value: Tensor, share: float) -> Tensor:
    """Return a tensor with all but its largest entries (in magnitude; of equals the first) set to zero."""
    flat = value.flatten()
    order = torch.sort(flat.abs(), descending=True, stable=True).indices[: kept(len(flat), share)]
    return torch.zeros_like(flat).index_copy_(0, order, flat[order]).reshape(value.shape)


@dataclass(frozen=True)
class Quantise(SignalDefense):
    """Round each entry at random to one of 2^b - 1 evenly spaced levels between -max and max of its tensor.

    With L = 2^(b - 1) - 1 and s = max_j |v_j|, an entry becomes s q / L for an integer q in -L..L, one of the two next
    to L v / s, the nearer with the greater probability, so that the expectation is v. Zero stays zero. No guarantee:
    at 8 bits a signal is hardly changed. On the wire: b bits an entry, and s as one float32 a tensor. ``bits`` is b, from 2
    to 16; for a single bit see ``sign``.
    """

    bits: Annotated[int, Ge(2), Le(16)] = 8

    name = "quantise"
    source = "Alistarh et al., NeurIPS 2017 (QSGD), with the largest entry in place of the norm"
    encodes = True
    answers = (*signals.LEARNED, Answer(note="they match the rounded signal"))
    behind = ("prune", "diagonal")

    def change(self, value: Tensor, context: UploadContext) -> Tensor:
        return quantised(value, self.bits, context.rng)

    def wire_entries(self, entries: list[Entry]) -> list[Entry]:
        return coded(entries, lambda scalars: scalars * self.bits)


def coded(entries: list[Entry], bits: Callable[[int], int]) -> list[Entry]:
    """Return entries whose signals take so many bits for so many scalars, and a float32 that each tensor is scaled by."""
    result = []
    for entry in entries:
        if is_signal(entry):
            result.append(replace(entry, bits=bits(entry.scalars)))
            entry = replace(entry, name=f"{entry.name}#scale", shape=(1,), bits=None)
        result.append(entry)
    return result


def quantised(value: Tensor, bits: int, rng: torch.Generator) -> Tensor:
    """Return a tensor of any shape, stochastically rounded; see :class:`Quantise`."""
    levels = 2 ** (bits - 1) - 1
    scale = value.abs().max() if value.numel() else value.new_zeros(())
    if not bool(scale > 0):
        return value.clone()
    position = value.double() / scale.double() * levels
    below = position.floor()
    up = torch.rand(value.shape, generator=rng, dtype=torch.float64).to(value.device) < position - below
    rounded: Tensor = (below + up) * (scale.double() / levels)
    return rounded.to(value.dtype)


@dataclass(frozen=True)
class Sign(SignalDefense):
    """Replace each entry of an update by its sign times the mean magnitude of the tensor's entries that are not zero.

    For networks and angle matrices, whose update (the difference from the broadcast) is what is sent. Zero stays zero,
    so there are three values: on the wire five entries take a byte, and each tensor one float32. No guarantee.
    """

    name = "sign"
    source = "Bernstein et al., ICML 2018 (signSGD); Karimireddy et al., ICML 2019 (scale)"
    encodes = True
    answers = (
        Answer(signals.SEARCHES, signals.NETWORK_NAMES, {"match": "signs"}, note="compare smooth signs of candidates"),
        signals.LIKENESS,
    )
    fits = UPDATES  # representations are hardly ever negative
    behind = ("prune",)

    def change(self, value: Tensor, context: UploadContext) -> Tensor:
        number = int(torch.count_nonzero(value))
        scale = value.abs().double().sum() / max(number, 1)
        return value.sign() * scale.to(value)

    def wire_entries(self, entries: list[Entry]) -> list[Entry]:
        return coded(entries, lambda scalars: 8 * -(-scalars // SIGNS_PER_BYTE))


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

    name = "percentile-privacy"
    source = "PercentilePrivacy of NVFlare 2.9; Shokri and Shmatikov, CCS 2015 (selective sharing)"
    guarantee = "none: no differential privacy, whatever the name says"
    answers = (Answer(signals.SEARCHES, signals.NETWORK_NAMES, {"match": "censored"}, note=_CENSORED), signals.LIKENESS)
    fits = UPDATES

    def upload(self, message: Message, context: UploadContext) -> Message:
        values = [value for payload in message for value in signal(payload, context.broadcast).values()]
        flat = [value.abs().flatten() / self.steps for value in values if value.numel()]
        cutoff = float(np.percentile(torch.cat(flat).cpu().numpy(), self.percentile)) if flat else 0.0
        return transform(message, context.broadcast, lambda _, value: truncated(value, cutoff, self.gamma, self.steps))


def truncated(value: Tensor, cutoff: float, gamma: float, steps: int = 1) -> Tensor:
    """Return a tensor whose entries below the cutoff are zero, and whose others are at most gamma, both times ``steps``."""
    step = value / steps
    return (torch.where(step.abs() < cutoff, 0.0, step).clamp(-gamma, gamma) if step.dim() else step) * steps
