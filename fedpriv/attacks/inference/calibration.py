"""Calibration of membership signals: is this upload nearer to the candidate than uploads that never saw it?

Easy images are near to every client's upload. Clients' data are mostly disjoint, so the other clients' uploads, each under
its own extractor, show how near an upload comes that was not computed from the candidate (the principle of FedMIA: Zhu et
al., CVPR 2025). Three rules:

Distances d_k(x) of candidate x from client k's upload, in logarithms, because a distance of zero, which only a member
reaches, must outweigh everything, and by half, because a few others know a candidate's difficulty but roughly:

    score(x) = 1/2 mean over the other clients j of log d_j(x)  -  log d_k(x).

Signals s_k(x) of trained weights, which are mostly about the class of x, less the median of all candidates m_k and of the n
of the class m_k(y), each on the scale of its own spread:

    c_k(x) = s_k(x) - (n m_k(class of x) + m_k) / (n + 1),
    score(x) = c_k(x) - 1/2 mean over the other clients j of c_j(x).

Signals from the same public inputs for everybody, compared candidate by candidate, and then less the class median as above,
with d(x) the standard deviation of the others' signals:

    z(x) = (s_k(x) - mean of the others' s_j(x)) / (d(x) + 0.3 median of d over candidates).

The same scores with another client in the place of the client, or of the attacker's own images, are those of non-members: a
threshold is set from them without the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LEAST = 1e-9
"""A distance that counts as none."""

SHARE = 0.5
"""Share of the others' mean that is taken off. Chosen on five federations, confirmed on four others."""

FLOOR = 0.3
"""Share of the median spread of other clients' signals that is added to each. Chosen on six federations, where 0.1 and 1 did
as well, confirmed on others."""

FEWEST_FOR_A_SPREAD = 3
"""Other clients below which a candidate's spread is not taken."""

AUXILIARY = -1
"""Key of scores of the attacker's own images, beside those of other clients by their number."""

Rule = Callable[[Tensor, Sequence[Tensor]], Tensor]
"""Signals of the client's upload ``(n,)`` and of other clients' -> scores ``(n,)``."""


@dataclass(frozen=True)
class CandidateScores:
    """Scores of one client's candidates by one round, or by all.

    Attributes:
        scores: ``(n,)`` float64; minus infinity where membership is ruled out.
        known: scores ``(m,)`` of known non-members, by the other client whose upload they are of, or :data:`AUXILIARY`.
    """

    scores: Tensor
    known: Mapping[int, Tensor]

    def null(self) -> Tensor:
        """Return all finite scores of known non-members ``(m,)``."""
        scores = torch.cat([torch.empty(0, dtype=torch.float64), *self.known.values()])
        return scores[scores.isfinite()]


def score_candidates(own: Tensor, others: Mapping[int, Tensor], n_asked: int, rule: Rule) -> CandidateScores:
    """Score ``n_asked`` candidates, and known non-members.

    Signals ``own`` ``(n,)`` of the client's upload are of the candidates, and after them of images of the attacker's own;
    ``others`` are those of other clients' uploads.
    """
    scores = rule(own, list(others.values()))
    if n_asked < len(own):
        return CandidateScores(scores[:n_asked], {AUXILIARY: scores[n_asked:]})
    known = {}
    if len(others) > 1:
        for client, signals in others.items():
            known[client] = rule(signals, [one for other, one in others.items() if other != client])
    return CandidateScores(scores, known)


def average_rounds(rounds: Sequence[CandidateScores]) -> CandidateScores:
    """Return the mean over rounds of scores on one scale: those of candidates less their median, over their spread.

    Candidates that the last round rules out stay ruled out. One round is returned as it is.
    """
    if len(rounds) == 1:
        return rounds[0]
    scaled: list[Tensor] = []
    known: dict[int, list[Tensor]] = {}
    for one in rounds:
        finite = one.scores[one.scores.isfinite()]
        if not len(finite):
            continue
        middle = finite.median()
        spread = (finite - middle).abs().median()
        spread = spread if spread > 0 else torch.ones_like(spread)
        scaled.append((one.scores - middle) / spread)
        for client, values in one.known.items():
            known.setdefault(client, []).append((values - middle) / spread)
    if not scaled:
        return rounds[-1]
    mean = _mean_of_finite(scaled).masked_fill(~rounds[-1].scores.isfinite(), -torch.inf)
    return CandidateScores(mean, {client: _mean_of_finite(values) for client, values in known.items()})


def _mean_of_finite(rows: Sequence[Tensor]) -> Tensor:
    stack = torch.stack(list(rows))
    finite = stack.isfinite()
    total = torch.where(finite, stack, torch.zeros((), dtype=stack.dtype)).sum(0)
    return torch.where(finite.any(0), total / finite.sum(0).clamp_min(1), -torch.inf)


def calibrate_by_other_clients(own: Tensor, others: Sequence[Tensor]) -> Tensor:
    """Return scores ``(n,)`` of distances, float64; minus infinity where the client's own upload rules the candidate out.

    The calibration is the mean over the other clients whose uploads hold the candidate's class, or where none does over all
    candidates.

    Args:
        own: distances ``(n,)`` from the client's upload, at least 0; infinite where membership is ruled out.
        others: the same from the upload of each other client; with none the distance alone is scored.
    """
    if not others:
        return -own.double()
    logs = torch.stack([one.double().clamp_min(LEAST).log() for one in others])
    finite = logs.isfinite()
    finite_logs = torch.where(finite, logs, torch.zeros((), dtype=torch.float64))
    number = finite.sum(0)
    overall = finite_logs.sum() / finite.sum().clamp_min(1)
    null = torch.where(number > 0, finite_logs.sum(0) / number.clamp_min(1), overall)
    return SHARE * null - own.double().clamp_min(LEAST).log()


def calibrate_by_class(labels: Tensor) -> Rule:
    """Return the rule for signals of trained weights, of candidates of classes ``(n,)``."""
    remaining = _subtract_class_median(labels)

    def centred(signals: Tensor) -> Tensor:
        found = remaining(signals.double())
        spread = float(found.abs().median())
        return found / (spread or 1.0)

    def rule(own: Tensor, others: Sequence[Tensor]) -> Tensor:
        own = centred(own)
        return own - SHARE * torch.stack([centred(one) for one in others]).mean(0) if others else own

    return rule


def calibrate_by_spread(labels: Tensor) -> Rule:
    """Return the rule for signals of answers to public inputs, of candidates of classes ``(n,)``."""
    remaining = _subtract_class_median(labels)

    def rule(own: Tensor, others: Sequence[Tensor]) -> Tensor:
        above = own.double()
        if others:
            table = torch.stack([one.double() for one in others])
            above = above - table.mean(0)
            if len(others) >= FEWEST_FOR_A_SPREAD:
                spread = table.std(0)
                floor = FLOOR * spread.quantile(0.5)
                above = above / torch.where(floor > 0, spread + floor, torch.ones_like(spread))
        return remaining(above)

    return rule


def _subtract_class_median(labels: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the map that takes the median of its class, drawn towards the median of all, off each value ``(n,)``."""
    _, place, number = labels.cpu().unique(return_inverse=True, return_counts=True)

    def remaining(values: Tensor) -> Tensor:
        middles = torch.stack([values[place == one].quantile(0.5) for one in range(len(number))])
        usual = (number * middles + values.quantile(0.5)) / (number + 1)
        found: Tensor = values - usual[place]
        return found

    return remaining
