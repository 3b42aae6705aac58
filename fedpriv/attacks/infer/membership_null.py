"""The null of membership: is this upload nearer to the candidate than uploads that never saw it?

How near a candidate lies to an upload says as much about the candidate as about membership: easy images are near to every
client's. Data of clients are disjoint in the main, so the other clients' uploads, each under its own extractor, show how
near an upload comes that was not computed from the candidate, and rounds are averaged over (the principle of FedMIA: Zhu et
al., CVPR 2025). Three rules, by what is compared.

Distances d_k(x) of candidate x from client k's upload:

    score(x) = 1/2 mean over the other clients j of log d_j(x)  -  log d_k(x).

In logarithms, because a distance of zero, which only a member reaches, must outweigh everything: differences of the
distances themselves, or over their spread as in the paper, bury it (of raw representations they found 7 to 10 % of the
members at 1 % false positives, where the distance alone finds all). By half, because a handful of others, whose extractors
are not the client's, know a candidate's difficulty but roughly.

What trained weights say of a candidate, s_k(x), is first of all about its class: training on a class lowers the loss of all
its images, and an update resembles the gradients of all of them. So what is usual among the candidates of a class is taken
off before anything is compared,

    c_k(x) = s_k(x) - (n m_k(class of x) + m_k) / (n + 1),
    score(x) = c_k(x) - 1/2 mean over the other clients j of c_j(x),

with m_k the median of s_k over all candidates, and m_k(y) over the n of class y, each c_k on the scale of its own spread.

What a client's network makes of public inputs, the same inputs for everybody, is the one thing where clients can be held
against one another candidate by candidate, as in the paper:

    z(x) = (s_k(x) - mean of the others' s_j(x)) / (d(x) + 0.3 median of d over candidates),

with d(x) the standard deviation of the others' s_j(x), and then z less what is usual among the candidates of a class, as
above. A floor under d, because nine clients do not know a spread.

With several rounds the scores of each are put on one scale and averaged. The same scores, with another client j in the place
of the client and without the client's own upload, are what images score that an upload was not computed from: from these
(or from images of the attacker's own, scored for the client itself) a threshold is set without the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LEAST = 1e-9
"""A distance that counts as none."""

SHARE = 0.5
"""Of the others' mean that is taken off; 0 is the distance alone. Chosen on five federations, confirmed on four others."""

FLOOR = 0.3
"""Of the median spread of other clients' signals that is added to each; chosen on six federations, where 0.1 and 1 did as
well, confirmed on others."""

FEWEST_FOR_A_SPREAD = 3
"""Other clients below which a candidate's spread is not taken."""

OWN_IMAGES = -1
"""Key of scores of the attacker's own images, beside those of other clients by their number."""

Rule = Callable[[Tensor, Sequence[Tensor]], Tensor]
"""Signals of the client's upload ``(n,)`` and of other clients' -> scores ``(n,)``."""


@dataclass(frozen=True)
class Judged:
    """Scores of one client's candidates by one round, or by all.

    Attributes:
        scores: ``(n,)`` float64; minus infinity where membership is ruled out.
        known: scores ``(m,)`` of what is no member, by the other client in whose upload it is not, or :data:`OWN_IMAGES`.
    """

    scores: Tensor
    known: Mapping[int, Tensor]

    def null(self) -> Tensor:
        """Return all scores of what is no member ``(m,)``, of classes that the upload speaks of."""
        found = torch.cat([torch.empty(0, dtype=torch.float64), *self.known.values()])
        return found[found.isfinite()]


def judged(own: Tensor, others: Mapping[int, Tensor], n_asked: int, rule: Rule) -> Judged:
    """Score candidates, and what the attacker knows to be no members.

    Args:
        own: signals ``(n,)`` of the client's upload for its candidates, and after them for images of the attacker's own.
        others: the same of other clients' uploads.
        n_asked: how many are candidates.
        rule: of scoring.
    """
    scores = rule(own, list(others.values()))
    if n_asked < len(own):
        return Judged(scores[:n_asked], {OWN_IMAGES: scores[n_asked:]})
    known = {}
    if len(others) > 1:
        for client, signals in others.items():
            known[client] = rule(signals, [one for other, one in others.items() if other != client])
    return Judged(scores, known)


