"""Updates of clients that the attacker makes up: trained from the very broadcast that a real client answered.

A server knows what it sent, and the protocol says how clients train. So it trains a client's part itself, on images of its
own choice: the weights that travel, by plain SGD in batches of the client's sizes, through what was granted of the rest of
the client's model. Momentum, weight decay and a method's further terms of the loss are not followed. Defenses of local
training are, of networks, and what a method or defenses make of an upload is made of theirs.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import grad
from torch.nn.functional import cross_entropy

from fedpriv.attacks.infer.membership_update import Training
from fedpriv.attacks.inputs.updates import Tangent, Weights
from fedpriv.attacks.observation import BatchFacts, LocalGradient, WeightRehearsal
from fedpriv.util.seeds import derive_seed, generator, global_seed


def trained_alike(
    training: Training,
    labels: Tensor,
    held: Sequence[Tensor],
    facts: BatchFacts,
    seed: Sequence[int | str],
    compute: LocalGradient | None = None,
    defend: WeightRehearsal | None = None,
) -> list[Training]:
    """Return trainings that start like a client's and end where these images lead.

    Args:
        training: the client's.
        labels: ``(n,)`` classes of all images that a made-up client may hold, in the order of the training's inputs.
        held: of each made-up client, places ``(m,)`` among them, at least one.
        facts: of the client's local steps.
        seed: parts of the seed by which batches, and whatever defenses draw, are drawn.
        compute: the gradient of a batch where defenses have a hand in it; None for that of the loss alone.
        defend: the client's defenses of its upload, or None.
    """
    found = []
    for number, own in enumerate(held):
        rng = generator(*seed, "shadow update", number)
        batches = _batches(own, facts, rng)
        if compute is None or training.network is None:
            after = _trained(training, labels, batches, facts.learning_rate)
        else:
            drawn = derive_seed(*seed, "shadow guards", number)
            after = _guarded(training, training.network, labels, batches, facts.learning_rate, compute, drawn)
        if defend is not None:
            after = defend(after, derive_seed(*seed, "shadow defenses", number))
        project = training.project.at(after) if isinstance(training.project, Tangent) else training.project
        found.append(replace(training, after=after, project=project))
    return found


def _trained(training: Training, labels: Tensor, batches: Sequence[Tensor], learning_rate: float) -> Weights:
    def loss(weights: Weights, some: Tensor, answers: Tensor) -> Tensor:
        return cross_entropy(training.logits(weights, some), answers)

    slope = grad(loss)
    weights = dict(training.before)
    for batch in batches:
        gradient = slope(weights, training.inputs[batch], labels[batch])
        weights = {name: value - learning_rate * gradient[name] for name, value in weights.items()}
    return {name: value.detach() for name, value in weights.items()}


def _guarded(
    training: Training,
    network: nn.Module,
    labels: Tensor,
    batches: Sequence[Tensor],
    learning_rate: float,
    compute: LocalGradient,
    seed: int,
) -> Weights:
    copied, rng = copy.deepcopy(network).train(), generator(seed)
    copied.load_state_dict(training.before, strict=False)
    for name, parameter in copied.named_parameters():
        parameter.requires_grad_(name in training.before)
    with global_seed(seed):
        for batch in batches:
            copied.zero_grad(set_to_none=True)
            compute(copied, training.inputs[batch], labels[batch], rng)
            with torch.no_grad():
                for parameter in copied.parameters():
                    if parameter.grad is not None:
                        parameter.sub_(parameter.grad, alpha=learning_rate)
    return {name: value.detach() for name, value in copied.named_parameters() if value.requires_grad}


def _batches(own: Tensor, facts: BatchFacts, rng: torch.Generator) -> list[Tensor]:
    """Draw batches of the sizes of the client's steps, from one order of the images after the other."""
    sizes = facts.sizes or (facts.batch_size,) * facts.steps
    left, found = own[:0], []
    for size in sizes:
        while len(left) < min(size, len(own)):
            left = torch.cat([left, own[torch.randperm(len(own), generator=rng)]])
        found.append(left[:size])
        left = left[size:]
    return found


def drawn_halves(asked: Tensor, spare: Tensor, number: int, wanted: int, rng: torch.Generator) -> list[Tensor]:
    """Return the images of made-up clients, of which each candidate is in half.

    Candidates of a class that a client is in half of are as many as it may really hold, so that shares of classes are right.

    Args:
        asked: classes ``(n,)`` of the candidates, which are the first n images.
        spare: classes ``(m,)`` of the attacker's own images, which follow.
        number: of clients, even.
        wanted: images that a client has at least, where there are that many.
        rng: draws.
    """
    first = [_half_of_each_class(asked, rng) for _ in range(number // 2)]
    chosen = [one for inside in first for one in (inside, ~inside)]
    return [_filled(inside.nonzero().squeeze(1), asked, spare, wanted, rng) for inside in chosen]


def drawn_apart(asked: Tensor, spare: Tensor, number: int, wanted: int, rng: torch.Generator) -> list[Tensor]:
    """Return the images of made-up clients that hold no candidate; see :func:`drawn_halves`."""
    none = torch.empty(0, dtype=torch.int64)
    return [_filled(none, asked, spare, wanted, rng) for _ in range(number)]


def _half_of_each_class(labels: Tensor, rng: torch.Generator) -> Tensor:
    inside = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        places = (labels == label).nonzero().squeeze(1)
        order = places[torch.randperm(len(places), generator=rng)]
        odd = int(torch.randint(2, (1,), generator=rng)) if len(places) % 2 else 0
        inside[order[: len(places) // 2 + odd]] = True
    return inside


def _filled(own: Tensor, asked: Tensor, spare: Tensor, wanted: int, rng: torch.Generator) -> Tensor:
    """Return places with as many of the attacker's own images as are missing, by the candidates' shares of classes."""
    missing = wanted - len(own)
    if missing <= 0 or not len(spare):
        return own
    shares = torch.bincount(asked, minlength=int(max(asked.max(), spare.max())) + 1).double()[spare]
    if not bool((shares > 0).any()):
        return own
    per_class = torch.bincount(spare).double()[spare]
    chances = shares / per_class
    drawn = torch.multinomial(chances, min(missing, int((chances > 0).sum())), generator=rng)
    return torch.cat([own, len(asked) + drawn])
