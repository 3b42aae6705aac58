"""Uploads that are means of representations or outputs, or weighted sums of such: how far they deviate, and of how many.

Expectations are of the attacker's own images: means by class, and one pooled covariance S within classes, with P = (S + r
tr(S) / d I)^-1. With Z_t the deviations of own images in round t, whitened by the root of P, two rounds are alike by C_ts
= tr Z_t^T Z_s / (|Z_t| |Z_s|). Expected means are put through a defense that the protocol names; noise that it draws is
kept as variance, and entries that it leaves out are not compared.

**Numbers of images.** A mean of n images scatters with S / n around the expectation, a mean of N own images with S / N. Its
deviation D in whitened coordinates therefore has

    |D|^2 / k ~ v chi^2_f / f,    v = 1 / n + 1 / N,    f = (tr C)^2 / tr C^2,

with C the covariance and k = tr C. A weighted sum deviates by sum_c w_tc D_tc in round t, so the inner products G of the
rounds' deviations, over k, are Wishart distributed,

    E G = (W diag(v) W^T) * C + s diag(W W^T),

with * entry by entry. v and s have the highest posterior density, log(1 / n) and log s being normal; noise of a known
defense adds s^2 tr P / k to the diagonal. That uploads disclose their counts so is ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fedpriv.attacks.contract import Same, Trained
from fedpriv.attacks.inputs.targets import represent
from fedpriv.attacks.observation import Knowledge, Observation, Rehearsal
from fedpriv.uploads.kinds import CLASS_MEANS, CLASS_OUTPUTS, MIXTURES
from fedpriv.uploads.payload import Payload

T = TypeVar("T")

RIDGE, LIKELY, FEWEST, TINY = 0.01, 10, 20, 1e-30
"""r, chosen on two federations among 1, 0.1, 0.01 and 0.001, of which the last three did alike; assumed images of a
mean; fewest own images, less one for each class, of a covariance; least variance and squared length that is divided by."""

AVERAGES = CLASS_MEANS | MIXTURES  # of representations
MEANS = AVERAGES | CLASS_OUTPUTS  # of representations or outputs

_REHEARSALS, _LEAST_SCALE, _WHOLE, _BENT = 16, 1e-2, 0.9, 0.9
"""Simulations of a client's defense; the least share of length that it may leave; the share of entries below which it drops
them, and does not just round some to zero; the part of its share for twice the length below which it bounds lengths."""

_USUAL, _USUAL_SPREAD, _DRIFT, _DRIFT_SPREAD = -math.log(LIKELY), 1.5, -5.0, 2.0
"""Of log(1 / n): 0.5 to 200 images within two standard deviations; of log s: the 150th part of an image's scatter."""

_WIDEST = 256  # numbers of a representation up to which covariances are kept: half a MiB each

_FOLDS, _FARTHEST, _RANGE, _STEADY = 5, 100.0, (-20.0, 5.0), 1e-9
"""Folds of the own images, each measured by the others; largest squared distance, over an image's; bounds of log(1 / n) and
log s; share of a matrix's diagonal added to it."""


@dataclass(frozen=True)
class ClassCovariance:
    """Means of classes and their pooled covariance, by orthonormal directions in which own images scatter."""

    means: dict[int, Tensor]  # class -> (d,)
    overall: Tensor  # (d,) mean of all
    numbers: dict[int, int]  # class -> images that its mean is of
    directions: Tensor  # (k, d)
    variances: Tensor  # (k,) along them, ``least`` included
    least: Tensor  # r tr(S) / d, the variance in every other direction

    @property
    def trace(self) -> float:
        """Trace of P."""
        d, k = self.directions.shape[1], len(self.variances)
        return float((1 / self.variances).sum() + (d - k) / self.least)

    def mean(self, label: int) -> Tensor:
        """Return the expected representation ``(d,)`` of an image of a class."""
        return self.means.get(label, self.overall)

    def whiten(self, rows: Tensor) -> Tensor:
        """Return P^(1/2) x of rows ``(n, d)``, by the symmetric root."""
        parts = rows @ self.directions.T
        values: Tensor = (parts / self.variances.sqrt()) @ self.directions
        return values + (rows - parts @ self.directions) / self.least.sqrt()

    def whitened_deviations(self, features: Tensor, labels: Tensor) -> Tensor:
        """Return whitened deviations of representations ``(n, d)`` from the means of their classes ``(n,)``."""
        return self.whiten(features - torch.stack([self.mean(int(label)) for label in labels]))


