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

Behind a defense that the protocol names, what is expected is put through it. The upload's distance from that, over the
share of its length that is left, is the deviation; its variance, if it draws, joins the scatter that weighs directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedpriv.attacks.observation import Knowledge, Observation, Rehearsal
from fedpriv.attacks.read.extractors import represent
from fedpriv.util.seeds import generator
from fedpriv.wire.kinds import CLASS_MEANS, MIXTURES

AVERAGES = CLASS_MEANS | MIXTURES
"""Payloads that every member is a part of."""

RIDGE = 0.01
"""r; chosen on two federations among 1, 0.1, 0.01 and 0.001, of which the last three did alike."""

UNMIXING = 0.1
"""q over the mean square of a class's weights, summed over rounds; of 0.01 to 0.3, which did alike on two federations."""

USUAL = 10
"""Images that a noisy mean is taken to be of."""

REHEARSALS = 16
"""Times that what is expected is put through a client's defense, to see what that adds."""

FEWEST = 20
"""Own images, less one for each of their classes, below which no covariance is made of them."""

FOLDS = 5
"""Parts of the own images, each scored by what the others say."""

_LEAST_SCALE = 1e-2
"""Share of what is expected that a defense leaves, below which a deviation is not scaled up any more."""

_TINY = 1e-30
"""Least variance and least squared length that is divided by: a network that answers everything alike scatters nowhere."""


@dataclass(frozen=True)
class Scatter:
    """Where representations of classes lie.

    Attributes:
        means: class -> mean ``(d,)``.
        overall: mean of all ``(d,)``.
        numbers: class -> images that its mean is of.
        directions: ``(k, d)`` orthonormal rows, in which own images scatter.
        variances: along these ``(k,)``, r tr(S) / d included.
        least: r tr(S) / d, the variance in every other direction.
    """

    means: dict[int, Tensor]
    overall: Tensor
    numbers: dict[int, int]
    directions: Tensor
    variances: Tensor
    least: Tensor

    @property
    def trace(self) -> float:
        """Trace of P."""
        d, k = self.directions.shape[1], len(self.variances)
        return float((1 / self.variances).sum() + (d - k) / self.least)

    def mean(self, label: int) -> Tensor:
        """Return the expected representation ``(d,)`` of an image of a class."""
        return self.means.get(label, self.overall)

    def without(self, features: Tensor, labels: Tensor) -> Tensor:
        """Return the way that a class's mean moves when one of its images is left out, for each of these ``(n, d)``.

        Of the only one of its class it moves to the mean of all.
        """
        found = torch.empty_like(features)
        for label in labels.unique().tolist():
            asked, middle, number = labels == label, self.means[label], self.numbers[label]
            found[asked] = (middle - features[asked]) / (number - 1) if number > 1 else self.overall - middle
        return found

    def whiten(self, rows: Tensor) -> Tensor:
        """Return P^(1/2) x of rows ``(n, d)``, by the symmetric root."""
        parts = rows @ self.directions.T
        found: Tensor = (parts / self.variances.sqrt()) @ self.directions
        return found + (rows - parts @ self.directions) / self.least.sqrt()

    def inner(self, first: Tensor, second: Tensor) -> Tensor:
        """Return x^T P y of rows ``(n, d)`` and a row ``(d,)`` or as many rows: ``(n,)``."""
        one, other = first @ self.directions.T, second @ self.directions.T
        known, whole = (one * other), (first * second).sum(-1)
        found: Tensor = (known / self.variances).sum(-1) + (whole - known.sum(-1)) / self.least
        return found


def enough(labels: Tensor) -> bool:
    """True if own images of these classes make a covariance."""
    return len(labels) - len(labels.unique()) >= FEWEST


def scatter(features: Tensor, labels: Tensor, noise: float = 0.0) -> Scatter:
    """Return where own images ``(n, d)`` float64 of classes ``(n,)`` lie, pooled within classes.

    With ``noise``, the variance of each entry of an upload, directions weigh by what :data:`USUAL` images' mean scatters.
    """
    means, numbers, apart = {}, {}, []
    for label in labels.unique().tolist():
        own = features[labels == label]
        means[label], numbers[label] = own.mean(0), len(own)
        apart.append(own - means[label])
    rows = torch.cat(apart)
    free = max(1, len(rows) - len(means))
    variances, directions = _principal(rows)
    variances = variances / free
    least = (RIDGE * variances.sum() / rows.shape[1]).clamp_min(_TINY) + USUAL * noise
    return Scatter(means, features.mean(0), numbers, directions, variances + least, least)


