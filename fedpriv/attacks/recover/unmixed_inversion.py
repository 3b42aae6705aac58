"""The attack adapted to entangled uploads: unmix the class prototypes over rounds, then invert those.

What FedRE's evaluation inverts is one round's mixture, which resembles no image of anybody's, so that a low score is
certain and proves nothing. The mixing weights travel with the upload; see :mod:`fedpriv.attacks.recover.unmixing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

from fedpriv.attacks.invert.inversion import DipInversion
from fedpriv.attacks.observation import Knowledge, Needs, Observation, Progress, Reconstruction, TargetId, Unit
from fedpriv.attacks.recover.unmixing import Family, Unmixed, stack_rounds, unmix
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import MIXTURES
from fedpriv.wire.payloads import Entangled, Prototypes, part


@dataclass(frozen=True)
class UnmixedInversion:
    """Unmix a client's prototypes from all rounds seen, then invert each under a deep image prior.

    A target is one class of one client (``TargetId.label``), as of the last round.

    Attributes:
        family: which unmixing estimators may be chosen.
        iterations: most steps of a row of the inversion.
        restarts: rows a target of the inversion.
    """

    family: Family = "auto"
    iterations: Annotated[int, Ge(1)] = 800
    restarts: Annotated[int, Ge(1)] = 1

    name = "unmix"
    targets = MIXTURES
    unit: ClassVar[Unit] = "class"
    budget: ClassVar[str | None] = "iterations"
    needs = Needs(extractor=("white_box", "shadow"), min_rounds=2)

    def run(
        self,
        observations: tuple[Observation, ...],
        targets: tuple[TargetId, ...],
        knowledge: Knowledge,
        *,
        seed: int,
        device: torch.device,
        chunk_rows: int | None = None,
        progress: Progress | None = None,
    ) -> Reconstruction:
        """Unmix and invert; see :class:`fedpriv.attacks.observation.Attack`.

        Raises:
            UserError: when the card grants no white-box access or too few rounds, or a class never had weight.
        """
        self.needs.refuse(self.name, knowledge.card)
        recovered = {
            client: unmix_client(observations, client, self.family) for client in sorted({t.client for t in targets})
        }
        last = {target.client: target.round for target in targets}
        as_prototypes = tuple(
            Observation(last[client], client, (Prototypes(found.prototypes, classes),), ())
            for client, (found, classes) in recovered.items()
        )
        rows = tuple(replace(t, index=_position(recovered[t.client][1], t)) for t in targets)
        inverted = DipInversion(iterations=self.iterations, restarts=self.restarts).run(
            as_prototypes, rows, knowledge, seed=seed, device=device, chunk_rows=chunk_rows, progress=progress
        )
        features = torch.stack([recovered[t.client][0].prototypes[t.index] for t in rows])
        return replace(inverted, targets=targets, features=features)


def unmix_client(observations: Sequence[Observation], client: int, family: Family) -> tuple[Unmixed, Tensor]:
    """Unmix one client's uploads; return the estimate and the classes ``(m,)`` of its rows."""
    own = sorted((o for o in observations if o.client == client), key=lambda o: o.round)
    uploads = [part(o.upload, Entangled) for o in own]
    features, weights, classes = stack_rounds([u.feature for u in uploads], [u.label_encoding for u in uploads])
    return unmix(features, weights, family), classes


def _position(classes: Tensor, target: TargetId) -> int:
    places = (classes == target.label).nonzero()
    if not len(places):
        raise UserError(f"client {target.client} never gave class {target.label} any weight; nothing to unmix")
    return int(places[0])