def enough_images(labels: Tensor) -> bool:
    """True if there are enough own images of these classes for a covariance."""
    return len(labels) - len(labels.unique()) >= FEWEST


def class_covariance(features: Tensor, labels: Tensor, noise: float = 0.0) -> ClassCovariance:
    """Return means and covariance of own images ``(n, d)`` float64 of classes ``(n,)``; ``noise`` is an entry's variance."""
    means, numbers, apart = {}, {}, []
    for label in labels.unique().tolist():
        feature = features[labels == label]
        means[label], numbers[label] = feature.mean(0), len(feature)
        apart.append(feature - means[label])
    rows = torch.cat(apart)
    # By the smaller of the two products: faster than an SVD, and without what is lost in rounding.
    wide = rows.shape[1] > rows.shape[0]
    squares, vectors = torch.linalg.eigh(rows @ rows.T if wide else rows.T @ rows)
    kept = squares > squares[-1].clamp_min(0) * 1e-10
    squares, vectors = squares[kept], vectors[:, kept]
    directions = (vectors.T @ rows) / squares.sqrt()[:, None] if wide else vectors.T
    variances = squares / max(1, len(rows) - len(means))
    least = (RIDGE * variances.sum() / rows.shape[1]).clamp_min(TINY) + LIKELY * noise
    return ClassCovariance(means, features.mean(0), numbers, directions, variances + least, least)


@dataclass(frozen=True)
class MeanRound:
    """One round of a client's means as the attacker sees it; all float64."""

    rows: Tensor  # (k, d) one mean a class, or of a mixture the same row for each of its classes
    classes: Tensor  # (k,)
    weights: Tensor | None  # (C,) of a mixture; None of means
    features: Tensor  # (n, d) of candidates under the client's extractor of that round, or its whole model
    own: Tensor  # (m, d) of the attacker's own images
    labels: Tensor  # (m,) their classes
    noise: float = 0.0  # variance of an entry that a defense added to the upload
    entries: Tensor | None = None  # (k, d) bool, which entries of rows were sent; None for all
    kept: tuple[Trained, Hashable] | None = None  # a memo, and what ``own`` and ``labels`` depend on

    @cached_property
    def covariance(self) -> ClassCovariance:
        return self._kept("scatter", partial(class_covariance, self.own, self.labels, self.noise))

    @cached_property
    def left_out(self) -> tuple[float, float]:
        return self._kept("left out", partial(_left_out, self))

    def _kept(self, name: str, compute: Callable[[], T]) -> T:
        return compute() if self.kept is None else self.kept[0].get((name, self.kept[1], self.noise), compute)

    @cached_property
    def own_deviations(self) -> Tensor:
        """Whitened deviations of the attacker's own images, as one vector."""
        return self.covariance.whitened_deviations(self.own, self.labels).flatten()

    def deviation(self, number: int) -> Tensor:
        """Return a row less its expectation ``(d,)``."""
        if self.weights is None:
            return self.rows[number] - self.covariance.mean(int(self.classes[number]))
        parts = [self.weights[k] * self.covariance.mean(k) for k in self.weights.nonzero().squeeze(1).tolist()]
        return self.rows[number] - torch.stack(parts).sum(0)

    def whitened_deviation(self, number: int = 0) -> Tensor:
        """Return the whitened deviation ``(d,)`` of an uploaded row."""
        return self.covariance.whiten(self.deviation(number)[None])[0]

    def parts(self) -> list[MeanRound]:
        """Return one round for each set of entries that was sent; itself where all entries were."""
        if self.entries is None:
            return [self]
        results = []
        for index in range(len(self.rows) if self.weights is None else 1):
            kept, which = self.entries[index].double(), slice(index, index + 1) if self.weights is None else slice(None)
            part = replace(self, rows=self.rows[which] * kept, classes=self.classes[which], entries=None, kept=None)
            results.append(replace(part, features=self.features * kept, own=self.own * kept))
        return results


