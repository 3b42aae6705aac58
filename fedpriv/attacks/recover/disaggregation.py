"""The attack adapted to secure aggregation over rounds: who took part is known, so sums are equations.

The server sees y_t, the mean over the clients S_t of round t of their updates d_k. A client that does much the same in every
round (the same images, weights that move little) has about one update d_k, so that

    y_t = (1 / |S_t|) sum_{k in S_t} d_k + e_t

are T linear equations in K updates, determined where the sets S_t tell clients apart. What all clients do alike changes
from round to round together and falls out of no equation; ridge regression towards it, the mean update, carries what
does not. How much ridge is chosen by predicting each round's mean from the others'. With all clients in every round there is
one equation, however many rounds: that is refused.

Lam, Wei, Cao, Riviere and Oyallon (Lam et al.), "Gradient Disaggregation: Breaking Privacy in Federated Learning by
Reconstructing the User Participant Matrix" (ICML 2021), where participants are unknown; here the protocol says them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from fedpriv.attacks.contract import Attack, AttackProblem
from fedpriv.attacks.gradients.dlg import DeepLeakage
from fedpriv.attacks.gradients.inverting_gradients import InvertingGradients
from fedpriv.attacks.gradients.linear_layer import LinearLayer
from fedpriv.attacks.gradients.pooled import refuse_separate
from fedpriv.attacks.observation import Needs, Observation, Reconstruction, RequirementsByKind
from fedpriv.attacks.recover.angle_update import AngleUpdate
from fedpriv.attacks.recover.head_update import HeadUpdate
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import LAYERS, MAPPINGS, NETWORKS, UPDATES
from fedpriv.wire.payloads import Message, Payload

_RIDGES = (*(10.0**power for power in range(-6, 3)), math.inf)


@dataclass(frozen=True, kw_only=True)
class Disaggregation(Attack):
    """Tell each client's update of a network from means over changing clients, then match it.

    A target is one client's upload of the last round as a whole.

    Attributes:
        search: the attack on the update: ``inverting-gradients``, ``dlg`` or ``linear-layer``.
        iterations: of the search; ``dlg`` makes a call of L-BFGS of every twenty.
        restarts: of the search.
    """

    search: Literal["inverting-gradients", "dlg", "linear-layer"] = "inverting-gradients"
    iterations: Annotated[int, Ge(1)] = 2000
    restarts: Annotated[int, Ge(1)] = 1

    name = "disaggregate"
    summary = "each client's update from means over changing clients, then its images"
    targets = NETWORKS
    unit = "upload"
    budget = "iterations"
    only_by_name = True
    needs = Needs(batch=True, min_rounds=2)
    requirements_by_kind: ClassVar[RequirementsByKind] = (
        ((kind for kind in ("extractor",)), Needs(extractor=("white_box",), batch=True, min_rounds=2)),
    )

    def run(self, problem: AttackProblem) -> Reconstruction:
        """Take the means apart, then attack each client's part as its upload."""
        return self._searching().run(replace(problem, observations=apart(problem.observations)))

    def _searching(self) -> Attack:
        if self.search == "dlg":
            return DeepLeakage(outer_steps=-(-self.iterations // 20), restarts=self.restarts)
        made = {"inverting-gradients": InvertingGradients, "linear-layer": LinearLayer}[self.search]
        return made(iterations=self.iterations, restarts=self.restarts)