def over_rounds(rounds: Sequence[Judged]) -> Judged:
    """Return the mean over rounds of scores on one scale: those of candidates less their median, over their spread.

    A round's own verdict that membership is ruled out stands if the last round gives it. One round is returned as it is.
    """
    if len(rounds) == 1:
        return rounds[0]
    scaled: list[Tensor] = []
    known: dict[int, list[Tensor]] = {}
    for one in rounds:
        told = one.scores[one.scores.isfinite()]
        if not len(told):
            continue
        middle = told.median()
        spread = (told - middle).abs().median()
        spread = spread if spread > 0 else torch.ones_like(spread)
        scaled.append((one.scores - middle) / spread)
        for client, values in one.known.items():
            known.setdefault(client, []).append((values - middle) / spread)
    if not scaled:
        return rounds[-1]
    mean = _mean_of_finite(scaled).masked_fill(~rounds[-1].scores.isfinite(), -torch.inf)
    return Judged(mean, {client: _mean_of_finite(values) for client, values in known.items()})


def _mean_of_finite(rows: Sequence[Tensor]) -> Tensor:
    stack = torch.stack(list(rows))
    told = stack.isfinite()
    total = torch.where(told, stack, torch.zeros((), dtype=stack.dtype)).sum(0)
    return torch.where(told.any(0), total / told.sum(0).clamp_min(1), -torch.inf)


def beside_others(own: Tensor, others: Sequence[Tensor]) -> Tensor:
    """Return scores ``(n,)`` of distances, float64; minus infinity where the client's own upload rules the candidate out.

    A client whose upload does not speak of a candidate's class says nothing of it; where no other client's does, the mean
    over all candidates stands in.

    Args:
        own: distances ``(n,)`` from the client's upload, at least 0; infinite where membership is ruled out.
        others: the same from the upload of each other client; with none the distance alone is scored.
    """
    if not others:
        return -own.double()
    logs = torch.stack([_log(one) for one in others])
    told = logs.isfinite()
    known = torch.where(told, logs, torch.zeros((), dtype=torch.float64))
    number = told.sum(0)
    overall = known.sum() / told.sum().clamp_min(1)
    null = torch.where(number > 0, known.sum(0) / number.clamp_min(1), overall)
    return SHARE * null - _log(own)


def within_classes(labels: Tensor) -> Rule:
    """Return the rule for signals of trained weights, of candidates of classes ``(n,)``."""
    remaining = _less_the_usual(labels)

    def centred(signals: Tensor) -> Tensor:
        found = remaining(signals.double())
        spread = float(found.abs().median())
        return found / (spread or 1.0)

    def rule(own: Tensor, others: Sequence[Tensor]) -> Tensor:
        own = centred(own)
        return own - SHARE * torch.stack([centred(one) for one in others]).mean(0) if others else own

    return rule


def beyond_the_spread(labels: Tensor) -> Rule:
    """Return the rule for signals of answers to public inputs, of candidates of classes ``(n,)``."""
    remaining = _less_the_usual(labels)

    def rule(own: Tensor, others: Sequence[Tensor]) -> Tensor:
        above = own.double()
        if others:
            table = torch.stack([one.double() for one in others])
            above = above - table.mean(0)
            if len(others) >= FEWEST_FOR_A_SPREAD:
                spread = table.std(0)
                floor = FLOOR * _median(spread)
                above = above / torch.where(floor > 0, spread + floor, torch.ones_like(spread))
        return remaining(above)

    return rule


def _less_the_usual(labels: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the map that takes the median of its class, drawn towards the median of all, off each value ``(n,)``."""
    _, place, number = labels.cpu().unique(return_inverse=True, return_counts=True)

    def remaining(values: Tensor) -> Tensor:
        middles = torch.stack([_median(values[place == one]) for one in range(len(number))])
        usual = (number * middles + _median(values)) / (number + 1)
        found: Tensor = values - usual[place]
        return found

    return remaining


def _median(values: Tensor) -> Tensor:
    """Return the middle value, of an even number the mean of the two."""
    middle: Tensor = values.quantile(0.5)
    return middle


def _log(distances: Tensor) -> Tensor:
    return distances.double().clamp_min(LEAST).log()
