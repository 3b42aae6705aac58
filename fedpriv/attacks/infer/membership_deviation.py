"""Membership from means: does an upload deviate from what is expected as the candidate does, seen against the scatter?

A prototype is the mean of its members' representations, a mixture a weighted mean of such. Of n images of class y whose
representations scatter around m_y with covariance S, the upload deviates by p - m_y = sum_i (g(x_i) - m_y) / n. A member's
own deviation z = g(x) - m_y is part of that sum, a stranger's is not, and the most powerful test between the two weighs
directions by the inverse of S (Dwork et al., "Robust traceability from trace amounts", FOCS 2015, for attributes that are
independent): members' scores lie about sqrt(k / n) standard deviations above strangers', with k the dimensions in which
representations scatter, where a distance sees but the few in which they scatter most. The score is the cosine

    z^T P D / sqrt(z^T P z  D^T P D),    P = (S + r tr(S) / d I)^-1,    D = upload - sum_c w_c m_c,

which asks neither for n nor for the scale of either. Means and covariance are of the attacker's own images under the
client's extractor; a class of which it has none takes the mean of all.

Of several rounds t, each under its own extractor, the score of class y is

    sum_t a_yt z_t^T P_t D_t / sqrt(sum_t z_t^T P_t z_t  sum_t a_yt^2 D_t^T P_t D_t).

For means a = 1 in every round that speaks of y. A mixture deviates by sum_c w_tc delta_c, of all classes at once, and its
weights change from round to round: the rows of a = (W^T W + q I)^-1 W^T take one class's part out, by ridge regression,
and leave the others' behind.

Uploads behind defenses: :mod:`fedpriv.attacks.infer.sent_means`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedpriv.attacks.infer.class_scatter import TINY, Scatter, enough, scatter
from fedpriv.attacks.infer.sent_means import Round, Sent
from fedpriv.util.seeds import generator

UNMIXING = 0.1
"""q over the mean square of a class's weights, summed over rounds; of 0.01 to 0.3, which did alike on two federations."""

FOLDS = 5
"""Parts of the own images, each scored by what the others say."""


def deviations(rounds: Sequence[Round], labels: Tensor, own_labels: Tensor) -> Tensor:
    """Return the cosines of candidates' deviations with the uploads' over all rounds ``(n,)``.

    Minus infinity where no round's upload holds a candidate's class.

    Args:
        rounds: at least one.
        labels: of candidates ``(n,)``.
        own_labels: of the attacker's own images ``(m,)``.
    """
    total = _Total(labels)
    for one, share in zip(rounds, _shares([one.sent for one in rounds]), strict=True):
        total.add(one.sent, share, one.features, scatter(one.own, own_labels, one.noise))
    return total.scores()


def left_out(rounds: Sequence[Round], own_labels: Tensor, *seed: int | str) -> Tensor:
    """Return scores of own images of classes sent, each as if the attacker had not had it; in no order that matters.

    Covariances are those of the images of other :data:`FOLDS`, means those of all but the image: with the means of fewer
    images, deviations and candidates share more of these means' own error, and every stranger seems to be a member.
    """
    parts = torch.randperm(len(own_labels), generator=generator(*seed)) % FOLDS
    known = [(one, scatter(one.own, own_labels, one.noise)) for one in rounds]
    shares, found = _shares([one.sent for one in rounds]), [torch.empty(0, dtype=torch.float64)]
    for part in range(FOLDS):
        asked, kept = parts == part, parts != part
        if not bool(asked.any()) or not enough(own_labels[kept]):
            continue
        total = _Total(own_labels[asked])
        for (one, whole), share in zip(known, shares, strict=True):
            others = scatter(one.own[kept], own_labels[kept], one.noise)
            there = replace(others, means=whole.means, overall=whole.overall)
            total.add(one.sent, share, one.own[asked], there, whole.without(one.own[asked], own_labels[asked]))
        found.append(total.scores())
    scores = torch.cat(found)
    return scores[scores.isfinite()]


class _Total:
    """Sums over rounds, by candidate."""

    def __init__(self, labels: Tensor) -> None:
        self._labels = labels
        self._products, self._lengths, self._squares = torch.zeros(3, len(labels), dtype=torch.float64)
        self._told = torch.zeros(len(labels), dtype=torch.bool)

    def add(self, sent: Sent, share: Tensor, features: Tensor, there: Scatter, moved: Tensor | None = None) -> None:
        """Add one round.

        Args:
            sent: what was uploaded.
            share: of the round in each class ``(C,)``.
            features: of candidates ``(n, d)``.
            there: what is expected.
            moved: how far the mean of its class is another for each candidate ``(n, d)``; None for not at all.
        """
        for place, label in enumerate(sent.classes.tolist()):
            asked = self._labels == label
            own, deviation = features[asked] - there.mean(label), sent.deviation(there, place)
            if moved is not None:
                own, deviation = own - moved[asked], deviation - sent.part(label) * moved[asked]
            self._products[asked] += share[label] * there.inner(own, deviation)
            self._lengths[asked] += there.inner(own, own)
            self._squares[asked] += share[label].square() * there.inner(deviation, deviation)
            self._told |= asked

    def scores(self) -> Tensor:
        """Return the cosines."""
        lengths, squares = self._lengths.clamp_min(TINY), self._squares.clamp_min(TINY)
        found: Tensor = (self._products / (lengths * squares).sqrt()).masked_fill(~self._told, -torch.inf)
        return found


def _shares(sent: Sequence[Sent]) -> Tensor:
    """Return with what sign and weight each round speaks of each class ``(T, C)``, float64: the columns of a."""
    n_classes = 1 + max(int(label) for one in sent for label in (*one.classes.tolist(), _last(one)))
    table = torch.zeros(len(sent), n_classes, dtype=torch.float64)
    for row, one in zip(table, sent, strict=True):
        if one.weights is None:
            row[one.classes] = 1
        else:
            row[: len(one.weights)] = one.weights
    if any(one.weights is None for one in sent):
        return table
    ridge = UNMIXING * table.square().sum() / n_classes
    within = table.T @ table + ridge.clamp_min(TINY) * torch.eye(n_classes, dtype=torch.float64)
    found: Tensor = torch.linalg.solve(within, table.T).T
    return found


def _last(sent: Sent) -> int:
    return -1 if sent.weights is None else len(sent.weights) - 1
