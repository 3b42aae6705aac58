"""Uploads that are means of representations or outputs, or mixtures of such means, and what is expected of them.

Expectations are of the attacker's own images: means by class, and one pooled covariance S within classes, with
P = (S + r tr(S) / d I)^-1. Over rounds, each under its own extractor, own images say how far two rounds t and s show an
image alike: with Z their deviations, whitened by the symmetric root of P, which changes little where an extractor does,

    C_ts = tr Z_t^T Z_s / (|Z_t| |Z_s|).

Expected means are put through a defense that the protocol names. The upload's distance from that, over the share of length
that is left, is the deviation; its variance, if the defense draws, is kept as noise. Behind a bound on lengths, which
depends on the upload's unknown length, the share is that at which the upload resembles the expectation most. Entries that a
defense leaves out are not compared (:meth:`MeanRound.parts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedpriv.attacks.inputs.extractors import represent
from fedpriv.attacks.observation import Knowledge, Observation, Rehearsal
from fedpriv.wire.kinds import CLASS_MEANS, CLASS_OUTPUTS, MIXTURES

RIDGE = 0.01
"""r; chosen on two federations among 1, 0.1, 0.01 and 0.001, of which the last three did alike."""

USUAL = 10
"""Assumed number of images of a noisy mean."""

FEWEST = 20
"""Fewest own images, less one for each of their classes, of which a covariance is computed."""

FOLDS = 5
"""Folds of the own images, each scored by the others."""

TINY = 1e-30
"""Least variance and squared length that is divided by."""

AVERAGES = CLASS_MEANS | MIXTURES
"""Means of representations."""

MEANS = AVERAGES | CLASS_OUTPUTS
"""Means of representations or outputs."""

REHEARSALS = 16
"""Simulations of a client's defense, for its mean and variance."""

_LEAST_SCALE = 1e-2
"""Least share of length left by a defense that a deviation is scaled up by."""

_WHOLE = 0.9
"""Share of entries that are not zero below which a defense drops entries, and does not just round some to zero."""

_BENT = 0.9
"""A defense that leaves less than this part of its share for twice the length is a bound on lengths."""


@dataclass(frozen=True)
class ClassCovariance:
    """Means and pooled covariance of representations of classes.

    Attributes:
        means: class -> mean ``(d,)``.
        overall: mean of all ``(d,)``.
        numbers: class -> images of its mean.
        directions: ``(k, d)`` orthonormal rows in which own images scatter.
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
        """Return the move of a class's mean without each of these ``(n, d)``; without the only one to the mean of all."""
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


def enough_images(labels: Tensor) -> bool:
    """True if there are enough own images of these classes for a covariance."""
    return len(labels) - len(labels.unique()) >= FEWEST


def class_covariance(features: Tensor, labels: Tensor, noise: float = 0.0) -> ClassCovariance:
    """Return means and covariance of own images ``(n, d)`` float64 of classes ``(n,)``.

    With ``noise``, the variance of each entry of an upload, as it adds to a mean of :data:`USUAL` images.
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
    least = (RIDGE * variances.sum() / rows.shape[1]).clamp_min(TINY) + USUAL * noise
    return ClassCovariance(means, features.mean(0), numbers, directions, variances + least, least)


def _principal(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return squared singular values ``(k,)`` of rows ``(n, d)`` and the right singular vectors, as rows ``(k, d)``.

    By the smaller of the two products, several times as fast as by an SVD, and without those lost in rounding.
    """
    wide = rows.shape[1] > rows.shape[0]
    values, vectors = torch.linalg.eigh(rows @ rows.T if wide else rows.T @ rows)
    kept = values > values[-1].clamp_min(0) * 1e-10
    values, vectors = values[kept], vectors[:, kept]
    directions: Tensor = (vectors.T @ rows) / values.sqrt()[:, None] if wide else vectors.T
    return values, directions