def rows_by_class(sent: Payload, *, every_class: bool = False) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return rows ``(k, d)`` float64, their classes ``(k,)``, and of a mixture its weights ``(C,)`` float64; on the CPU.

    A mixture is a row of each of its classes, or of ``every_class``.
    """
    rows, classes, weights = sent.rows().double().cpu(), sent.said("classes"), sent.said("weights")
    if weights is not None:
        weights = weights.double().flatten().cpu()
        classes = (torch.ones_like(weights) if every_class else weights).nonzero().squeeze(1)
        rows = rows.expand(len(classes), -1)
    assert classes is not None
    return rows, classes.cpu(), weights


def read_mean_round(
    seen: Observation, knowledge: Knowledge, images: Tensor, values: Tensor, labels: Tensor, kept: Trained | None = None
) -> MeanRound:
    """Return a round of a client whose upload holds class means, or a mixture with its weights; a known defense is undone.

    Candidates are ``images`` ``(n, c, h, w)``; ``values`` ``(m, c, h, w)`` are the attacker's, of ``labels`` ``(m,)``.
    """
    sent = MEANS.first(seen.upload)
    assert sent is not None
    rows, classes, weights = rows_by_class(sent)
    shown, memo = (images, values) if len(images) else (values,), None
    parts = [represent(knowledge, seen.client, some, kept) for some in shown]
    features = torch.cat(parts).double()
    kinds = [features]
    if sent.kind in CLASS_OUTPUTS:
        weight, bias = (value.double().cpu() for value in knowledge.heads[seen.client])
        logits = features @ weight.T + bias
        kinds = [logits.softmax(1), logits]  # whichever is nearer to the upload
    elif kept is not None and features.shape[1] <= _WIDEST:
        memo = kept, (Same(knowledge.extractors[seen.client]), Same(values), Same(labels))
    n = len(images)
    tried = [MeanRound(rows, classes, weights, item[:n], item[n:], labels.cpu(), kept=memo) for item in kinds]

    def distance(item: MeanRound) -> float:
        return sum(float(item.deviation(index).square().sum()) for index in range(len(item.rows)))

    nearest, defend = min(tried, key=distance), knowledge.defended.get((seen.round, seen.client))
    return nearest if defend is None else _undefended(nearest, defend)


def _undefended(mean_round: MeanRound, defend: Rehearsal) -> MeanRound:
    sent = mean_round.rows if mean_round.weights is None else mean_round.rows[:1]  # of a mixture all rows are the same
    expected = torch.stack([row - mean_round.deviation(index) for index, row in enumerate(sent)])

    def tried(rows: Tensor, times: int) -> Tensor:
        with torch.no_grad():
            return torch.stack([defend(rows.float(), again).double().cpu() for again in range(times)])

    many = tried(expected, _REHEARSALS)
    middle, filled = many.mean(0), (many != 0).any(0)
    scale = _scale(middle, torch.where(filled, expected, 0.0))
    gaps = int((filled & (expected != 0)).sum()) < _WHOLE * int((expected != 0).sum())
    entries = sent != 0 if gaps else torch.ones_like(sent, dtype=torch.bool)
    if bool((_scale(tried(2 * expected, 1)[0], 2 * torch.where(filled, expected, 0.0)) < _BENT * scale).any()):
        there = class_covariance(mean_round.own, mean_round.labels, float((many.var(0) / scale.square()).mean()))
        scale = _scale(there.whiten(sent), there.whiten(torch.where(entries, expected, 0.0)))
        undone = sent / scale
    else:
        undone = expected + (sent - torch.where(filled, middle, scale * expected)) / scale
    rows, noise = torch.where(entries, undone, expected), float((many.var(0) / scale.square()).mean())
    left = entries.expand_as(mean_round.rows) if gaps else None
    return replace(mean_round, rows=rows.expand_as(mean_round.rows), noise=noise, entries=left)


def _scale(rows: Tensor, of: Tensor) -> Tensor:
    """Return the projection of rows on others, over these' length ``(k, 1)``, at least :data:`_LEAST_SCALE`."""
    return ((rows * of).sum(1) / of.square().sum(1).clamp_min(TINY)).clamp_min(_LEAST_SCALE)[:, None]


