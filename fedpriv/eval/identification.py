"""Can the reconstruction tell the true image from others? The rank of the truth among decoys of its class.

A client's images may be nearer to some guess than auxiliary ones are, so every guess is ranked by the same rule on the very
targets and decoys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedpriv.attacks.observation import TargetId
from fedpriv.eval.floors import NEAREST, SHUFFLED
from fedpriv.eval.intervals import Kind, Means, Values
from fedpriv.eval.metrics import ScoredGuesses, squared_errors
from fedpriv.eval.records import Control, Summary
from fedpriv.eval.records import Identification as IdentificationRecord
from fedpriv.sources.truth import ENOUGH_DECOYS, Truth

_NO_ERROR = 1e-12
"""Errors below this count as this, so that nothing is divided by none."""

NO_DECOYS = f"not measured: no target has {ENOUGH_DECOYS} auxiliary images of its class as decoys"


@dataclass(frozen=True)
class Identification:
    """Identification of one target's images among decoys: share of members re-identified, by weight, and their mean rank.

    ``decoys`` is the least that a member had.
    """

    top1: float
    mean_rank: float
    decoys: int


def identify(guesses: Tensor, truth: Truth, assigned: Tensor) -> Identification | None:
    """Look for each member among the decoys of its class, by mean squared error.

    How much an image stands out to a guess is the error of the guess's nearest other image over its own error. A member is
    found where it stands out to one of the guesses more than any decoy does to any of them; of a single guess it is the
    nearest image. The rule treats members and decoys alike and does not ask which guess is the member's, so that without
    the upload each of them is found equally often.

    Members with fewer than :data:`fedpriv.sources.truth.ENOUGH_DECOYS` decoys have no part in it.

    Args:
        guesses: ``(M, c, h, w)`` finite images in [0, 1].
        truth: the target; its pool holds the decoys.
        assigned: ``(m,)`` which guess each member is compared with, for ranks.

    Returns:
        None where no member has enough decoys. A tie counts as one over the number of images tied.
    """
    current = squared_errors(guesses, truth.members)
    weights = truth.weights.double()
    top1 = rank = total = 0.0
    counts = []
    for label in truth.label_weights():
        decoys = truth.pool.decoys_of(label)
        if len(decoys) < ENOUGH_DECOYS:
            continue
        counts.append(len(decoys))
        members = (truth.labels == label).nonzero().squeeze(1)
        errors, part = squared_errors(guesses, decoys), weights[members]
        used = errors[assigned[members]]
        named = current[assigned[members], members][:, None]
        nearer, tied = (used < named).sum(1), (used == named).sum(1)
        top1 += float((part * _found(current[:, members], errors)).sum())
        rank += float((part * (1 + nearer + tied.double() / 2)).sum())
        total += float(part.sum())
    return Identification(top1 / total, rank / total, min(counts)) if total > 0 else None


def _found(members: Tensor, decoys: Tensor) -> Tensor:
    """Return for each member 1 where it is found, a share in a tie, else 0, from errors ``(M, m)`` and ``(M, q >= 2)``."""
    current, other = members.clamp_min(_NO_ERROR), decoys.clamp_min(_NO_ERROR)
    nearest = other.topk(2, dim=1, largest=False)
    first, second = nearest.values.unbind(1)
    member = (current / first[:, None]).min(0).values
    decoy = (first[:, None] / torch.minimum(current, second[:, None])).min(0).values
    details = (member < decoy).double()
    for position in (member == decoy).nonzero().flatten().tolist():  # exact copies alone
        others = first[:, None].expand_as(other).scatter(1, nearest.indices[:, :1], second[:, None])
        ratios = (other / torch.minimum(current[:, position, None], others)).min(0).values
        details[position] = 1 / (1 + int((ratios == member[position]).sum()))
    return details


@dataclass(frozen=True)
class Identified:
    """The metric ``identification_top1``, the targets that were judged, and by guess the attack's gains at these."""

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
    """Return the metric ``identification_top1`` of T targets, with every guess and the control by the same rule."""

    def by_rule(panel: ScoredGuesses) -> list[Identification | None]:
        return [
            identify(shots, truth, score.assigned)
            for shots, truth, score in zip(panel.guesses, truths, panel.scores, strict=True)
        ]

    rule = by_rule(attack)
    rows = tuple(row for row, one in enumerate(rule) if one is not None)
    seen = [one for one in rule if one is not None]
    if not rows:
        missing = {"chance": None, "chance_of": None, "mean_rank": None, "decoys": (), "n_left_out": len(targets)}
        nothing = IdentificationRecord.nothing(NO_DECOYS, per_target=(None,) * len(targets), **missing)
        return Identified(nothing, (), {})
    judged, shares = means.keep(rows), np.array([entry.top1 for entry in seen])
    hits = {
        name: np.array([one.top1 for one in by_rule(panel) if one is not None])
        for name, panel in floors.items()
        if name != NEAREST
    }
    rates = {name: float(guess.mean()) for name, guess in hits.items()}
    of = max(rates, key=lambda name: rates[name])
    current = judged.finite(shares, "share")
    shuffled = control_of(current, hits[SHUFFLED].tolist(), judged, "difference") if SHUFFLED in hits else None
    record = IdentificationRecord.model_validate(
        dict(current)
        | {
            "per_target": tuple(None if one is None else one.top1 for one in rule),
            "chance": rates[of],
            "chance_of": of,
            "mean_rank": float(np.mean([item.mean_rank for item in seen])),
            "decoys": tuple(sorted({one.decoys for one in seen})),
            "n_left_out": len(targets) - len(rows),
            "shuffled": shuffled,
            "blind": {name: float(hit.mean()) for name, hit in hits.items()},
        }
    )
    return Identified(record, rows, {name: shares - selected for name, selected in hits.items()})


def control_of(summary: Summary, control: Sequence[float], means: Means, kind: Kind = "mean") -> Control:
    """Return the control's score, and the paired difference of ``summary`` to it where all are finite."""
    values = np.asarray(control, dtype=np.float64)
    if not np.isfinite(values).all():
        return Control(mean=None, median=None)
    difference = None
    if summary.mean is not None:
        gain = np.asarray(summary.per_target, dtype=np.float64) - values
        difference = means.of(gain, range(len(gain)), kind)
    return Control(mean=float(values.mean()), median=float(np.median(values)), difference=difference)