def _principal(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return squared singular values ``(k,)`` of rows ``(n, d)`` and the right singular vectors, as rows ``(k, d)``.

    By the smaller of the two products, several times as fast as by singular values; those of which rounding leaves nothing
    sure are left out.
    """
    wide = rows.shape[1] > rows.shape[0]
    values, vectors = torch.linalg.eigh(rows @ rows.T if wide else rows.T @ rows)
    kept = values > values[-1].clamp_min(0) * 1e-10
    values, vectors = values[kept], vectors[:, kept]
    directions: Tensor = (vectors.T @ rows) / values.sqrt()[:, None] if wide else vectors.T
    return values, directions


@dataclass(frozen=True)
class Sent:
    """One round's upload.

    Attributes:
        rows: one mean a class ``(k, d)``, or of a mixture the same row for each of its classes; float64.
        classes: of the rows ``(k,)`` int64.
        weights: of a mixture, of every class ``(C,)`` float64; None of means.
    """

    rows: Tensor
    classes: Tensor
    weights: Tensor | None = None

    def deviation(self, there: Scatter, place: int) -> Tensor:
        """Return a row less what is expected of it ``(d,)``."""
        if self.weights is None:
            return self.rows[place] - there.mean(int(self.classes[place]))
        parts = [self.weights[label] * there.mean(label) for label in self.weights.nonzero().squeeze(1).tolist()]
        return self.rows[place] - torch.stack(parts).sum(0)

    def part(self, label: int) -> Tensor | float:
        """Return the part that the mean of a class has in what is expected."""
        return 1.0 if self.weights is None else self.weights[label]


@dataclass(frozen=True)
class Round:
    """One round as the attacker sees it.

    Attributes:
        sent: what was uploaded.
        features: of candidates under the client's extractor of that round ``(n, d)`` float64.
        own: of the attacker's own images ``(m, d)`` float64.
        noise: variance of an entry that a defense added to the upload, by the protocol.
    """

    sent: Sent
    features: Tensor
    own: Tensor
    noise: float = 0.0


def as_round(seen: Observation, knowledge: Knowledge, images: Tensor, own: Tensor, labels: Tensor) -> Round:
    """Return a round of a client whose upload holds class means, or a mixture with its weights.

    What a defense is known to do to what is expected is taken off the upload, in the mean, and its variance kept.

    Args:
        seen: the upload.
        knowledge: with the client's extractor of that round.
        images: candidates ``(n, c, h, w)``.
        own: the attacker's own images ``(m, c, h, w)``.
        labels: their classes ``(m,)``.
    """
    sent = AVERAGES.first(seen.upload)
    assert sent is not None
    rows, classes, weights = sent.rows().double().cpu(), sent.said("classes"), sent.said("weights")
    if weights is not None:
        weights = weights.double().flatten().cpu()
        classes = weights.nonzero().squeeze(1)
        rows = rows.expand(len(classes), -1)
    assert classes is not None
    features = represent(knowledge, seen.client, torch.cat([images.to(own.device), own])).double()
    found = Round(Sent(rows, classes.cpu(), weights), features[: len(images)], features[len(images) :])
    defend = knowledge.defended.get((seen.round, seen.client))
    return found if defend is None else _undefended(found, scatter(found.own, labels.cpu()), defend)


def _undefended(one: Round, there: Scatter, defend: Rehearsal) -> Round:
    rows = [row - one.sent.deviation(there, place) for place, row in enumerate(one.sent.rows)]
    expected = torch.stack(rows if one.sent.weights is None else rows[:1])
    with torch.no_grad():
        tried = torch.stack([defend(expected.float(), again).double().cpu() for again in range(REHEARSALS)])
    middle = tried.mean(0)
    scale = ((middle * expected).sum(1) / expected.square().sum(1).clamp_min(_TINY)).clamp_min(_LEAST_SCALE)[:, None]
    undone = expected + (one.sent.rows - middle) / scale
    return replace(one, sent=replace(one.sent, rows=undone), noise=float((tried.var(0) / scale.square()).mean()))


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
    found = [torch.empty(0, dtype=torch.float64)]
    for part in range(FOLDS):
        asked, kept = parts == part, parts != part
        if not bool(asked.any()) or not enough(own_labels[kept]):
            continue
        total = _Total(own_labels[asked])
        for one, share in zip(rounds, _shares([one.sent for one in rounds]), strict=True):
            whole = scatter(one.own, own_labels, one.noise)
            there = replace(
                scatter(one.own[kept], own_labels[kept], one.noise), means=whole.means, overall=whole.overall
            )
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
        lengths, squares = self._lengths.clamp_min(_TINY), self._squares.clamp_min(_TINY)
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
    within = table.T @ table + ridge.clamp_min(_TINY) * torch.eye(n_classes, dtype=torch.float64)
    found: Tensor = torch.linalg.solve(within, table.T).T
    return found


def _last(sent: Sent) -> int:
    return -1 if sent.weights is None else len(sent.weights) - 1