@dataclass(frozen=True)
class MultiRound:
    """Rounds of one client, at least one, compared by the attacker's own images."""

    rounds: tuple[MeanRound, ...]

    @classmethod
    def of(cls, rounds: Sequence[MeanRound]) -> MultiRound:
        """Return rounds by the entries that were sent in them."""
        return cls(tuple(part for item in rounds for part in item.parts()))

    @cached_property
    def lengths(self) -> Tensor:
        """Mean squared length of a whitened own image in each round ``(T,)``."""
        squares = [item.own_deviations.square().sum() / max(1, len(item.labels)) for item in self.rounds]
        return torch.stack(squares).clamp_min(TINY)

    @cached_property
    def alike(self) -> Tensor:
        """C ``(T, T)``."""
        rows = [item.own_deviations for item in self.rounds]
        unit = torch.stack([row / row.square().sum().clamp_min(TINY).sqrt() for row in rows])
        return unit @ unit.T

    @cached_property
    def noise(self) -> Tensor:
        """Squared length of a defense's noise on a whitened row of each round, over that of an own image ``(T,)``."""
        added = [item.noise * item.covariance.trace for item in self.rounds]
        return torch.tensor(added, dtype=torch.float64) / self.lengths

    @property
    def weights(self) -> Tensor:
        """Of the classes in mixtures ``(T, C)``."""
        return torch.stack([item.weights for item in self.rounds if item.weights is not None])


# ---------------------------------------------------------------- numbers of images


@dataclass(frozen=True)
class MemberCounts:
    """Numbers of images of each class, at least one, and s of mixtures (0 of means)."""

    numbers: dict[int, float]
    drift: float = 0.0


def estimate_member_counts(rounds: Sequence[MeanRound]) -> MemberCounts:
    """Estimate the images of each class behind one client's uploads: of means by the newest, of mixtures by all."""
    if rounds[-1].weights is not None:
        seen = MultiRound.of(rounds)
        length, freedom = seen.rounds[-1].left_out
        beyond = length / seen.lengths[-1]  # of images that the covariance was not computed of
        noise = seen.noise / beyond.clamp_min(TINY)
        classes = (seen.weights != 0).any(0).nonzero().squeeze(1)
        rows = torch.stack([item.whitened_deviation() for item in seen.rounds])
        rows = rows / (beyond * seen.lengths).clamp_min(TINY).sqrt()[:, None]
        group = [seen.rounds[-1].covariance.numbers.get(label, 1) for label in classes.tolist()]
        weights, gram = seen.weights[:, classes], rows @ rows.T
        numbers, drift = _numbers(gram, weights, seen.alike, group, freedom, noise, drifts=True)
        return MemberCounts(dict(zip(classes.tolist(), numbers.tolist(), strict=True)), drift)
    results, weight = {}, torch.ones(1, 1, dtype=torch.float64)
    for part in rounds[-1].parts():
        length, freedom = part.left_out
        noise = torch.tensor([part.noise * part.covariance.trace / length], dtype=torch.float64)
        for index, label in enumerate(part.classes.tolist()):
            gram = part.whitened_deviation(index).square().sum().view(1, 1) / length
            group = [part.covariance.numbers.get(label, 1)]
            numbers, _ = _numbers(gram, weight, weight, group, freedom, noise, drifts=False)
            results[label] = float(numbers[0])
    return MemberCounts(results)


