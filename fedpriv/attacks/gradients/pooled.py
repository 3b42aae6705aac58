"""The attack adapted to secure aggregation: take the mean over a round's clients for the update of one larger batch.

Where the server sees the mean of K clients' updates alone, and each made one step from the same weights on n images, that
mean is the update of one step on all K n images: aggregation hides who sent a gradient, and adds images to its batch. So it
is attacked as one batch. Whose image is whose follows from labels, where these are given: every image that is searched for
carries the label, and so the client, of one private image. Two clients' images of one class cannot be told apart by that.

Shares are taken to be equal, as they are where clients hold as many images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge

from fedpriv.attacks.contract import Attack, AttackProblem
from fedpriv.attacks.gradients.dlg import DeepLeakage
from fedpriv.attacks.gradients.inverting_gradients import GradientDip, InvertingGradients
from fedpriv.attacks.gradients.step_problems import GradientMatching
from fedpriv.attacks.observation import BatchFacts, Knowledge, Needs, Observation, Reconstruction, TargetId
from fedpriv.attacks.read.updates import require_facts
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import WHOLE

_CALLS = 20
"""Steps in a call of L-BFGS."""


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
    targets = WHOLE
    unit = "upload"
    budget = "iterations"
    only_by_name = True
    needs = Needs(labels=("given",), batch=True)

    def run(self, problem: AttackProblem) -> Reconstruction:
        """Search for each attacked round's pooled batch, and deal its images out."""
        rounds = sorted({target.round for target in problem.targets})
        pools = {number: pool(problem.observations, problem.knowledge, number) for number in rounds}
        parts = {number: self._found(problem, own) for number, own in pools.items()}
        most = max(pools[t.round].counts[t.client] for t in problem.targets)
        images, labels = [], []
        for target in problem.targets:
            places = pools[target.round].places(target.client, most)
            images.append(parts[target.round].images[0][places])
            labels.append(parts[target.round].labels[0][places])
        of_round = [parts[target.round] for target in problem.targets]
        cost = next(iter(parts.values())).cost
        return Reconstruction(
            targets=problem.targets,
            images=torch.stack(images),
            objective=torch.cat([one.objective for one in of_round]),
            chosen=torch.cat([one.chosen for one in of_round]),
            labels=torch.stack(labels),
            cost=replace(cost, rows=sum(one.cost.rows for one in parts.values())),
            converged=torch.cat([one.converged for one in of_round]),
        )

    def _found(self, problem: AttackProblem, own: Pool) -> Reconstruction:
        inner = replace(problem, observations=(own.seen,), knowledge=own.knowledge, targets=(own.target,))
        return self._searching().run(inner)

    def _searching(self) -> GradientMatching:
        if self.search == "dlg":
            return DeepLeakage(outer_steps=-(-self.iterations // _CALLS), restarts=self.restarts)
        made = {"inverting-gradients": InvertingGradients, "gradient-dip": GradientDip}[self.search]
        return made(iterations=self.iterations, restarts=self.restarts)


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
        first = sum(self.counts[one] for one in clients[: clients.index(client)])
        return first + torch.arange(most) % self.counts[client]


def pool(observations: Sequence[Observation], knowledge: Knowledge, number: int) -> Pool:
    """Return a round's clients as one, or refuse rounds whose mean is no update of one batch."""
    seen = [one for one in observations if one.round == number]
    refuse_separate(seen)
    facts = [require_facts("pooled", knowledge, one.client) for one in seen]
    if any(one.steps != 1 for one in facts):
        raise UserError(
            "attack 'pooled': clients made several local steps, each from weights of its own, and the mean of such updates is "
            "that of no batch; it needs one step a round"
        )
    missing = [one.client for one in seen if (number, one.client) not in knowledge.labels]
    if missing:
        raise UserError(
            f"attack 'pooled': labels of client {missing[0]} in round {number} were not handed over; it needs those of every "
            "client in the mean, so name as many targets as there are clients or more"
        )
    labels = {one.client: knowledge.labels[number, one.client] for one in seen}
    size, first = sum(len(own) for own in labels.values()), seen[0].client
    return Pool(
        seen=seen[0],
        knowledge=replace(
            knowledge,
            batch=BatchFacts(size, facts[0].learning_rate, 1),
            batches={},
            statistics={},
            labels={(number, first): torch.cat(list(labels.values()))},
        ),
        target=TargetId(number, first),
        counts={client: len(own) for client, own in labels.items()},
    )


def refuse_separate(seen: Sequence[Observation]) -> None:
    """Refuse a round of which the server sees each upload: there is no mean to take apart."""
    first = seen[0].upload
    for other in seen[1:]:
        own = zip(first, other.upload, strict=True)
        if any(not torch.equal(a, b.tensors()[name]) for one, b in own for name, a in one.tensors().items()):
            raise UserError(
                f"round {seen[0].round}: the server sees the upload of each client, not their mean; attack them as they are"
            )
