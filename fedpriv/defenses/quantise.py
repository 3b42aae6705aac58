"""Quantise: entries are sent in few bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor

from fedpriv.defenses.signals import (
    LEARNED,
    SignalDefense,
    is_signal,
)
from fedpriv.federation.answer import Answer
from fedpriv.federation.defense import UploadContext
from fedpriv.uploads.ledger import Entry


@dataclass(frozen=True)
class Quantise(SignalDefense):
    """Round each entry at random to one of 2^b - 1 evenly spaced levels between -max and max of its tensor.

    With L = 2^(b - 1) - 1 and s = max_j |v_j|, an entry becomes s q / L for an integer q in -L..L, one of the two next
    to L v / s, the nearer with the greater probability, so that the expectation is v. Zero stays zero. No guarantee:
    at 8 bits a signal is hardly changed. On the wire: b bits an entry, and s as one float32 a tensor.

    Attributes:
        bits: b, from 2 to 16; for a single bit see ``sign``.
    """

    bits: Annotated[int, Ge(2), Le(16)] = 8

    name: ClassVar[str] = "quantise"
    source: ClassVar[str] = "Alistarh et al., NeurIPS 2017 (QSGD), with the largest entry in place of the norm"
    encodes: ClassVar[bool] = True
    answers = (*LEARNED, Answer(note="they match the rounded signal"))
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