@dataclass(frozen=True)
class MeanUpload:
    """One round's upload.

    Attributes:
        rows: one mean a class ``(k, d)``, or of a mixture the same row for each of its classes; float64.
        classes: of the rows ``(k,)`` int64.
        weights: of a mixture, of every class ``(C,)`` float64; None of means.
    """

    rows: Tensor
    classes: Tensor
    weights: Tensor | None = None

    def deviation(self, there: ClassCovariance, place: int) -> Tensor:
        """Return a row less its expectation ``(d,)``."""
        if self.weights is None:
            return self.rows[place] - there.mean(int(self.classes[place]))
        parts = [self.weights[label] * there.mean(label) for label in self.weights.nonzero().squeeze(1).tolist()]
        return self.rows[place] - torch.stack(parts).sum(0)


@dataclass(frozen=True)
class MeanRound:
    """One round as the attacker sees it.

    Attributes:
        sent: what was uploaded.
        features: of candidates under the client's extractor of that round, or its whole model, ``(n, d)`` float64.
        own: of the attacker's own images ``(m, d)`` float64.
        noise: variance of an entry that a defense added to the upload.
        entries: ``(k, d)`` bool, which entries of rows were sent; None for all.
    """

    sent: MeanUpload
    features: Tensor
    own: Tensor
    noise: float = 0.0
    entries: Tensor | None = None

    def parts(self) -> list[MeanRound]:
        """Return one round for each set of entries that was sent; itself where all entries were."""
        if self.entries is None:
            return [self]
        found, sent = [], self.sent
        rows = range(len(sent.rows)) if sent.weights is None else range(1)
        for place in rows:
            kept = self.entries[place].double()
            own = slice(place, place + 1) if sent.weights is None else slice(None)
            part = MeanUpload(sent.rows[own] * kept, sent.classes[own], sent.weights)
            found.append(replace(self, sent=part, features=self.features * kept, own=self.own * kept, entries=None))
        return found


def read_mean_round(seen: Observation, knowledge: Knowledge, images: Tensor, own: Tensor, labels: Tensor) -> MeanRound:
    """Return a round of a client whose upload holds class means, or a mixture with its weights; a known defense is undone.

    Args:
        seen: the upload.
        knowledge: with the client's extractor of that round, and for outputs its head.
        images: candidates ``(n, c, h, w)``.
        own: the attacker's own images ``(m, c, h, w)``.
        labels: their classes ``(m,)``.
    """
    sent = MEANS.first(seen.upload)
    assert sent is not None
    rows, classes, weights = sent.rows().double().cpu(), sent.said("classes"), sent.said("weights")
    if weights is not None:
        weights = weights.double().flatten().cpu()
        classes = weights.nonzero().squeeze(1)
        rows = rows.expand(len(classes), -1)
    assert classes is not None
    features = represent(knowledge, seen.client, torch.cat([images.to(own.device), own])).double()
    first = MeanUpload(rows, classes.cpu(), weights)
    if sent.kind in CLASS_OUTPUTS:
        features = _outputs(features, *knowledge.heads[seen.client], first, labels.cpu())
    round_ = MeanRound(first, features[: len(images)], features[len(images) :])
    defend = knowledge.defended.get((seen.round, seen.client))
    return round_ if defend is None else _undefended(round_, labels.cpu(), defend)


def _outputs(features: Tensor, weight: Tensor, bias: Tensor, sent: MeanUpload, labels: Tensor) -> Tensor:
    """Return logits or probabilities ``(n, C)`` of representations ``(n, d)``, whichever is nearer to the upload.

    The last images are the attacker's own, of the classes ``labels``.
    """
    logits = features @ weight.double().cpu().T + bias.double().cpu()

    def distance(outputs: Tensor) -> float:
        there = class_covariance(outputs[-len(labels) :], labels)
        return sum(float(sent.deviation(there, place).square().sum()) for place in range(len(sent.rows)))

    return min((logits.softmax(1), logits), key=distance)


