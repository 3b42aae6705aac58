"""Send each entry in a few bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor

from fedpriv.defenses.shared.adapted import LEARNED
from fedpriv.defenses.shared.signals import is_signal, require, transform
from fedpriv.federation.answer import Answer
from fedpriv.federation.defense import Defense, ProtectionPlan, UploadContext
from fedpriv.wire.kinds import SIGNALS
from fedpriv.wire.ledger import Entry
from fedpriv.wire.payloads import Message


@dataclass(frozen=True)
class Quantise(Defense):
    """Round each entry at random to one of 2^b - 1 evenly spaced levels between -max and max of its tensor.

    With L = 2^(b - 1) - 1 and s = max_j |v_j|, an entry becomes s q / L for an integer q in -L..L, one of the two next
    to L v / s, the nearer with the greater probability, so that the expectation is v. Zero stays zero. No guarantee:
    at 8 bits a signal is hardly changed.

    On the wire: b bits an entry, and s as one float32 a tensor. For a single bit see ``sign``.

    Attributes:
        bits: b, from 2 to 16.
    """

    bits: Annotated[int, Ge(2), Le(16)] = 8

    name: ClassVar[str] = "quantise"
    source: ClassVar[str] = "Alistarh et al., NeurIPS 2017 (QSGD), with the largest entry in place of the norm"
    encodes: ClassVar[bool] = True
    guarantee: ClassVar[str] = "none"
    answers: ClassVar[tuple[Answer, ...]] = (
        *LEARNED,
        Answer(("average",), ("representation", "prototype"), note="means over rounds"),
        Answer(note="they match the rounded signal"),
    )

    def check(self, plan: ProtectionPlan) -> None:
        """Refuse methods that upload no signal."""
        require(self.name, plan, SIGNALS, behind=("prune", "diagonal"))

    def upload(self, message: Message, context: UploadContext) -> Message:
        """Return the message with rounded signals, as the server decodes them."""
        return transform(message, context.broadcast, lambda _, value: quantised(value, self.bits, context.rng))

    def wire_entries(self, entries: list[Entry]) -> list[Entry]:
        """Return b bits an entry, and a scale a tensor."""
        return coded(entries, lambda scalars: scalars * self.bits)


def coded(entries: list[Entry], bits: Callable[[int], int]) -> list[Entry]:
    """Return entries whose signals take so many bits for so many scalars, and a float32 that each tensor is scaled by."""
    found = []
    for entry in entries:
        if is_signal(entry):
            found.append(replace(entry, bits=bits(entry.scalars)))
            entry = replace(entry, name=f"{entry.name}#scale", shape=(1,), bits=None)
        found.append(entry)
    return found


def quantised(value: Tensor, bits: int, rng: torch.Generator) -> Tensor:
    """Return a tensor of any shape, stochastically rounded; see :class:`Quantise`."""
    levels = 2 ** (bits - 1) - 1
    scale = value.abs().max() if value.numel() else value.new_zeros(())
    if not bool(scale > 0):
        return value.clone()
    wanted = value.double() / scale.double() * levels
    below = wanted.floor()
    up = torch.rand(value.shape, generator=rng, dtype=torch.float64).to(value.device) < wanted - below
    rounded: Tensor = (below + up) * (scale.double() / levels)
    return rounded.to(value.dtype)
