"""The attack on uploaded heads: solve for the representations behind the update, then invert them.

LG-FedAvg and FedGen keep the extractor and send "only" the classifier. Its change over a round is a matrix of sums of
representations; see :mod:`fedpriv.attacks.recover.closed_form`. One step on one image gives that image's
representation exactly. Of several steps the equations do not hold, for the extractor moves; an attacker with images of its
own then believes the update as far as made-up clients say (:mod:`fedpriv.attacks.recover.told_means`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedpriv.attacks.contract import Attack, AttackProblem
from fedpriv.attacks.gradients.separation import members_of_head
from fedpriv.attacks.observation import BatchFacts, Knowledge, Needs, Observation, TargetId
from fedpriv.attacks.optim.objectives import Match
from fedpriv.attacks.read.target_features import rounds_of
from fedpriv.attacks.read.updates import require_facts
from fedpriv.attacks.recover.closed_form import (
    ClassMeans,
    HeadStep,
    class_shares,
    means_of_head,
    single_label,
    single_representation,
)
from fedpriv.attacks.recover.made_up_clients import head_steps, work_of
from fedpriv.attacks.recover.then_invert import Recovered, RecoverThenInvert, as_uploads
from fedpriv.attacks.recover.told_means import Layer, learns_of, told_clients, told_means
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import HEADS
from fedpriv.wire.payloads import Classifier, Message, find_payload

_EXPLAINED = 1e-5
"""Relative distance from the update below which single images that were told apart explain it; rounding leaves 1e-7."""

_ROUNDING = 1e-2
"""Relative error of class means below which they count as exact: a fit to vectors that wrong still gains."""

HALF_AN_IMAGE = 0.5
"""A class is taken to be there when the update speaks of at least so many of its images."""


@dataclass(frozen=True, kw_only=True)
class HeadUpdate(RecoverThenInvert):
    """Recover class means (or the one representation) from a head's update, then invert each.

    A target is one class of one client; its ``label`` names the class where labels are given, else its ``index`` counts
    the classes that the update speaks of, ascending. All rounds handed over are solved together.

    Attributes:
        match: what of the recovered vectors is believed, by all inversions but ``decoder``: ``nonzero`` where columns of the
            update were zeroed (the answer to ``soteria``); see :data:`fedpriv.attacks.optim.objectives.Match`.
    """

    match: Match = "vector"

    name = "head-update"
    summary = "class means solved for from a classifier's update, then inverted"
    version = 7
    targets = HEADS
    needs = Needs(extractor=("white_box",), batch=True)

    def recover(self, problem: AttackProblem) -> Recovered:
        """Solve for the class means of every attacked client."""
        return class_means({client: _of_client(problem, client) for client in told_clients(problem)}, problem.targets)

    def inverter(self, knowledge: Knowledge, **options: Any) -> Attack:
        """Return the inversion, which believes of the recovered vectors what ``match`` says."""
        return super().inverter(knowledge, **options, match=self.match)


MeansOfClasses = tuple[ClassMeans, Tensor]
"""Class means, and the classes ``(m,)`` of their rows."""


def recover_from_head(observations: Sequence[Observation], client: int, knowledge: Knowledge) -> MeansOfClasses:
    """Solve for the class means behind one client's head updates.

    Of a single step on fewer classes than there are, the rows of the others tell whether the means explain it, and so
    whether they are exact.
    """
    facts = require_facts("head-update", knowledge, client)
    own = rounds_of(observations, client)
    changes = [_change(seen, facts) for seen in own]
    shares = [_shares(seen, change, facts, knowledge) for seen, change in zip(own, changes, strict=True)]
    if len(own) == 1 and facts.steps == 1 and facts.batch_size == 1:
        weight, bias, _ = changes[0]
        found = single_representation(weight, bias)
        left = float((weight - torch.outer(bias, found)).norm() / weight.norm().clamp(min=1e-30))
        told = bool(weight.any()) and bool(bias.any())
        return counted(ClassMeans(found[None], left, 1.0, told), torch.ones(1)), torch.tensor([single_label(bias)])
    if len(own) == 1 and facts.steps == 1:
        labels = knowledge.labels.get((own[0].round, client))
        exact = None if labels is None else _by_members(changes[0], labels.cpu())
        if exact is not None:
            return exact
    classes = (torch.stack(shares) > 0).any(0).nonzero().squeeze(1)
    steps = [
        HeadStep(weight, bias, heads, part_shares[classes])
        for (weight, bias, heads), part_shares in zip(changes, shares, strict=True)
    ]
    solved = means_of_head(steps, classes)
    known = len(own) == 1 and facts.steps == 1 and len(classes) < len(steps[0].bias)
    return counted(solved, shares[0][classes] * facts.images) if known else solved, classes


def _of_client(problem: AttackProblem, client: int) -> MeansOfClasses:
    """Return class means behind a client's head update: told by made-up clients where several steps were taken."""
    seen, knowledge = rounds_of(problem.observations, client), problem.knowledge
    if not learns_of(seen, knowledge):
        return recover_from_head(problem.observations, client, knowledge)
    facts, (only,) = require_facts("head-update", knowledge, client), seen
    change = _change(only, facts)
    weight, _, heads = change
    shares = _shares(only, change, facts, knowledge)
    if not bool((shares > 0).any()):
        return recover_from_head(problem.observations, client, knowledge)
    work = work_of(facts, knowledge.labels.get((only.round, client)), shares)
    layer = Layer(partial(head_steps, work, heads[0]), 2 * weight.numel(), weight[None])
    return told_means(problem, only, work, layer), work.classes


