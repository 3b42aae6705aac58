"""Traffic: every tensor that crossed the wire, the sizes of a round that is only planned, and the two ways of counting.

*paper* is the field's habit: labels, class ids and counts are left out. *full* is everything that a real wire would
carry, every client's copy of a broadcast too. Both in scalars and in bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from math import prod
from typing import Any, Literal, get_args

from fedpriv.models.split import Blueprint
from fedpriv.uploads.payload import Message
from fedpriv.util.errors import UserError

Direction = Literal["upload", "broadcast"]

Scalars = Mapping[tuple[Direction, str], int]
"""(direction, ``kind.field``) -> number of scalars, all clients of a round together; 0 for what is not sent."""


@dataclass(frozen=True)
class Entry:
    """One tensor on the wire, ``kind.field`` or ``kind.field/parameter``, sent or received by a client in a round from 1.

    ``bits`` is what all of it takes where it is encoded; None for ``itemsize`` bytes a scalar.
    """

    round: int
    client: int
    direction: Direction
    name: str
    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    in_paper_count: bool
    bits: int | None = None

    @property
    def scalars(self) -> int:
        """Number of scalars."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Number of bytes: as encoded, rounded up, else uncompressed."""
        return self.scalars * self.itemsize if self.bits is None else -(-self.bits // 8)


def entries(message: Message, round_: int, client: int, direction: Direction) -> list[Entry]:
    """Return one entry for every tensor of a message."""
    results = []
    for payload in message:
        paper = {spec.name: spec.metadata["paper"] for spec in fields(payload)}
        for name, value in payload.tensors().items():
            dtype, counted = str(value.dtype).removeprefix("torch."), paper[name.partition("/")[0]]
            current = (f"{payload.kind}.{name}", tuple(value.shape), dtype, value.element_size(), counted)
            results.append(Entry(round_, client, direction, *current))
    return results


def count(rows: Iterable[Entry]) -> dict[str, Counter[str]]:
    """Return for ``paper`` and ``full`` the ``upload_scalars``, ``broadcast_bytes``, ... of entries, also planned ones."""
    names = [f"{direction}_{unit}" for unit in ("scalars", "bytes") for direction in get_args(Direction)]
    totals = {way: Counter(dict.fromkeys(names, 0)) for way in ("paper", "full")}
    for row in rows:
        for way in ("paper", "full") if row.in_paper_count else ("full",):
            totals[way].update({f"{row.direction}_scalars": row.scalars, f"{row.direction}_bytes": row.bytes})
    return totals


_PAIRS = (
    "pairs, each a client and a class that it holds (10 clients that hold 3 classes each: pairs 30); "
    "or leave classes out, and they are counted from data"
)


@dataclass(frozen=True)
class FederationSizes:
    """Sizes of a federation in a settled round (not the first); what is unknown is None."""

    clients: int  # clients that take part, K
    classes: int  # number of classes C
    width: int  # representation width d
    options: Any = None  # the method's own options
    pairs: int | None = None  # (client, class) pairs in the training splits of the participants, P
    known_classes: int | None = None  # classes that at least one client holds; None for all C
    samples: int | None = None  # training images of the participants together
    model_scalars: int | None = None  # learnable parameters of one client's whole model
    all_model_scalars: int | None = None  # of all participants' models, where they differ; None for K times the former
    blueprint: Blueprint | None = None  # one client's architecture, for methods that build others like it
    clusters: int | None = None  # cluster prototypes over all classes, Q (FPL)
    compressed_scalars: int | None = None  # scalars of one compressed model (FedKD)
    public: int | None = None  # public images L that clients represent (FedHeNN)

    @property
    def head_scalars(self) -> int:
        """Parameters of the head: d C weights and C biases."""
        return self.width * self.classes + self.classes

    def all_models(self) -> int:
        """Return the parameters of all participants' models together."""
        if self.all_model_scalars is not None:
            return self.all_model_scalars
        return self.clients * int(self.need("model_scalars", "models", "model_scalars"))

    def need(self, name: str, *arguments: str) -> Any:
        """Return a fact that a method cannot do without."""
        value = getattr(self, name)
        if value is None:
            given = _PAIRS if name == "pairs" else " or ".join(arguments or (name,))
            raise UserError(f"this method's communication depends on {name.replace('_', ' ')}: pass {given}")
        return value
