"""Numbers of images behind means: the fewer, the further a mean lies from what is expected of its class.

A mean of n images scatters with S / n around the expectation, a mean of N own images with S / N. Its deviation D in
whitened coordinates (:mod:`fedpriv.attacks.inference.mean_uploads`) therefore has

    |D|^2 / k ~ v chi^2_f / f,    v = 1 / n + 1 / N,    f = (tr C)^2 / tr C^2,

with C the covariance and k = tr C the mean squared length of own images in coordinates that the others whitened. A mixture
deviates by sum_c w_tc D_tc in round t, so the inner products G of the rounds' deviations, over k, are Wishart distributed,

    E G = (W diag(v) W^T) * C + s diag(W W^T),

with * entry by entry and C_ts how alike rounds are. v and s have the highest posterior density, log(1 / n) and log s being
normal; noise of a known defense adds s^2 tr P / k to the diagonal. That uploads tell their counts so is ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from fedpriv.attacks.inference.base import InferenceProblem
from fedpriv.attacks.inference.mean_uploads import (
    MEANS,
    TINY,
    MeanRound,
    MultiRound,
    class_covariance,
    enough_images,
    read_mean_round,
)
from fedpriv.attacks.observation import Knowledge, Observation
from fedpriv.wire.kinds import CLASS_OUTPUTS, MIXTURES

LIKELY = 10.0
"""Default number of images behind a mean."""

USUAL, USUAL_SPREAD, DRIFT, DRIFT_SPREAD = -math.log(LIKELY), 1.5, -5.0, 2.0
"""Of log(1 / n): 0.5 to 200 images within two standard deviations; of log s: the 150th part of an image's scatter."""

LOST = 0.5
"""Median s over clients above which mixtures are not separated: on seven federations with little or no noise it was 0.01 to
0.14, on two with much 1.5 and 7.0."""

FOLDS = 5
"""Folds of the own images, each measured by the others."""

_ALIKE = 1e-2
"""Relative change of weights over rounds that counts as none."""

_FARTHEST, _RANGE, _STEADY = 100.0, (-20.0, 5.0), 1e-9
"""Largest squared distance, over an image's; bounds of log(1 / n) and log s; share of a matrix's diagonal added to it."""


@dataclass(frozen=True)
class MemberCounts:
    """Numbers of images of each class, at least one, and s of mixtures (0 of means)."""

    numbers: dict[int, float]
    drift: float = 0.0


def estimate_member_counts(rounds: Sequence[MeanRound]) -> MemberCounts:
    """Estimate the images of each class behind the uploads of one client's rounds.

    Of means by the newest round, several of which tell no more; of mixtures by all.
    """
    if rounds[-1].weights is not None:
        return _of_mixtures(MultiRound.of(rounds))
    results, weight = {}, torch.ones(1, 1, dtype=torch.float64)
    for part in rounds[-1].parts():
        length, freedom = _left_out(part)
        noise = torch.tensor([part.noise * part.covariance.trace / length], dtype=torch.float64)
        for index, label in enumerate(part.classes.tolist()):
            gram = part.whitened_deviation(index).square().sum().view(1, 1) / length
            group = [part.covariance.numbers.get(label, 1)]
            numbers, _ = _numbers(gram, weight, weight, group, freedom, noise, drifts=False)
            results[label] = float(numbers[0])
    return MemberCounts(results)


def _of_mixtures(seen: MultiRound) -> MemberCounts:
    length, freedom = _left_out(seen.rounds[-1])
    beyond = length / seen.lengths[-1]  # of images that the covariance was not computed of
    noise = seen.noise / beyond.clamp_min(TINY)
    classes = (seen.weights != 0).any(0).nonzero().squeeze(1)
    rows = torch.stack([item.whitened_deviation() for item in seen.rounds])
    rows = rows / (beyond * seen.lengths).clamp_min(TINY).sqrt()[:, None]
    group = [seen.rounds[-1].covariance.numbers.get(label, 1) for label in classes.tolist()]
    numbers, drift = _numbers(rows @ rows.T, seen.weights[:, classes], seen.alike, group, freedom, noise, drifts=True)
    return MemberCounts(dict(zip(classes.tolist(), numbers.tolist(), strict=True)), drift)


def _left_out(mean_round: MeanRound) -> tuple[float, float]:
    """Return k, the mean squared length of a whitened image, and f, its degrees of freedom; of no covariance 1 and 1."""
    lengths, squares = [], []
    for part in range(FOLDS):
        kept = torch.arange(len(mean_round.labels)) % FOLDS != part
        if not enough_images(mean_round.labels[kept]):
            continue
        there = class_covariance(mean_round.own[kept], mean_round.labels[kept], mean_round.noise)
        rows = torch.cat(
            [
                there.whiten(mean_round.own[~kept & (mean_round.labels == label)] - mean)
                / (1 + 1 / there.numbers[label]) ** 0.5
                for label, mean in there.means.items()
            ]
        )
        products = rows @ rows.T
        length = products.diagonal()
        lengths.append(length)
        if len(length) > 1:
            apart = products.square().sum() - length.square().sum()
            squares.append(apart / (len(length) * (len(length) - 1)))
    if not lengths or not squares:
        return 1.0, 1.0
    mean, square = float(torch.cat(lengths).mean()), float(torch.stack(squares).mean())
    return (mean, max(1.0, mean**2 / square)) if mean > TINY and square > TINY else (1.0, 1.0)