def _shares(seen: Observation, change: _Change, facts: BatchFacts, knowledge: Knowledge) -> Tensor:
    """Return the classes' shares of the batches ``(C,)``, summed over steps: given, else read off the bias."""
    counts = given_counts(knowledge, seen, facts)
    if counts is not None:
        return counts
    _, bias, heads = change
    typical = torch.stack([b for _, b in heads]).mean(0).softmax(0)
    counts = class_shares(bias, typical, facts.steps)
    return torch.where(counts * facts.batch_size >= HALF_AN_IMAGE, counts, torch.zeros_like(counts))


def counted(found: ClassMeans, counts: Tensor) -> ClassMeans:
    """Return class means with their numbers of images ``(m,)``, rounded, where the means are exact."""
    exact = found.error < _ROUNDING
    return replace(found, counts=counts.round().long().clamp_min(1)) if exact else found


def _by_members(change: _Change, labels: Tensor) -> MeansOfClasses | None:
    """Return class means as those of single images that explain the head's gradient; None where none do.

    Images of one label need not be known one by one: of those that stay together the sum is known all the same.
    """
    weight, bias, heads = change
    found = members_of_head(weight, bias, heads[0], labels, torch.Generator().manual_seed(0))
    if found is None:
        return None
    classes, of_class = labels.unique(return_inverse=True)
    means = torch.zeros(len(classes), weight.shape[1]).index_add_(0, of_class, found.inputs)
    counts = torch.bincount(of_class)
    means /= counts.unsqueeze(1)
    pushed = found.derivatives.double().T @ found.inputs.double() / len(labels)
    left = float((weight - pushed).norm() / weight.norm().clamp(min=1e-30))
    if not left < _EXPLAINED:
        return None
    mixing = torch.zeros(len(classes), len(bias)).index_add_(0, of_class, found.derivatives)
    return counted(ClassMeans(means, left, float(torch.linalg.cond(mixing.double())), True), counts), classes


def given_counts(knowledge: Knowledge, seen: Observation, facts: BatchFacts) -> Tensor | None:
    """Return the classes' shares of the batches ``(C,)``, summed over steps, from given labels; None where not given."""
    labels = knowledge.labels.get((seen.round, seen.client))
    if labels is None:
        return None
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < knowledge.n_classes:
        raise UserError(
            f"labels of client {seen.client} in round {seen.round} should be in [0, {knowledge.n_classes}), got "
            f"{int(labels.min())} to {int(labels.max())}"
        )
    sizes = facts.sizes if sum(facts.sizes) == len(labels) else (min(facts.batch_size, len(labels)),) * len(labels)
    share = torch.cat([torch.full((size,), 1 / size) for size in sizes])[: len(labels)]
    return torch.zeros(knowledge.n_classes).index_add_(0, labels.cpu(), share)


Head = tuple[Tensor, Tensor]
_Change = tuple[Tensor, Tensor, tuple[Head, ...]]


def _change(seen: Observation, facts: BatchFacts) -> _Change:
    before = _head(seen.broadcast, f"broadcast of round {seen.round}")
    after = _head(seen.upload, f"upload of client {seen.client} in round {seen.round}")
    if not facts.learning_rate > 0:
        raise UserError(f"the learning rate of client {seen.client} should be above 0, got {facts.learning_rate}")
    weight, bias = ((old - new) / facts.learning_rate for old, new in zip(before, after, strict=True))
    if not bool(weight.isfinite().all() and bias.isfinite().all()):
        raise UserError(f"the head of client {seen.client} in round {seen.round} holds entries that are not finite")
    # One step was computed at the first head; of several, the last head is as good a guess.
    return weight, bias, (before,) if facts.steps == 1 else (before, after)


def _head(message: Message, where: str) -> Head:
    sent = find_payload(message, Classifier)
    if sent is None:
        raise UserError(f"{where}: holds no classifier; an update cannot be formed")
    if not {"weight", "bias"} <= sent.state.keys():
        raise UserError(f"{where}: expected a linear head with weight and bias, got {', '.join(sent.state)}")
    return sent.state["weight"].cpu().double(), sent.state["bias"].cpu().double()


def class_means(solved: Mapping[int, MeansOfClasses], targets: Sequence[TargetId]) -> Recovered:
    """Return class means, solved for by client, as if they had been uploaded, for targets of one class each.

    Clients without a target count for the uncertainty of their vectors alone: a decoder is trained for all of them.
    """
    places = tuple(replace(target, index=_row(solved[target.client][1], target)) for target in targets)
    of_place = [(solved[place.client][0], place.index) for place in places]
    counts = [None if found.counts is None else int(found.counts[row]) for found, row in of_place]
    expected = [float(found.distance[row]) for found, row in of_place if found.distance is not None]
    rounds = {target.client: target.round for target in targets}
    told = {client: found.distance for client, (found, _) in solved.items() if found.distance is not None}
    uncertain = {
        (rounds.get(client, max(rounds.values())), client): float(distance.double().square().mean().sqrt())
        for client, distance in told.items()
    }
    return Recovered(
        as_uploads([found.means[row] for found, row in of_place], places, counts),
        places,
        labels=torch.tensor([int(solved[place.client][1][place.index]) for place in places]),
        sound=torch.tensor([found.settled for found, _ in of_place]),
        distance=torch.tensor(expected) if len(expected) == len(of_place) else None,
        uncertain=uncertain or None,
        exact=True,
    )


def _row(classes: Tensor, target: TargetId) -> int:
    """Return the row of a target: its class's where that was found, else the one of its number."""
    places = (classes == target.label).nonzero()
    return int(places[0]) if len(places) else min(target.index, len(classes) - 1)
