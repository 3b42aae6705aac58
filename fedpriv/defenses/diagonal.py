"""Diagonal: FedRAL's sparse representations, for the uploads of other methods."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from fedpriv.algebra.matrices import dense, diagonal_blocks, published_blocks
from fedpriv.defenses.signals import LEARNED, SINGLE_NAMES, SignalDefense, changed
from fedpriv.federation.answer import Answer
from fedpriv.federation.defense import ProtectionPlan, UploadContext
from fedpriv.uploads.kinds import MAPPINGS, VECTORS, payload_kind
from fedpriv.uploads.ledger import Entry
from fedpriv.uploads.payloads import AngleMatrix, Message, Payload
from fedpriv.util.errors import UserError

_ZEROS = {"zeros": "missing"}


@dataclass(frozen=True)
class Diagonal(SignalDefense):
    """Keep one of m equal blocks. No guarantee: what is kept is exact.

    Of an angle matrix: the m blocks of side d / m on its diagonal, d^2 / m numbers (FedRAL, equation 6). **Every
    coordinate of the representation still appears**, in one block. Of rows (representations, prototypes, an entangled
    representation): one block of d / m coordinates, the others become zero: block (client + round) mod m with
    ``schedule`` = ``rotating``, so that m rounds show every coordinate once; block client mod m with ``fixed``.

    Attributes:
        blocks: m >= 2, a divisor of the width d.
        schedule: of rows, ``rotating`` or ``fixed``.
    """

    blocks: Annotated[int, Ge(2)] = 4
    schedule: Literal["rotating", "fixed"] = "rotating"

    name: ClassVar[str] = "diagonal"
    source: ClassVar[str] = "Yi et al., FedRAL, equation 6 (matrices); rows derived here"
    encodes: ClassVar[bool] = True
    answers = (
        Answer(("angle-update",), ("angle-matrix",), note="compares what was sent"),
        *LEARNED,
        Answer(("unmix",), ("entangled",), _ZEROS, note="unmixes each block from the rounds that show it"),
        Answer(("dip",), SINGLE_NAMES, {"match": "nonzero"}, {"schedule": "fixed"}, note="compares what was sent"),
    )
    fits = VECTORS | MAPPINGS

    def check(self, plan: ProtectionPlan) -> None:
        super().check(plan)
        width = plan.blueprints[0].width
        sent: tuple[int, ...] = (1,)
        if any(kind in MAPPINGS for kind in plan.uploads):
            sent = getattr(plan.options, "blocks", ()) or (published_blocks(width),)
        fitting = [m for m in range(2, width + 1) if width % m == 0 and not any(m % blocks for blocks in sent)]
        if self.blocks not in fitting:
            raise UserError(
                f"options of defense diagonal: blocks: {self.blocks} equal blocks cannot be kept of width {width}"
                + (f" in {' or '.join(map(str, sent))} blocks already" if max(sent) > 1 else "")
                + f"; possible: {', '.join(map(str, fitting))}"
            )

    def upload(self, message: Message, context: UploadContext) -> Message:
        return tuple(self._kept(payload, context) for payload in message)

    def _kept(self, payload: Payload, context: UploadContext) -> Payload:
        if isinstance(payload, AngleMatrix) and len(payload.blocks) < self.blocks:
            return AngleMatrix(diagonal_blocks(dense(payload.blocks), self.blocks))
        if payload.kind not in VECTORS:
            return payload
        turn = context.client + (context.round if self.schedule == "rotating" else 0)
        return changed(payload, context.broadcast, lambda _, rows: one_block(rows, self.blocks, turn % self.blocks))

    def wire_entries(self, entries: list[Entry]) -> list[Entry]:
        names = {f"{kind}.{payload_kind(kind).values_field()}" for kind in VECTORS}
        return [
            replace(entry, shape=(*entry.shape[:-1], entry.shape[-1] // self.blocks)) if entry.name in names else entry
            for entry in entries
        ]


def one_block(rows: Tensor, n_blocks: int, which: int) -> Tensor:
    """Return rows ``(..., d)`` with zeros outside block ``which`` of n equal blocks of coordinates."""
    side = rows.shape[-1] // n_blocks
    block = torch.zeros_like(rows)
    block[..., which * side : (which + 1) * side] = rows[..., which * side : (which + 1) * side]
    return block
