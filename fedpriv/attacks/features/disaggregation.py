"""The attack adapted to secure aggregation over rounds: who took part is known, so sums are equations.

The server sees y_t, the mean over the clients S_t of round t of their updates d_k, about the same in every round:

    y_t = (1 / |S_t|) sum_{k in S_t} d_k + e_t

are T linear equations in K updates, solved by ridge regression towards the mean update, which all clients share and no
equation tells; the ridge predicts each round's mean best from the others'. With all clients in every round there is one
equation, and that is refused.

Lam, Wei, Cao, Riviere and Oyallon, "Gradient Disaggregation: Breaking Privacy in Federated Learning by Reconstructing the
User Participant Matrix" (ICML 2021), where participants are unknown; here the protocol says them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from fedpriv.attacks.contract import Attack, AttackProblem
from fedpriv.attacks.features.base import Recovered, RecoverThenInvert
from fedpriv.attacks.features.closed_form import AngleUpdate, HeadUpdate
from fedpriv.attacks.features.unmixing import best_ridge, ridge_regression
from fedpriv.attacks.gradients.secure_sum import inner_search, refuse_separate
from fedpriv.attacks.inputs.targets import upload_holds
from fedpriv.attacks.observation import Needs, Observation, Reconstruction, RequirementsByKind, TargetId
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import EXTRACTORS, LAYERS, MAPPINGS, NETWORKS, UPDATES, Kinds
from fedpriv.wire.payloads import Message, Payload


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
    version = 4
    targets = Kinds(lambda kind: NETWORKS.test(kind) and UPDATES.test(kind))
    unit = "upload"
    budget = "iterations"
    only_by_name = True
    needs = Needs(batch=True, min_rounds=2)
    requirements_by_kind: ClassVar[RequirementsByKind] = (
        (EXTRACTORS, Needs(extractor=("white_box",), batch=True, min_rounds=2)),
    )

    def select(self, observations: Sequence[Observation], targets: Sequence[TargetId]) -> tuple[TargetId, ...]:
        """Return all targets, or refuse uploads that the server sees one by one."""
        refuse_separate(observations)
        return tuple(targets)

    def run(self, problem: AttackProblem) -> Reconstruction:
        """Take the means apart, then attack each client's part as its upload."""
        parts, apart = taken_apart(problem)
        search = inner_search(self.search, self.iterations, self.restarts)
        result = search.run(replace(problem, observations=parts))
        return replace(result, converged=result.converged & apart.to(result.converged.device))


@dataclass(frozen=True, kw_only=True)
class LayerDisaggregation(RecoverThenInvert):
    """Tell each client's update of a layer from means over changing clients, then solve for class means.

    A target is one class of one client.
    """

    name = "disaggregate-layer"
    summary = "each client's update of a layer from means over changing clients, then class means, inverted"
    version = 3
    targets = LAYERS
    only_by_name = True
    needs = Needs(extractor=("white_box",), batch=True, min_rounds=2)

    def recover(self, problem: AttackProblem) -> Recovered:
        """Take the means apart, then solve for the class means behind each part."""
        parts, apart = taken_apart(problem)
        mapping = any(payload.kind in MAPPINGS for payload in parts[0].upload)
        result = (AngleUpdate() if mapping else HeadUpdate()).recover(replace(problem, observations=parts))
        return replace(result, sound=apart if result.sound is None else result.sound & apart)


def taken_apart(problem: AttackProblem) -> tuple[tuple[Observation, ...], Tensor]:
    """Return clients' last uploads as if each had been seen, and which targets' clients rounds tell from others ``(T,)``.

    Refuses rounds of always the same clients.
    """
    by_round: dict[int, dict[int, Observation]] = {}
    for seen in sorted(problem.observations, key=lambda item: (item.round, item.client)):
        by_round.setdefault(seen.round, {})[seen.client] = seen
    clients = sorted({seen.client for seen in problem.observations})
    present = torch.tensor([[client in group for client in clients] for group in by_round.values()])
    if bool((present == present[0]).all()):
        raise UserError(
            "attack 'disaggregate': the same clients took part in every round seen, so that their means are one equation "
            "for all of them; it needs rounds of changing clients (training with participation below 1)"
        )
    taken = present.double() / present.sum(1, keepdim=True)
    last = list(by_round.values())[-1]
    made, apart = [], {}
    for client in problem.clients:
        position = clients.index(client)
        # What stands for the mean in the control differs by client: a client's own is the one that counts for it.
        current = [group.get(client, next(iter(group.values()))) for group in by_round.values()]
        part = solve(taken, torch.stack([_flat(seen) for seen in current]), position)
        made.append(replace(last[client], upload=_with(last[client], part)))
        apart[client] = int((present[:, [position]] == present).all(0).sum()) == 1
    return tuple(made), torch.tensor([apart[target.client] for target in problem.targets])


def solve(taken: Tensor, means: Tensor, client: int) -> Tensor:
    """Return one of K clients' update ``(D,)`` behind means ``(T, D)`` over the clients of T rounds.

    ``taken`` ``(T, K)`` holds each client's share of a round; rows sum to one. All float64.
    """
    # The ridge depends on inner products alone, and the answer is a combination of the means.
    values, vectors = torch.linalg.eigh(means @ means.T)
    ridge = best_ridge(vectors * values.clamp_min(0).sqrt(), taken)
    return ridge_regression(torch.eye(len(means), dtype=means.dtype), taken, ridge)[client] @ means


def _flat(seen: Observation) -> Tensor:
    changes = [
        change.double().flatten().cpu() for payload in seen.upload for change in _changes(payload, seen).values()
    ]
    if not changes:
        raise UserError(f"{upload_holds(seen)}; expected an update of what was broadcast")
    return torch.cat(changes)


def _changes(payload: Payload, seen: Observation) -> dict[str, Tensor]:
    """Return the difference of a payload from the broadcast by name; nothing of payloads that are no update."""
    sent = next((current for current in seen.broadcast if current.kind == payload.kind), None)
    if payload.kind not in UPDATES or sent is None:
        return {}
    before = payload.before(sent)
    return {
        name: value - before[name].to(value)
        for name, value in payload.tensors().items()
        if value.is_floating_point() and name in before
    }


def _with(seen: Observation, part: Tensor) -> Message:
    """Return an upload whose difference from the broadcast is ``part`` ``(D,)``."""
    made: list[Payload] = []
    for payload in seen.upload:
        values: dict[str, Tensor] = {}
        for name, change in _changes(payload, seen).items():
            current, part = part[: change.numel()], part[change.numel() :]
            values[name] = (payload.tensors()[name].double() - change.double() + current.view_as(change)).to(
                change.dtype
            )
        made.append(_replaced(payload, values))
    return tuple(made)


def _replaced(payload: Payload, values: Mapping[str, Tensor]) -> Payload:
    new: dict[str, Any] = {}
    for spec in fields(payload):
        current = getattr(payload, spec.name)
        if isinstance(current, Mapping):
            new[spec.name] = {name: values.get(f"{spec.name}/{name}", value) for name, value in current.items()}
        elif spec.name in values:
            new[spec.name] = values[spec.name]
    return replace(payload, **new)
