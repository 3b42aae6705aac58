"""Prune: only the largest entries are sent."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from annotated_types import Gt, Lt
from torch import Tensor

from fedpriv.defenses.signals import (
    CLASS_IDS,
    COMPARED,
    LEARNED,
    LIKENESS,
    NETWORK_NAMES,
    SEARCHES,
    VECTOR_NAMES,
    SignalDefense,
    is_signal,
)
from fedpriv.federation.answer import Answer
from fedpriv.federation.defense import UploadContext
from fedpriv.uploads.kinds import ROWS, UPDATES
from fedpriv.uploads.ledger import Entry

_SENT = "leaves out what was not sent"


@dataclass(frozen=True)
class Prune(SignalDefense):
    """Keep the entries of largest magnitude of each tensor of a signal; the others become zero.

    Of a network or an angle matrix, it is the update that is pruned: where nothing is sent, the server keeps what it
    broadcast. No guarantee: what is kept is exact, and its places are sent too: on the wire each kept entry costs its value
    and its place, or the places one bit for every entry of the tensor where that is shorter.

    Attributes:
        keep: share of the entries of each tensor that is sent, in (0, 1); at least one entry is.
    """

    keep: Annotated[float, Gt(0), Lt(1)] = 0.1

    name: ClassVar[str] = "prune"
    source: ClassVar[str] = "Zhu et al., NeurIPS 2019; Aji & Heafield, EMNLP 2017"
    encodes: ClassVar[bool] = True
    answers = (
        Answer(("dip", "pixels"), VECTOR_NAMES, {"match": "pruned"}, note=_SENT),
        Answer(("joint",), ("prototype",), {"match": "pruned"}, note=_SENT),
        *LEARNED,
        Answer(SEARCHES, NETWORK_NAMES, {"match": "sent"}, note=_SENT),
        *(LIKENESS, CLASS_IDS, COMPARED),
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
