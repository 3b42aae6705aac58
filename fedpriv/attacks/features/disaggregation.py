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
from fedpriv.attacks.features.base import Recovered, RecoverThenInvert
from fedpriv.attacks.features.closed_form import AngleUpdate, HeadUpdate
from fedpriv.attacks.gradients.secure_sum import inner_search, refuse_separate
from fedpriv.attacks.inputs.targets import upload_holds
from fedpriv.attacks.observation import Needs, Observation, Reconstruction, RequirementsByKind, TargetId
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import EXTRACTORS, LAYERS, MAPPINGS, NETWORKS, UPDATES, Kinds
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
        means = taken_apart(problem.observations, problem.clients)
        found = inner_search(self.search, self.iterations, self.restarts).run(
            replace(problem, observations=means.observations)
        )
        told = torch.tensor([target.client in means.told for target in problem.targets])
        return replace(found, converged=found.converged & told.to(found.converged.device))


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
        means = taken_apart(problem.observations, problem.clients)
        mapping = any(payload.kind in MAPPINGS for payload in means.observations[0].upload)
        solving = AngleUpdate() if mapping else HeadUpdate()
        found = solving.recover(replace(problem, observations=means.observations))
        told = torch.tensor([target.client in means.told for target in problem.targets])
        return replace(found, sound=told if found.sound is None else found.sound & told)


@dataclass(frozen=True)
class TakenApart:
    """Clients' updates told from means.

    Attributes:
        observations: of the last round, as if each client's upload had been seen.
        told: clients whom the rounds that they took part in tell from every other one.
    """

    observations: tuple[Observation, ...]
    told: frozenset[int]


def taken_apart(observations: Sequence[Observation], wanted: Sequence[int]) -> TakenApart:
    """Return the parts of the ``wanted`` clients in means over changing clients, or refuse where clients never change."""
    by_round: dict[int, dict[int, Observation]] = {}
    for seen in sorted(observations, key=lambda one: (one.round, one.client)):
        by_round.setdefault(seen.round, {})[seen.client] = seen
    clients = sorted({seen.client for seen in observations})
    present = torch.tensor([[client in group for client in clients] for group in by_round.values()])
    if bool((present == present[0]).all()):
        raise UserError(
            "attack 'disaggregate': the same clients took part in every round seen, so that their means are one equation "
            "for all of them; it needs rounds of changing clients (training with participation below 1)"
        )
    taken = present.double() / present.sum(1, keepdim=True)
    last = list(by_round.values())[-1]
    made, told = [], []
    for client in wanted:
        place = clients.index(client)
        # What stands for the mean in the control differs by client: a client's own is the one that counts for it.
        own = [group.get(client, next(iter(group.values()))) for group in by_round.values()]
        parts, _ = solve(taken, torch.stack([_flat(seen) for seen in own]), place)
        made.append(replace(last[client], upload=_with(last[client], parts)))
        if int((present[:, [place]] == present).all(0).sum()) == 1:
            told.append(client)
    return TakenApart(tuple(made), frozenset(told))


def solve(taken: Tensor, means: Tensor, client: int) -> tuple[Tensor, float]:
    """Return one of K clients' update ``(D,)`` behind means ``(T, D)`` over the clients of T rounds, and the ridge chosen.

    ``taken`` ``(T, K)`` holds each client's share of a round; rows sum to one. All float64.
    """
    gram, products = taken @ taken.T, means @ means.T
    n_rounds = len(means)
    errors = []
    for ridge in _RIDGES:
        total = 0.0
        for left in range(n_rounds):
            kept = torch.arange(n_rounds) != left
            guess = _weights(gram[kept][:, kept], gram[left, kept], ridge)
            off = torch.zeros(n_rounds, dtype=means.dtype)
            off[kept], off[left] = guess, -1.0
            total += float(off @ products @ off)
        errors.append(total)
    best = _RIDGES[min(range(len(_RIDGES)), key=errors.__getitem__)]
    return _weights(gram, taken[:, client], best) @ means, best


def _weights(gram: Tensor, onto: Tensor, ridge: float) -> Tensor:
    """Return the weights ``(T,)`` of rounds in the ridge regression's answer, whose products with them are ``onto``."""
    even = torch.full_like(onto, 1 / len(onto))
    if math.isinf(ridge):
        return even
    shift = torch.linalg.solve(gram + ridge * torch.eye(len(gram), dtype=gram.dtype), onto)
    found: Tensor = shift + (1 - shift.sum()) * even
    return found


def _flat(seen: Observation) -> Tensor:
    changes = [
        change.double().flatten().cpu() for payload in seen.upload for change in _changes(payload, seen).values()
    ]
    if not changes:
        raise UserError(f"{upload_holds(seen)}; expected an update of what was broadcast")
    return torch.cat(changes)


def _changes(payload: Payload, seen: Observation) -> dict[str, Tensor]:
    """Return the difference of a payload from the broadcast by name; nothing of payloads that are no update."""
    sent = next((own for own in seen.broadcast if own.kind == payload.kind), None)
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
        changes = _changes(payload, seen)
        values: dict[str, Tensor] = {}
        for name, change in changes.items():
            own, part = part[: change.numel()], part[change.numel() :]
            values[name] = (payload.tensors()[name].double() - change.double() + own.view_as(change)).to(change.dtype)
        made.append(_replaced(payload, values) if changes else payload)
    return tuple(made)


def _replaced(payload: Payload, values: Mapping[str, Tensor]) -> Payload:
    new: dict[str, Any] = {}
    for spec in fields(payload):
        own = getattr(payload, spec.name)
        if isinstance(own, Mapping):
            new[spec.name] = {name: values.get(f"{spec.name}/{name}", value) for name, value in own.items()}
        elif spec.name in values:
            new[spec.name] = values[spec.name]
    return replace(payload, **new)
