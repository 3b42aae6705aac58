"""Attacks adapted to secure aggregation and to transformed images, around a search of a whole update.

**Pooled.** Where each of K clients made one step from the same weights on n images, their mean update is that of one step on
all K n images (shares are taken to be equal). Whose image is whose follows from given labels; two clients' images of one
class cannot be separated by that.

**Transformed.** The policy is public: the client trained on x' = T(x), T one of few compositions of augmentations, signs and
random crops. Each T is undone as far as that goes, what it cut off filled from the attacker's own images, and the likeliest
has the least

    sum of squares where T would have left black  +  h w mean over known pixels of (T^-1(x') - nearest)^2,

nearest being the mean over the k nearest own images, of the class where that is known. Derived here, against Gao et al.
(ATS), CVPR 2021.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import pad

from fedpriv.algebra.augmentations import PUBLISHED, margins, read_policy, signed, undone
from fedpriv.attacks.contract import Attack, AttackProblem
from fedpriv.attacks.gradients.dlg import DeepLeakage
from fedpriv.attacks.gradients.inverting import GradientDip, InvertingGradients
from fedpriv.attacks.gradients.update import require_facts
from fedpriv.attacks.inputs.targets import observation_of
from fedpriv.attacks.observation import Needs, Observation, Reconstruction, TargetId
from fedpriv.uploads.kinds import EXTRACTORS, NETWORKS, UPDATES, WHOLE, Kinds
from fedpriv.util.errors import UserError


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
    version = 5
    targets = Kinds(lambda kind: WHOLE.test(kind) and UPDATES.test(kind))
    unit = "upload"
    budget = "iterations"
    only_by_name = True
    needs = Needs(labels=("given",), batch=True)

    def select(self, observations: Sequence[Observation], targets: Sequence[TargetId]) -> tuple[TargetId, ...]:
        """Return all targets, or refuse uploads that the server sees one by one: there is no mean to take apart."""
        first: dict[int, Observation] = {}
        for seen in observations:
            if not _same_upload(first.setdefault(seen.round, seen), seen):
                raise UserError(
                    f"round {seen.round}: the server sees the upload of each client, not their mean; attack them as they are"
                )
        return tuple(targets)

    def run(self, problem: AttackProblem) -> Reconstruction:
        """Search for the pooled batch behind each mean, and deal its images out."""
        searched: list[tuple[Observation, Reconstruction]] = []
        results, owned = [], []
        for target in problem.targets:
            pooled, counts = _pooled(problem, target)
            seen = pooled.observations[0]
            result = next((result for other, result in searched if _same_upload(other, seen)), None)
            if result is None:
                result = inner_search(self.search, self.iterations, self.restarts).run(pooled)
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
            chosen=torch.cat([result.chosen for result in results]),
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
        batch=replace(facts[0], batch_size=sum(map(len, labels.values())), sizes=()),
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
    tensors = ((current.tensors(), theirs.tensors()) for current, theirs in pairs)
    return first.round == second.round and all(
        torch.equal(value, theirs[name]) for current, theirs in tensors for name, value in current.items()
    )


def inner_search(name: str, iterations: int, restarts: int) -> Attack:
    """Return the attack that searches whole updates; ``dlg`` makes a call of L-BFGS of every twenty ``iterations``."""
    if name == "dlg":
        return DeepLeakage(outer_steps=-(-iterations // 20), restarts=restarts)
    made = GradientDip if name == "gradient-dip" else InvertingGradients
    return made(iterations=iterations, restarts=restarts)


_NEAREST = 5
"""k."""


@dataclass(frozen=True, kw_only=True)
class TransformationSearch(Attack):
    """Match a client's update, then undo the transformation that explains the image found best.

    A target is an upload as a whole; its images are those of its steps before they were transformed.

    Attributes:
        search: what finds the transformed images: ``inverting-gradients`` or ``dlg``.
        iterations: of the search; ``dlg`` makes a call of L-BFGS of every twenty.
        restarts: of the search.
        policy: of the defense, as it is written there.
        crop: whether the defense crops and mirrors first.
    """

    search: Literal["inverting-gradients", "dlg"] = "inverting-gradients"
    iterations: Annotated[int, Ge(1)] = 2000
    restarts: Annotated[int, Ge(1)] = 1
    policy: str = PUBLISHED
    crop: bool = True

    name = "untransform"
    summary = "images whose gradient is the uploaded one, with a policy of augmentations undone"
    version = 4
    targets = NETWORKS
    unit = "upload"
    budget = "iterations"
    only_by_name = True
    needs = Needs(batch=True, attacker_data=("same_domain",))
    requirements_by_kind = ((EXTRACTORS, Needs(extractor=("white_box",), batch=True, attacker_data=("same_domain",))),)

    def __post_init__(self) -> None:
        read_policy(self.policy, f"attack {self.name!r}")

    def run(self, problem: AttackProblem) -> Reconstruction:
        """Search for what was trained on, and undo what was done to it."""
        result = inner_search(self.search, self.iterations, self.restarts).run(problem)
        knowledge = problem.knowledge
        assert knowledge.public_images is not None
        current, classes = knowledge.public_images.cpu(), knowledge.public_labels
        images = result.images.cpu().clone()
        for row, labels in zip(images, result.labels.tolist(), strict=True):
            for index, label in enumerate(labels):
                of_class = None if classes is None else classes.cpu() == label
                alike = current if of_class is None or not bool(of_class.any()) else current[of_class]
                row[index] = self.untransformed(row[index], alike)
        return replace(result, images=images.to(result.images))

    def untransformed(self, image: Tensor, values: Tensor) -> Tensor:
        """Return an image ``(c, h, w)`` with the likeliest transformation undone, given own images ``(p, c, h, w)``."""
        lowest, best = math.inf, image
        for policy in read_policy(self.policy, f"attack {self.name!r}"):
            for result, known, contradiction in self._candidates(image, policy):
                filled, distance = completed(result, known, values)
                score, position = (contradiction + distance).min(0)
                if float(score) < lowest:
                    lowest, best = float(score), filled[int(position)]
        return best.clamp(0, 1)

    def _candidates(self, image: Tensor, policy: tuple[int, ...]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for signs in product(*[(1, -1) if signed(number) else (1,) for number in policy]):
            now, known, contradiction = image, torch.ones_like(image[0], dtype=torch.bool), 0.0
            for number, sign in zip(reversed(policy), reversed(signs), strict=True):
                now, there, left = undone(now, number, sign)
                moved, _, _ = undone(known[None].float(), number, sign) if bool((~there).any()) else (known[None], 0, 0)
                known, contradiction = (moved[0] > 0.5) & there, contradiction + left
            whole = now[None], known[None], torch.tensor([contradiction])
            yield uncropped(now, known, contradiction) if self.crop else whole


def uncropped(image: Tensor, known: Tensor, contradiction: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return all images ``(K, c, h, w)`` that one can have been cropped and mirrored from, known pixels, contradictions."""
    height, width = image.shape[1:]
    down, across = margins(height, width)
    images, masks, left = [], [], []
    for turned, seen in ((image, known), (image.flip(2), known.flip(1))):
        wide = pad(turned, (across, across, down, down))
        there = pad(seen.float(), (across, across, down, down)) > 0
        for top, side in product(range(2 * down + 1), range(2 * across + 1)):
            images.append(wide[:, top : top + height, side : side + width])
            masks.append(there[top : top + height, side : side + width])
            # Moved back by (down - top, across - side): what falls off the other edge had been black.
            kept = torch.zeros_like(seen)
            rows = slice(max(0, top - down), height + min(0, top - down))
            columns = slice(max(0, side - across), width + min(0, side - across))
            kept[rows, columns] = True
            left.append(contradiction + float((turned.square() * (seen & ~kept)).sum()))
    return torch.stack(images), torch.stack(masks), torch.tensor(left)


def completed(images: Tensor, known: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return images ``(K, c, h, w)`` with unknown pixels filled from own ones, and scaled squared distances ``(K,)``."""
    mask = known[:, None].expand_as(images).flatten(1).to(images)
    seen, others = images.flatten(1) * mask, values.flatten(1)
    squares = seen.square().sum(1)[:, None] - 2 * seen @ others.T + mask @ others.square().T
    closest = squares.topk(min(_NEAREST, len(values)), dim=1, largest=False).indices
    typical = others[closest].mean(1)
    off = ((seen - typical) * mask).square().sum(1) / mask.sum(1).clamp_min(1) * mask.shape[1]
    off = torch.where(mask.sum(1) > 0, off, torch.inf)
    return (seen + (1 - mask) * typical).view_as(images), off