def _undefended(one: MeanRound, labels: Tensor, defend: Rehearsal) -> MeanRound:
    there = class_covariance(one.own, labels)
    sent = one.sent.rows if one.sent.weights is None else one.sent.rows[:1]  # of a mixture all rows are the same
    expected = torch.stack([row - one.sent.deviation(there, place) for place, row in enumerate(sent)])

    def tried(rows: Tensor, times: int) -> Tensor:
        with torch.no_grad():
            return torch.stack([defend(rows.float(), again).double().cpu() for again in range(times)])

    many = tried(expected, REHEARSALS)
    middle, filled = many.mean(0), (many != 0).any(0)
    scale = _scale(middle, torch.where(filled, expected, 0.0))
    gaps = int((filled & (expected != 0)).sum()) < _WHOLE * int((expected != 0).sum())
    entries = sent != 0 if gaps else torch.ones_like(sent, dtype=torch.bool)
    if bool((_scale(tried(2 * expected, 1)[0], 2 * torch.where(filled, expected, 0.0)) < _BENT * scale).any()):
        there = class_covariance(one.own, labels, float((many.var(0) / scale.square()).mean()))
        known = torch.where(entries, expected, 0.0)
        pairs = list(zip(sent, known, strict=True))
        scale = torch.stack([there.inner(row, mean) / there.inner(mean, mean).clamp_min(TINY) for row, mean in pairs])
        scale = scale.clamp_min(_LEAST_SCALE)[:, None]
        undone = torch.where(entries, sent / scale, expected)
    else:
        undone = expected + (sent - torch.where(filled, middle, scale * expected)) / scale
    noise = float((many.var(0) / scale.square()).mean())
    rows = replace(one.sent, rows=undone.expand_as(one.sent.rows))
    return replace(one, sent=rows, noise=noise, entries=entries.expand_as(one.sent.rows) if gaps else None)


def _scale(rows: Tensor, of: Tensor) -> Tensor:
    """Return the projection of rows on others, over these' length ``(k, 1)``, at least :data:`_LEAST_SCALE`."""
    found: Tensor = ((rows * of).sum(1) / of.square().sum(1).clamp_min(TINY)).clamp_min(_LEAST_SCALE)[:, None]
    return found


@dataclass(frozen=True)
class MultiRound:
    """Rounds of one client.

    Attributes:
        rounds: T of them.
        covariances: of own images, one each.
        lengths: mean squared length of a whitened own image in each ``(T,)`` float64.
        alike: C ``(T, T)``.
    """

    rounds: tuple[MeanRound, ...]
    covariances: tuple[ClassCovariance, ...]
    lengths: Tensor
    alike: Tensor

    @property
    def noise(self) -> Tensor:
        """Squared length of a defense's noise on a whitened row of each round, over that of an own image ``(T,)``."""
        added = [one.noise * there.trace for one, there in zip(self.rounds, self.covariances, strict=True)]
        return torch.tensor(added, dtype=torch.float64) / self.lengths.clamp_min(TINY)

    def chosen(self, which: Sequence[bool]) -> MultiRound:
        """Return some of the rounds."""
        kept = [place for place, one in enumerate(which) if one]
        rounds, covariances = [self.rounds[place] for place in kept], [self.covariances[place] for place in kept]
        return MultiRound(tuple(rounds), tuple(covariances), self.lengths[kept], self.alike[kept][:, kept])


def multi_round(rounds: Sequence[MeanRound], own_labels: Tensor) -> MultiRound:
    """Compare rounds, at least one, by the attacker's own images of the classes ``(m,)``."""
    covariances = tuple(class_covariance(one.own, own_labels, one.noise) for one in rounds)
    rows = [
        whitened_deviations(there, one.own, own_labels).flatten()
        for one, there in zip(rounds, covariances, strict=True)
    ]
    squares = torch.stack([row.square().sum() for row in rows])
    unit = torch.stack([row / square.clamp_min(TINY).sqrt() for row, square in zip(rows, squares, strict=True)])
    return MultiRound(tuple(rounds), covariances, squares / max(1, len(own_labels)), unit @ unit.T)


def whitened_deviations(there: ClassCovariance, features: Tensor, labels: Tensor) -> Tensor:
    """Return whitened deviations of representations ``(n, d)`` from the means of their classes ``(n,)``."""
    found: Tensor = there.whiten(features - torch.stack([there.mean(int(label)) for label in labels]))
    return found


def upload_deviation(one: MeanRound, there: ClassCovariance, place: int = 0) -> Tensor:
    """Return the whitened deviation ``(d,)`` of an uploaded row."""
    found: Tensor = there.whiten(one.sent.deviation(there, place)[None])[0]
    return found