def _left_out(mean_round: MeanRound) -> tuple[float, float]:
    """Return k, the mean squared length of a whitened image, and f, its degrees of freedom; of no covariance 1 and 1."""
    lengths, squares = [], []
    for part in range(_FOLDS):
        kept = torch.arange(len(mean_round.labels)) % _FOLDS != part
        if not enough_images(mean_round.labels[kept]):
            continue
        there = class_covariance(mean_round.own[kept], mean_round.labels[kept], mean_round.noise)
        apart = []
        for label, middle in there.means.items():
            white = there.whiten(mean_round.own[~kept & (mean_round.labels == label)] - middle)
            apart.append(white / (1 + 1 / there.numbers[label]) ** 0.5)
        products = torch.cat(apart) @ torch.cat(apart).T
        length = products.diagonal()
        lengths.append(length)
        if len(length) > 1:
            squares.append((products.square().sum() - length.square().sum()) / (len(length) * (len(length) - 1)))
    if not lengths or not squares:
        return 1.0, 1.0
    mean, square = float(torch.cat(lengths).mean()), float(torch.stack(squares).mean())
    return (mean, max(1.0, mean**2 / square)) if mean > TINY and square > TINY else (1.0, 1.0)


def _numbers(
    gram: Tensor, weights: Tensor, alike: Tensor, numbers: Sequence[int], freedom: float, noise: Tensor, *, drifts: bool
) -> tuple[Tensor, float]:
    """Return the most probable numbers of images ``(C,)``, at least 1, and s, which is 0 unless it ``drifts``.

    Of inner products of deviations ``(T, T)`` over k, weights ``(T, C)``, C ``(T, T)``, own images of each class, f, and
    noise.
    """
    from scipy.optimize import minimize  # type: ignore[import-untyped]  # takes a quarter of a second to import

    largest = float(gram.diagonal().amax())
    if largest > _FARTHEST:  # beyond any image: one image's distance already
        gram, noise = gram * (_FARTHEST / largest), noise * (_FARTHEST / largest)
    beside = 1 / torch.tensor(numbers, dtype=torch.float64)
    n_classes = weights.shape[1]

    def cost(point: np.ndarray) -> tuple[float, np.ndarray]:
        unknown = torch.from_numpy(point).requires_grad_()
        inverse, drift = unknown[:n_classes], unknown[n_classes:]
        expected = (weights * (inverse.clamp(*_RANGE).exp() + beside)) @ weights.T * alike + torch.diag(noise)
        if drifts:
            expected = expected + drift.clamp(*_RANGE).exp() * torch.diag(weights.square().sum(1))
        steady = _STEADY * expected.diagonal().amax().detach() * torch.eye(len(gram), dtype=torch.float64)
        factor = torch.linalg.cholesky(expected + steady)
        fit = 2 * factor.diagonal().log().sum() + torch.cholesky_solve(gram, factor).trace()
        prior = ((inverse - _USUAL) / _USUAL_SPREAD).square().sum() + ((drift - _DRIFT) / _DRIFT_SPREAD).square().sum()
        whole = freedom / 2 * fit + prior / 2
        return float(whole.detach()), torch.autograd.grad(whole, unknown)[0].numpy()

    start = np.array([_USUAL] * n_classes + [_DRIFT] * drifts)
    with torch.enable_grad():
        best = torch.from_numpy(minimize(cost, start, method="L-BFGS-B", jac=True, options={"ftol": 1e-12}).x)
    return (-best[:n_classes]).exp().clamp_min(1), float(best[n_classes:].sum().exp()) if drifts else 0.0
