"""One mixture of rows, as FedRE sends it, and one block of many, as FedRAL does, for the uploads of other methods."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from fedpriv.algebra.entanglement import Distribution, Mechanism, Normalisation, entangle, sample_weights
from fedpriv.algebra.matrices import dense, diagonal_blocks, published_blocks
from fedpriv.defenses.signals import LEARNED, SINGLE_NAMES, SignalDefense, changed
from fedpriv.federation.answer import Answer
from fedpriv.federation.defense import ProtectionPlan, UploadContext
from fedpriv.uploads.kinds import CLASS_MEANS, MAPPINGS, MIXTURES, SEPARATE, VECTORS, payload_kind
from fedpriv.uploads.ledger import Entry
from fedpriv.uploads.payloads import AngleMatrix, Entangled, Payload
from fedpriv.util.errors import UserError

_POSTERIOR = "one posterior over rounds gives the prototypes back where weights are resampled"


@dataclass(frozen=True)
class Entangle(SignalDefense):
    """Upload one mixture of a client's representations or prototypes, and of their labels with the same weights.

    The six mechanisms of :mod:`fedpriv.algebra.entanglement`. Prototypes are class means already, so of them only the
    mechanisms that weigh all images of a class alike are possible: VAR n_c / n, RSP one class, VAP 1 / m, RAP u_c /
    sum_j u_j. No guarantee. The label encoding travels in clear, and says every mixing weight.

    Attributes:
        mechanism: RSR, VAR, RAR, RSP, VAP or RAP.
        distribution: of random weights.
        normalisation: how draws become weights.
        weights: ``resampled`` every round, or ``fixed``: a server that waits sees no new equation.
    """

    mechanism: Mechanism = "RAP"
    distribution: Distribution = "uniform"
    normalisation: Normalisation = "absolute"
    weights: Literal["resampled", "fixed"] = "resampled"

    name = "entangle"
    mixes = True
    source = "Yao et al., FedRE; fixed weights derived here"
    answers = (Answer(("unmix",), ("entangled",), note=_POSTERIOR),)
    fits = SEPARATE

    def check(self, plan: ProtectionPlan) -> None:
        super().check(plan)
        if not any(kind in MIXTURES for kind in plan.accepted_substitutes):
            raise UserError(
                f"defense 'entangle': the server of method {plan.method!r} needs its rows one by one and does not take "
                "an entangled representation; methods that train a head on uploads do: fedgh, fedallrep"
            )
        if any(kind in CLASS_MEANS for kind in plan.uploads) and self.mechanism in ("RSR", "RAR"):
            raise UserError(
                f"options of defense entangle: mechanism: {self.mechanism} weighs single images, but method "
                f"{plan.method!r} uploads prototypes; use VAR, RSP, VAP or RAP"
            )

    def after(self, plan: ProtectionPlan) -> ProtectionPlan:
        uploads = tuple(Entangled.kind if kind in SEPARATE else kind for kind in plan.uploads)
        return replace(plan, uploads=uploads, options=self)

    def protected(self, payload: Payload, context: UploadContext) -> Payload:
        rng = context.client_rng if self.weights == "fixed" else context.rng
        labels = payload.said("classes")
        if payload.kind not in SEPARATE or labels is None:
            return payload
        classes, means = labels.cpu(), payload.kind in CLASS_MEANS
        if means and self.mechanism == "VAR":
            counts = context.class_counts[classes].float()
            weights = counts / counts.sum()
        else:  # of one row a class, weights by sample and weights by class are the same
            weights = sample_weights(classes, self.mechanism, rng, self.distribution, self.normalisation)
        if means:
            shares = torch.zeros(context.n_classes).index_copy_(0, classes, weights)
            of_images = (shares * (1 / context.class_counts))[context.labels]
        else:
            of_images = torch.zeros(len(context.labels))
            # Rows are the images in order, but for whole classes.
            of_images[torch.isin(context.labels, classes)] = weights
        context.trace.mixture(of_images)
        return Entangled(*entangle(payload.rows(), labels, weights, context.n_classes))


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

    name = "diagonal"
    source = "Yi et al., FedRAL, equation 6 (matrices); rows derived here"
    encodes = True
    answers = (
        Answer(("angle-update",), ("angle-matrix",), note="compares what was sent"),
        *LEARNED,
        Answer(
            ("unmix",), ("entangled",), {"zeros": "missing"}, note="unmixes each block from the rounds that show it"
        ),
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

    def protected(self, payload: Payload, context: UploadContext) -> Payload:
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
