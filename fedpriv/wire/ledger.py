"""The ledger: every tensor that crossed the wire, and the two ways of counting it.

*paper* is the field's habit: labels, class ids and counts are left out. *full* is everything that a real wire would
carry. Both in scalars and in bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Literal

from fedpriv.wire.payloads import Message

Direction = Literal["upload", "broadcast"]


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


@dataclass(frozen=True)
class Count:
    """Scalars and bytes by one way of counting."""

    upload_scalars: int = 0
    broadcast_scalars: int = 0
    upload_bytes: int = 0
    broadcast_bytes: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(
            self.upload_scalars + other.upload_scalars,
            self.broadcast_scalars + other.broadcast_scalars,
            self.upload_bytes + other.upload_bytes,
            self.broadcast_bytes + other.broadcast_bytes,
        )


def entries(message: Message, round_: int, client: int, direction: Direction) -> list[Entry]:
    """Return one entry for every tensor of a message."""
    return [
        Entry(
            round=round_,
            client=client,
            direction=direction,
            name=f"{payload.kind}.{name}",
            shape=tuple(value.shape),
            dtype=str(value.dtype).removeprefix("torch."),
            itemsize=value.element_size(),
            in_paper_count=payload.in_paper_count(name),
        )
        for payload in message
        for name, value in payload.tensors().items()
    ]


@dataclass(frozen=True)
class Item:
    """One kind of tensor of a planned round, all clients together: direction, ``kind.field``, and bytes of a scalar."""

    direction: Direction
    name: str
    scalars: int
    in_paper_count: bool = True
    itemsize: int = 4

    @property
    def bytes(self) -> int:
        """Number of bytes."""
        return self.scalars * self.itemsize


def count(rows: Iterable[Entry | Item]) -> dict[str, Count]:
    """Return ``{"paper": Count, "full": Count}`` summed over entries, or over a planned round's items."""
    totals = {"paper": Count(), "full": Count()}
    for row in rows:
        own = (
            Count(upload_scalars=row.scalars, upload_bytes=row.bytes)
            if row.direction == "upload"
            else Count(broadcast_scalars=row.scalars, broadcast_bytes=row.bytes)
        )
        totals["full"] += own
        if row.in_paper_count:
            totals["paper"] += own
    return totals