def _numbers(
    gram: Tensor, weights: Tensor, alike: Tensor, numbers: Sequence[int], freedom: float, noise: Tensor, *, drifts: bool
) -> tuple[Tensor, float]:
    """Return the most probable numbers of images ``(C,)``, at least 1, and s.

    Args:
        gram: inner products of deviations ``(T, T)``, over k.
        weights: of classes ``(T, C)``.
        alike: how alike rounds are ``(T, T)``.
        numbers: own images of each class.
        freedom: f.
        noise: of a defense, added to each diagonal entry ``(T,)``.
        drifts: whether s is not 0.
    """
    largest = float(gram.diagonal().amax())
    if largest > _FARTHEST:  # beyond any image: one image's distance already
        gram, noise = gram * (_FARTHEST / largest), noise * (_FARTHEST / largest)
    beside = 1 / torch.tensor(numbers, dtype=torch.float64)
    inverse = torch.full((weights.shape[1],), USUAL, dtype=torch.float64, requires_grad=True)
    drift = torch.tensor(DRIFT, dtype=torch.float64, requires_grad=drifts)
    unknown = [inverse, drift] if drifts else [inverse]
    solver = torch.optim.LBFGS(unknown, max_iter=200, line_search_fn="strong_wolfe")

    def cost() -> Tensor:
        solver.zero_grad()
        expected = (weights * (inverse.clamp(*_RANGE).exp() + beside)) @ weights.T * alike + torch.diag(noise)
        if drifts:
            expected = expected + drift.clamp(*_RANGE).exp() * torch.diag(weights.square().sum(1))
        steady = _STEADY * expected.diagonal().amax().detach() * torch.eye(len(gram), dtype=torch.float64)
        factor = torch.linalg.cholesky(expected + steady)
        fit = 2 * factor.diagonal().log().sum() + torch.cholesky_solve(gram, factor).trace()
        prior = ((inverse - USUAL) / USUAL_SPREAD).square().sum() + ((drift - DRIFT) / DRIFT_SPREAD).square()
        whole: Tensor = freedom / 2 * fit + prior / 2
        whole.backward()
        return whole

    with torch.enable_grad():
        solver.step(cost)
    return (-inverse.detach()).exp().clamp_min(1), float(drift.detach().exp()) if drifts else 0.0


def can_count_members(problem: InferenceProblem) -> bool:
    """True if the attacker has own images, extractors, and enough rounds for the uploads of all clients."""
    knowledge, labels = problem.knowledge, problem.knowledge.public_labels
    if labels is None or knowledge.public_images is None or not enough_images(labels):
        return False
    for client, seen in problem.uploads.items():
        if client not in knowledge.extractors:
            return False
        if CLASS_OUTPUTS.first(seen.upload) is not None and client not in knowledge.heads:
            return False
        if MIXTURES.first(seen.upload) is not None and not _separable(_rounds_of(problem, client)):
            return False
    return True


def _separable(seen: Sequence[tuple[Observation, Knowledge]]) -> bool:
    """True if the weights of mixtures change over rounds, as those that are shares of classes (VAR) do not."""
    weights = [sent.said("weights") for item, _ in seen if (sent := MIXTURES.first(item.upload)) is not None]
    table = torch.stack([weight.double().flatten().cpu() for weight in weights if weight is not None])
    n_classes = int((table != 0).any(0).sum())
    return len(table) > 1 and int(torch.linalg.matrix_rank(table, rtol=_ALIKE)) >= min(2, n_classes)


def shares_by_counts(problem: InferenceProblem) -> dict[int, Tensor] | None:
    """Return the shares of classes ``(C,)`` in each client's images, float64; for a problem that :func:`can_count_members`.

    None where mixtures of half of the clients differ too much from round to round (:data:`LOST`).
    """
    images, labels = problem.knowledge.public_images, problem.knowledge.public_labels
    assert images is not None
    assert labels is not None
    shares, drifts = {}, []
    for client in problem.uploads:
        rounds = [
            read_mean_round(seen, known, images[:0], images, labels) for seen, known in _rounds_of(problem, client)
        ]
        counts = estimate_member_counts(rounds)
        table = torch.zeros(problem.knowledge.n_classes, dtype=torch.float64)
        table[list(counts.numbers)] = torch.tensor(list(counts.numbers.values()), dtype=torch.float64)
        shares[client] = table / table.sum()
        drifts.append(counts.drift)
    return None if median(drifts) > LOST else shares


def _rounds_of(problem: InferenceProblem, client: int) -> list[tuple[Observation, Knowledge]]:
    """Return a client's uploads of means with their grants: of mixtures all, else the newest."""
    seen = problem.uploads_of(client)
    if MIXTURES.first(problem.uploads[client].upload) is None:
        seen = seen[-1:]
    return [
        (item, known) for item, known in seen if MEANS.first(item.upload) is not None and client in known.extractors
    ]
