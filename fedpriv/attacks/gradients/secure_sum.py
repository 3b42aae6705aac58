"""The attack adapted to secure aggregation: the mean over a round's clients is the update of one larger batch.

Where each of K clients made one step from the same weights on n images, their mean update is that of one step on all K n
images. Whose image is whose follows from given labels: every image that is searched for carries the label, and so the
client, of one private image. Two clients' images of one class cannot be separated by that. Shares are taken to be equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge

from fedpriv.attacks.contract import Attack, AttackProblem
from fedpriv.attacks.gradients.dlg import DeepLeakage
from fedpriv.attacks.gradients.inverting import GradientDip, InvertingGradients
from fedpriv.attacks.gradients.linear_layer import LinearLayer
from fedpriv.attacks.inputs.targets import observation_of
from fedpriv.attacks.inputs.updates import require_facts
from fedpriv.attacks.observation import BatchFacts, Knowledge, Needs, Observation, Reconstruction, TargetId
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import UPDATES, WHOLE, Kinds


@dataclass(frozen=True, kw_only=True)
class PooledBatch(Attack):
    """Match the images of all clients of a round to their mean update, and give each client those with its labels.

    A target is one client's upload as a whole, as if the server had seen it; its images are those of its step.

    Attributes:
        search: by which the pooled batch is found: ``inverting-gradients``, ``dlg`` or ``gradient-dip``.
        iterations: of the search; ``dlg`` makes a call of L-BFGS of every twenty.
        restarts: of the search.
    """

    search: Literal["inverting-gradients", "dlg", "gradient-dip"] = "inverting-gradients"
    iterations: Annotated[int, Ge(1)] = 2000
    restarts: Annotated[int, Ge(1)] = 1

    name = "pooled"
    summary = "the images of all clients of a round, as one batch behind the mean of their updates"
    version = 4
    targets = Kinds(lambda kind: WHOLE.test(kind) and UPDATES.test(kind))
    unit = "upload"
    budget = "iterations"
    only_by_name = True
    needs = Needs(labels=("given",), batch=True)

    def select(self, observations: Sequence[Observation], targets: Sequence[TargetId]) -> tuple[TargetId, ...]:
        """Return all targets, or refuse uploads that the server sees one by one."""
        refuse_separate(observations)
        return tuple(targets)

    def run(self, problem: AttackProblem) -> Reconstruction:
        """Search for the pooled batch behind each mean, and deal its images out."""
        pools: list[tuple[Pool, Reconstruction]] = []
        parts = []
        for target in problem.targets:
            selected = pool(problem.observations, problem.knowledge, target)
            known = next((one for one in pools if same_upload(one[0].seen, selected.seen)), None)
            if known is None:
                inner = replace(
                    problem,
                    observations=(selected.seen,),
                    knowledge=selected.knowledge,
                    targets=(selected.target,),
                    progress=None,
                )
                known = selected, inner_search(self.search, self.iterations, self.restarts).run(inner)
                pools.append(known)
            parts.append(known)
        most = max(group.counts[target.client] for target, (group, _) in zip(problem.targets, parts, strict=True))
        dealt = [
            current.places(target.client, most) for target, (current, _) in zip(problem.targets, parts, strict=True)
        ]
        return Reconstruction(
            targets=problem.targets,
            images=torch.stack([one.images[0][places] for places, (_, one) in zip(dealt, parts, strict=True)]),
            objective=torch.cat([one.objective for _, one in parts]),
            chosen=torch.cat([one.chosen for _, one in parts]),
            labels=torch.stack([item.labels[0][places] for places, (_, item) in zip(dealt, parts, strict=True)]),
            cost=replace(pools[0][1].cost, rows=sum(entry.cost.rows for _, entry in pools)),
            converged=torch.cat([items.converged for _, items in parts]),
        )


@dataclass(frozen=True)
class Pool:
    """All clients of a round as one.

    Attributes:
        seen: the mean of their uploads, under the number of the first.
        knowledge: as of one client with all their images.
        target: the pooled batch.
        counts: images of each client, in the order in which they stand in the batch.
    """

    seen: Observation
    knowledge: Knowledge
    target: TargetId
    counts: dict[int, int]

    def places(self, client: int, most: int) -> torch.Tensor:
        """Return where a client's images stand in the batch, repeated in turn up to ``most`` of them ``(most,)``."""
        clients = list(self.counts)
        first = sum(self.counts[item] for item in clients[: clients.index(client)])
        return first + torch.arange(most) % self.counts[client]


def pool(observations: Sequence[Observation], knowledge: Knowledge, target: TargetId) -> Pool:
    """Return the clients of a target's round as one, or refuse rounds whose mean is no update of one batch."""
    current = observation_of(observations, target)
    clients = [observation.client for observation in observations if observation.round == target.round]
    facts = [require_facts("pooled", knowledge, client) for client in clients]
    if any(fact.steps != 1 for fact in facts):
        raise UserError(
            "attack 'pooled': clients made several local steps, each from weights of its own, and their mean is that "
            "of no batch; it needs one step a round"
        )
    missing = [client for client in clients if (target.round, client) not in knowledge.labels]
    if missing:
        raise UserError(
            f"attack 'pooled': labels of client {missing[0]} in round {target.round} were not handed over; it needs "
            "those of all clients in the mean, so ask for as many targets as there are clients"
        )
    labels = {client: knowledge.labels[target.round, client].cpu() for client in clients}
    return Pool(
        seen=replace(current, client=clients[0]),
        knowledge=replace(
            knowledge,
            batch=BatchFacts(sum(map(len, labels.values())), facts[0].learning_rate, 1),
            batches={},
            statistics={},
            labels={(target.round, clients[0]): torch.cat(list(labels.values()))},
        ),
        target=TargetId(target.round, clients[0]),
        counts={client: len(label) for client, label in labels.items()},
    )


def refuse_separate(observations: Sequence[Observation]) -> None:
    """Refuse rounds of which the server sees each upload: there is no mean to take apart."""
    first: dict[int, Observation] = {}
    for seen in observations:
        if not same_upload(first.setdefault(seen.round, seen), seen):
            raise UserError(
                f"round {seen.round}: the server sees the upload of each client, not their mean; attack them as they are"
            )


def same_upload(first: Observation, second: Observation) -> bool:
    """True if two clients' uploads of a round are one and the same."""
    if first.round != second.round:
        return False
    pairs = zip(first.upload, second.upload, strict=True)
    return all(
        torch.equal(value, theirs.tensors()[name])
        for current, theirs in pairs
        for name, value in current.tensors().items()
    )


def inner_search(name: str, iterations: int, restarts: int) -> Attack:
    """Return the attack that searches whole updates, with its budget.

    ``dlg`` makes a call of L-BFGS of every twenty ``iterations``.
    """
    if name == "dlg":
        return DeepLeakage(outer_steps=-(-iterations // 20), restarts=restarts)
    by_name: dict[str, type[GradientDip | LinearLayer | InvertingGradients]] = {
        "gradient-dip": GradientDip,
        "linear-layer": LinearLayer,
        "inverting-gradients": InvertingGradients,
    }
    return by_name[name](iterations=iterations, restarts=restarts)
