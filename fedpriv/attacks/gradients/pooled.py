"""The images of all clients of a round behind the mean of their updates, as secure aggregation shows it.

Where each of K clients made one step from the same weights on n images, their mean update is that of one step on
all K n images (shares are taken to be equal). Whose image is whose follows from given labels; two clients' images of one
class cannot be separated by that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge

from fedpriv.attacks.contract import Attack, AttackProblem
from fedpriv.attacks.gradients.dlg import DeepLeakage
from fedpriv.attacks.gradients.inverting import InvertingGradients
from fedpriv.attacks.gradients.update import equal_weights, require_facts
from fedpriv.attacks.inputs.targets import observation_of
from fedpriv.attacks.observation import BatchFacts, Needs, Observation, Reconstruction, TargetId
from fedpriv.uploads.kinds import UPDATES, WHOLE, Kinds
from fedpriv.util.errors import UserError


@dataclass(frozen=True, kw_only=True)
class PooledBatch(Attack):
    """Match the images of all clients of a round to their mean update, and give each client those with its labels.

    A target is one client's upload as a whole, as if the server had seen it; its images are those of its step.

    Attributes:
        search: by which the pooled batch is found.
        iterations: of the search; ``dlg`` makes a call of L-BFGS of every twenty.
        restarts: of the search.
    """

    search: Literal["inverting-gradients", "dlg"] = "inverting-gradients"
    iterations: Annotated[int, Ge(1)] = 2000
    restarts: Annotated[int, Ge(1)] = 1

    name = "pooled"
    summary = "the images of all clients of a round, as one batch behind the mean of their updates"
    version = 5
    targets = Kinds(lambda kind: WHOLE.test(kind) and UPDATES.test(kind))
    unit = "upload"
    budget = "iterations"
    only_by_name = True
    needs = Needs(labels=("given",), batch=True)

    def check(self, observations: Sequence[Observation]) -> None:
        """Refuse uploads that the server sees one by one: there is no mean to take apart."""
        first: dict[int, Observation] = {}
        for seen in observations:
            if not _same_upload(first.setdefault(seen.round, seen), seen):
                raise UserError(
                    f"round {seen.round}: the server sees the upload of each client, not their mean; attack them as they are"
                )

    def run(self, problem: AttackProblem) -> Reconstruction:
        """Search for the pooled batch behind each mean, and deal its images out."""
        search: Attack = InvertingGradients(iterations=self.iterations, restarts=self.restarts)
        if self.search == "dlg":
            search = DeepLeakage(outer_steps=-(-self.iterations // 20), restarts=self.restarts)
        searched: list[tuple[Observation, Reconstruction]] = []
        results, owned = [], []
        for target in problem.targets:
            pooled, counts = _pooled(problem, target)
            seen = pooled.observations[0]
            result = next((result for other, result in searched if _same_upload(other, seen)), None)
            if result is None:
                result = search.run(pooled)
                searched.append((seen, result))
            results.append(result)
            clients = list(counts)
            begin = sum(counts[client] for client in clients[: clients.index(target.client)])
            owned.append(torch.arange(begin, begin + counts[target.client]))
        most = torch.arange(max(len(places) for places in owned))
        dealt = [places[most % len(places)] for places in owned]  # those of fewer images again and again
        return Reconstruction(
            targets=problem.targets,
            images=torch.stack([result.images[0][places] for places, result in zip(dealt, results, strict=True)]),
            objective=torch.cat([result.objective for result in results]),
            labels=torch.stack([result.labels[0][places] for places, result in zip(dealt, results, strict=True)]),
            cost=replace(searched[0][1].cost, rows=sum(result.cost.rows for _, result in searched)),
            converged=torch.cat([result.converged for result in results]),
        )


def _pooled(problem: AttackProblem, target: TargetId) -> tuple[AttackProblem, dict[int, int]]:
    """Return the clients of a round of one step as one, numbered as the first, and the images of each."""
    knowledge, round_ = problem.knowledge, target.round
    clients = [seen.client for seen in problem.observations if seen.round == round_]
    facts = [require_facts("pooled", knowledge, client) for client in clients]
    if any(fact.steps != 1 for fact in facts):
        raise UserError(
            "attack 'pooled': clients made several local steps, each from weights of its own, and their mean is that "
            "of no batch; it needs one step a round"
        )
    missing = [client for client in clients if (round_, client) not in knowledge.labels]
    if missing:
        raise UserError(
            f"attack 'pooled': labels of client {missing[0]} in round {round_} were not handed over; it needs "
            "those of all clients in the mean, so ask for as many targets as there are clients"
        )
    labels = {client: knowledge.labels[round_, client].cpu() for client in clients}
    together = replace(
        knowledge,
        batch=BatchFacts(sum(map(len, labels.values())), facts[0].learning_rate, 1),
        batches={},
        statistics={},
        labels={(round_, clients[0]): torch.cat(list(labels.values()))},
    )
    pooled = replace(
        problem,
        observations=(replace(observation_of(problem.observations, target), client=clients[0]),),
        knowledge=together,
        targets=(TargetId(round_, clients[0]),),
        progress=None,
    )
    return pooled, {client: len(label) for client, label in labels.items()}


def _same_upload(first: Observation, second: Observation) -> bool:
    """True if two clients' uploads of a round are one and the same."""
    pairs = zip(first.upload, second.upload, strict=True)
    return first.round == second.round and all(equal_weights(one.tensors(), other.tensors()) for one, other in pairs)
