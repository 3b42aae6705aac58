"""Can the reconstruction tell the true image from others? The rank of the truth among decoys of its class.

A client's images may be nearer to some guess than auxiliary ones are, so every guess is ranked by the same rule on the very
targets and decoys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpriv.eval.intervals import Means, Values
from fedpriv.eval.metrics import ScoredGuesses, squared_errors
from fedpriv.eval.records import Identification
from fedpriv.sources.truth import ENOUGH_DECOYS, Truth

_NO_ERROR = 1e-12
"""Errors below this count as this, so that nothing is divided by none."""


def identify(guesses: Tensor, truth: Truth) -> tuple[float, int] | None:
    """Look for each member among the decoys of its class, by mean squared error.

    How much an image stands out to a guess is the error of the guess's nearest other image over its own error. A member is
    found where it stands out to one of the guesses more than any decoy does to any of them; of a single guess it is the
    nearest image. The rule treats members and decoys alike and does not ask which guess is the member's, so that without
    the upload each of them is found equally often.

    Guesses are ``(M, c, h, w)`` in [0, 1], finite; the pool of the truth holds the decoys. Returned are the share of members
    re-identified, by weight, and the least number of decoys that one had. Members with fewer than
    :data:`fedpriv.sources.truth.ENOUGH_DECOYS` have no part in it; None where none has enough. A tie counts as one over the
    number of images tied.
    """
    current = squared_errors(guesses, truth.members)
    weights = truth.weights.double()
    top1 = total = 0.0
    counts = []
    for label in truth.label_weights():
        decoys = truth.pool.decoys_of(label)
        if len(decoys) < ENOUGH_DECOYS:
            continue
        counts.append(len(decoys))
        members = (truth.labels == label).nonzero().squeeze(1)
        top1 += float((weights[members] * _found(current[:, members], squared_errors(guesses, decoys))).sum())
        total += float(weights[members].sum())
    return (top1 / total, min(counts)) if total > 0 else None


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


def identification(
    truths: Sequence[Truth], attack: ScoredGuesses, floors: Mapping[str, ScoredGuesses], means: Means
) -> tuple[Identification, list[int], dict[str, Values]]:
    """Return the metric ``identification_top1``, the targets that were judged, and the attack's gains over guesses at these.

    Every guess and the control are judged by the same rule.
    """
    rule = list(map(identify, attack.guesses, truths))
    rows, seen = [row for row, one in enumerate(rule) if one is not None], [one for one in rule if one is not None]
    more: dict[str, Any] = {"per_target": tuple(None if one is None else one[0] for one in rule)}
    more |= {"n_left_out": len(truths) - len(rows), "decoys": tuple(sorted({one[1] for one in seen}))}
    if not rows:
        reason = f"not measured: no target has {ENOUGH_DECOYS} auxiliary images of its class as decoys"
        return Identification.nothing(reason, **more), rows, {}
    shares = np.array([one[0] for one in seen])
    hits = {
        name: np.array([one[0] for one in map(identify, panel.guesses, truths) if one is not None])
        for name, panel in floors.items()
    }
    gains = {name: shares - selected for name, selected in hits.items()}
    rates = {name: float(np.mean(theirs)) for name, theirs in hits.items()}
    best = max(rates, key=rates.__getitem__, default=None)
    more |= {"guesses": rates, "chance": rates.get(best or ""), "chance_of": best}
    return Identification(**dict(means.keep(rows).finite(shares, "share")) | more), rows, gains
