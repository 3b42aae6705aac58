"""Can the reconstruction tell the true image from others? The rank of the truth among decoys of its class.

What a guess that knows nothing reaches is measured, by the same rule, on the very targets and decoys: a class mean is
nearer to many images of its class than these are to each other, and of several guesses the one that is compared with an
image is chosen by the truth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedpriv.attacks.observation import TargetId
from fedpriv.evidence.pool import ENOUGH_DECOYS
from fedpriv.evidence.truth import Truth
from fedpriv.scoring.definitions import squared_errors
from fedpriv.scoring.floors import NEAREST, PERMUTED
from fedpriv.scoring.intervals import Kind, Values
from fedpriv.scoring.panel import ScoredGuesses
from fedpriv.scoring.records import Summary
from fedpriv.scoring.records.reconstruction import Control
from fedpriv.scoring.records.reconstruction import Identification as IdentificationRecord
from fedpriv.scoring.sections import Means

NO_DECOYS = f"not measured: no target has {ENOUGH_DECOYS} strangers of its class as decoys"


@dataclass(frozen=True)
class Identification:
    """Identification of one target's images among decoys.

    Attributes:
        top1: share of members, by weight, to which the assigned guess is nearer than to every decoy; in [0, 1]. A tie
            counts as one over the number of images tied.
        mean_rank: mean rank of the member, 1 is nearest.
        decoys: the smallest number of decoys that a member had.
    """

    top1: float
    mean_rank: float
    decoys: int


def identify(guesses: Tensor, truth: Truth, assigned: Tensor) -> Identification | None:
    """Rank each member among the decoys of its class by mean squared error to the guess assigned to it.

    Members with fewer than :data:`fedpriv.evidence.pool.ENOUGH_DECOYS` decoys have no part in it.

    Args:
        guesses: ``(M, c, h, w)`` finite images in [0, 1].
        truth: the target; its pool holds the decoys.
        assigned: ``(m,)`` which guess each member is compared with.

    Returns:
        None where no member has enough decoys.
    """
    own = squared_errors(guesses, truth.members)[assigned, torch.arange(truth.n_c)]
    weights = truth.weights.double()
    top1 = rank = total = 0.0
    counts = []
    for label in truth.label_weights():
        decoys = truth.pool.decoys_of(label)
        if len(decoys) < ENOUGH_DECOYS:
            continue
        counts.append(len(decoys))
        members = (truth.labels == label).nonzero().squeeze(1)
        against = _errors_of_used(guesses, assigned[members], decoys)
        nearer = (against < own[members, None]).sum(1)
        tied = (against == own[members, None]).sum(1).double()
        top1 += float((weights[members] * (nearer == 0) / (1 + tied)).sum())
        rank += float((weights[members] * (1 + nearer + tied / 2)).sum())
        total += float(weights[members].sum())
    return Identification(top1 / total, rank / total, min(counts)) if total > 0 else None


def _errors_of_used(guesses: Tensor, used: Tensor, decoys: Tensor) -> Tensor:
    """Return the errors between the guess used for each member and each decoy ``(m, q)``; no guess is compared twice."""
    if len(guesses) == 1:
        return squared_errors(guesses, decoys).expand(len(used), -1)
    different, place = used.unique(return_inverse=True)
    return squared_errors(guesses[different], decoys)[place]


@dataclass(frozen=True)
class Identified:
    """The metric ``identification_top1``, and what it is made of.

    Attributes:
        record: the metric.
        rows: targets that were judged.
        gains: attack less guess at these targets, by guess.
    """

    record: IdentificationRecord
    rows: tuple[int, ...]
    gains: Mapping[str, Values]


def identification(
    targets: Sequence[TargetId],
    truths: Sequence[Truth],
    attack: ScoredGuesses,
    floors: Mapping[str, ScoredGuesses],
    means: Means,
) -> Identified:
    """Return the metric ``identification_top1``, with every guess by the same rule.

    Args:
        targets: T identifiers.
        truths: T truths.
        attack: the attack's guesses, scored.
        floors: guesses without the upload, scored, and the control where it was run.
        means: makes the intervals.
    """

    def by_rule(panel: ScoredGuesses) -> list[Identification | None]:
        return [
            identify(shots, truth, one.assigned)
            for shots, truth, one in zip(panel.guesses, truths, panel.scores, strict=True)
        ]

    found = by_rule(attack)
    rows = tuple(row for row, one in enumerate(found) if one is not None)
    seen = [one for one in found if one is not None]
    hits = {
        name: np.array([one.top1 for one in by_rule(panel) if one is not None])
        for name, panel in floors.items()
        if name != NEAREST
    }
    blind = {name: float(shares.mean()) for name, shares in hits.items() if rows}
    of = max(blind, key=lambda name: blind[name]) if rows else None
    judged = means.keep(rows)
    own = judged.finite([one.top1 for one in seen], "share") if rows else None
    permuted = None
    if own is not None and PERMUTED in hits:
        permuted = control_of(own, hits[PERMUTED].tolist(), judged, "difference")
    record = IdentificationRecord.model_validate(
        dict(Summary.nothing(NO_DECOYS) if own is None else own)
        | {
            "per_target": tuple(None if one is None else one.top1 for one in found),
            "chance": None if of is None else blind[of],
            "chance_of": of,
            "mean_rank": float(np.mean([one.mean_rank for one in seen])) if rows else None,
            "decoys": tuple(sorted({one.decoys for one in seen})),
            "n_left_out": len(targets) - len(rows),
            "permuted": permuted,
            "blind": blind,
        }
    )
    gains = {name: np.array([one.top1 for one in seen]) - shares for name, shares in hits.items()}
    return Identified(record, rows, gains if rows else {})


def control_of(own: Summary, control: Sequence[float], means: Means, kind: Kind = "mean") -> Control:
    """Return the control's score, and the paired difference to it where all values are finite.

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
