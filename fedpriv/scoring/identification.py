"""Can the reconstruction tell the true image from others? The rank of the truth among decoys.

One guess at a target that knows nothing is nearest to the truth once in (decoys + 1). Of several guesses the one that is
compared with an image is chosen by the truth, and the best of many that know nothing is nearest far more often: so
what chance gives is then measured, by the same rule, on guesses made without the upload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedpriv.attacks.observation import TargetId
from fedpriv.evidence.truth import Truth
from fedpriv.scoring.definitions import squared_errors
from fedpriv.scoring.floors import PERMUTED
from fedpriv.scoring.intervals import Kind
from fedpriv.scoring.panel import ScoredGuesses
from fedpriv.scoring.records import Summary
from fedpriv.scoring.records.reconstruction import Control
from fedpriv.scoring.records.reconstruction import Identification as IdentificationRecord
from fedpriv.scoring.sections import Means
from fedpriv.util.seeds import generator

BLIND = ("noise", "random_same_class")
"""Blind guesses that differ from each other, so that the assignment has something to choose from."""

DECOYS = 100
ENOUGH_OF_CLASS = 20  # fewer decoys of the class than this, and all classes are drawn from


@dataclass(frozen=True)
class Identification:
    """How well one target's images are told from decoys.

    Attributes:
        top1: share of members, by weight, to which the assigned guess is nearer than to every decoy; in [0, 1]. A tie
            counts as one over the number of images tied.
        mean_rank: mean rank of the member, 1 is nearest.
        chance: what a single guess that knows nothing scores, 1 / (decoys + 1).
        decoys: how many there were.
        same_class: whether they were of the member's own class, for every member.
    """

    top1: float
    mean_rank: float
    chance: float
    decoys: int
    same_class: bool


def identify(
    guesses: Tensor,
    truth: Truth,
    assigned: Tensor,
    *parts: int | str,
    decoys: int = DECOYS,
    from_pool: bool = False,
) -> Identification:
    """Rank each member among decoys by mean squared error to the guess assigned to it.

    Args:
        guesses: ``(M, c, h, w)`` finite images in [0, 1].
        truth: the target; its non-members serve as decoys.
        assigned: ``(m,)`` which guess each member is compared with.
        parts: seed of the draw of decoys.
        decoys: at most so many. All of the member's class where the pool has 20 of it, else of any class.
        from_pool: the guesses are non-members themselves; then a decoy that is the guess itself is left out.
    """
    order = torch.randperm(len(truth.nonmembers), generator=generator(*parts))
    own = squared_errors(guesses, truth.members)[assigned, torch.arange(truth.n_c)]
    weights = truth.weights.double() / truth.weights.double().sum()
    top1 = rank = chance = 0.0
    counts, all_same = [], True
    for label in truth.label_weights():
        of_class = order[truth.nonmember_labels[order] == label]
        same = len(of_class) >= min(ENOUGH_OF_CLASS, decoys)
        all_same &= same
        drawn = truth.nonmembers[(of_class if same else order)[:decoys]]
        members = (truth.labels == label).nonzero().squeeze(1)
        for member, errors in zip(members.tolist(), squared_errors(guesses[assigned[members]], drawn), strict=True):
            against = errors[errors > 0] if from_pool else errors
            nearer = int((against < own[member]).sum())
            tied = int((against == own[member]).sum())
            share = float(weights[member])
            top1 += share / (1 + tied) if nearer == 0 else 0.0
            rank += share * (1 + nearer + tied / 2)
            chance += share / (len(against) + 1)
            counts.append(len(against))
    return Identification(top1, rank, chance, min(counts), all_same)


def identification(
    targets: Sequence[TargetId],
    truths: Sequence[Truth],
    attack: ScoredGuesses,
    floors: Mapping[str, ScoredGuesses],
    means: Means,
    seed: int,
) -> IdentificationRecord:
    """Return the metric ``identification_top1``.

    Args:
        targets: T identifiers.
        truths: T truths.
        attack: the attack's guesses, scored.
        floors: blind guesses, scored, and the control where it was run.
        means: makes the intervals.
        seed: of the draw of decoys.
    """

    def by_rule(panel: ScoredGuesses, from_pool: bool = False) -> list[Identification]:
        return [
            identify(
                shots,
                truth,
                one.assigned,
                *(seed, "decoys", target.round, target.client, target.index),
                from_pool=from_pool,
            )
            for shots, truth, one, target in zip(panel.guesses, truths, panel.scores, targets, strict=True)
        ]

    seen = by_rule(attack)
    top1 = means.finite([one.top1 for one in seen], "share")
    permuted = None
    if PERMUTED in floors:
        permuted = control_of(top1, [one.top1 for one in by_rule(floors[PERMUTED])], means, "difference")
    chance, of, blind = float(np.mean([one.chance for one in seen])), "decoys", None
    if any(len(shots) > 1 for shots in attack.guesses):
        blind = {
            name: float(np.mean([one.top1 for one in by_rule(floors[name], name == "random_same_class")]))
            for name in BLIND
        }
        rates = blind | ({} if permuted is None or permuted.mean is None else {PERMUTED: permuted.mean})
        of = max(rates, key=lambda name: rates[name])
        chance = rates[of]
    return IdentificationRecord(
        **dict(top1),
        chance=chance,
        chance_of=of,
        mean_rank=float(np.mean([one.mean_rank for one in seen])),
        decoys=tuple(sorted({one.decoys for one in seen})),
        same_class_targets=sum(one.same_class for one in seen),
        permuted=permuted,
        blind=blind,
    )


def control_of(own: Summary, control: Sequence[float], means: Means, kind: Kind = "mean") -> Control:
    """Return what the control scores, and the paired difference to it where all values are finite.

    Args:
        own: the attack's values.
        control: the control's, target by target.
        means: makes the interval.
        kind: what differences are.
    """
    values = np.asarray(control, dtype=np.float64)
    if not np.isfinite(values).all():
        return Control(mean=None, median=None)
    difference = None
    if own.mean is not None:
        gain = np.asarray(own.per_target, dtype=np.float64) - values
        difference = means.of(gain, range(len(gain)), kind)
    return Control(mean=float(values.mean()), median=float(np.median(values)), difference=difference)


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
