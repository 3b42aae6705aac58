"""Can the reconstruction tell the true image from others? The rank of the truth among decoys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.eval.definitions import squared_errors
from fedpriv.eval.truth import Truth
from fedpriv.seeds import generator

DECOYS = 100
ENOUGH_OF_CLASS = 20  # fewer decoys of the class than this, and all classes are drawn from


@dataclass(frozen=True)
class Identification:
    """How well one target's images are told from decoys.

    Attributes:
        top1: share of members, by weight, to which the assigned guess is nearer than to every decoy; in [0, 1]. A tie
            counts as one over the number of images tied.
        mean_rank: mean rank of the member, 1 is nearest.
        chance: what a guess that knows nothing scores, 1 / (decoys + 1).
        decoys: how many there were.
        same_class: whether they were of the member's own class, for every member.
    """

    top1: float
    mean_rank: float
    chance: float
    decoys: int
    same_class: bool


def identify(
    guesses: Tensor, truth: Truth, assigned: Tensor, *parts: int | str, decoys: int = DECOYS
) -> Identification:
    """Rank each member among decoys by mean squared error to the guess assigned to it.

    Args:
        guesses: ``(M, c, h, w)`` finite images in [0, 1].
        truth: the target; its non-members serve as decoys.
        assigned: ``(m,)`` which guess each member is compared with.
        parts: seed of the draw of decoys.
        decoys: at most so many. All of the member's class where the pool has 20 of it, else of any class.
    """
    order = torch.randperm(len(truth.nonmembers), generator=generator(*parts))
    own = squared_errors(guesses, truth.members)[assigned, torch.arange(truth.n_c)]
    weights = truth.weights.double() / truth.weights.double().sum()
    drawn: dict[int, tuple[Tensor, bool]] = {}
    for label in truth.label_weights():
        of_class = order[truth.nonmember_labels[order] == label]
        same = len(of_class) >= min(ENOUGH_OF_CLASS, decoys)
        drawn[label] = ((of_class if same else order)[:decoys], same)
    errors = {label: squared_errors(guesses, truth.nonmembers[index]) for label, (index, _) in drawn.items()}
    top1 = rank = chance = 0.0
    counts = []
    for member, label in enumerate(truth.labels.tolist()):
        against = errors[label][assigned[member]]
        nearer = int((against < own[member]).sum())
        tied = int((against == own[member]).sum())
        share = float(weights[member])
        top1 += share / (1 + tied) if nearer == 0 else 0.0
        rank += share * (1 + nearer + tied / 2)
        chance += share / (len(against) + 1)
        counts.append(len(against))
    return Identification(top1, rank, chance, min(counts), all(same for _, same in drawn.values()))


def identify_features(features: Tensor, truth: Tensor, clients: Sequence[int]) -> tuple[list[float], float]:
    """Tell whether each recovered vector is nearest to its own true vector among those of the same client.

    Args:
        features: ``(T, d)`` recovered.
        truth: ``(T, d)`` true.
        clients: T numbers.

    Returns:
        1 or 0 for each target, and what a guess that knows nothing scores: the mean of 1 / (targets of the client).
    """
    owner = torch.tensor(list(clients))
    distance = torch.cdist(features.double(), truth.double()).masked_fill(owner[:, None] != owner, torch.inf)
    hits = (distance.argmin(1) == torch.arange(len(owner))).double()
    chance = (1 / (owner[:, None] == owner).sum(1).double()).mean()
    return hits.tolist(), float(chance)
