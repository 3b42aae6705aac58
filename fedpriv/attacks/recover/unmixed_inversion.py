"""The attack adapted to entangled uploads: unmix the class prototypes over rounds, then invert those.

What FedRE's evaluation inverts is one round's mixture, which resembles no image of anybody's, so that a low score is
certain and proves nothing. The mixing weights travel with the upload; see :mod:`fedpriv.attacks.recover.unmixing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.observation import Needs, Observation, TargetId
from fedpriv.attacks.recover.then_invert import Recovered, RecoverThenInvert, as_uploads
from fedpriv.attacks.recover.unmixing import Family, Unmixed, stack_rounds, unmix
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import MIXTURES
from fedpriv.wire.payloads import Entangled, get_payload


@dataclass(frozen=True, kw_only=True)
class UnmixedInversion(RecoverThenInvert):
    """Unmix a client's prototypes from all rounds seen, then invert each.

    A target is one class of one client (``TargetId.label``), as of the last round.

    Attributes:
        family: which unmixing estimators may be chosen.
    """

    family: Family = "auto"

    name = "unmix"
    summary = "class means unmixed from many rounds of mixtures, then inverted"
    targets = MIXTURES
    needs = Needs(min_rounds=2)

    def recover(self, problem: AttackProblem) -> Recovered:
        """Unmix every attacked client's prototypes.

        Raises:
            UserError: when a class never had weight.
        """
        clients = sorted({target.client for target in problem.targets})
        unmixed = {client: unmix_client(problem.observations, client, self.family) for client in clients}
        places = tuple(replace(t, index=_position(unmixed[t.client][1], t)) for t in problem.targets)
        found = [unmixed[place.client][0].prototypes[place.index] for place in places]
        return Recovered(as_uploads(found, places), places)


def unmix_client(observations: Sequence[Observation], client: int, family: Family) -> tuple[Unmixed, Tensor]:
    """Unmix one client's uploads; return the estimate and the classes ``(m,)`` of its rows."""
    own = sorted((o for o in observations if o.client == client), key=lambda o: o.round)
    uploads = [get_payload(o.upload, Entangled) for o in own]
    features, weights, classes = stack_rounds([u.feature for u in uploads], [u.label_encoding for u in uploads])
    return unmix(features, weights, family), classes


def _position(classes: Tensor, target: TargetId) -> int:
    places = (classes == target.label).nonzero()
    if not len(places):
        raise UserError(f"client {target.client} never gave class {target.label} any weight; nothing to unmix")
    return int(places[0])
