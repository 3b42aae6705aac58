"""Numbers of images that means are of: the fewer, the further a mean lies from what is expected of its class.

Representations of a class scatter around their expectation with covariance S, so a mean of n of them with S / n. What is
expected is itself a mean, of N images of the attacker's own, with S / N. So it is with outputs. In coordinates whitened by
what is known of S (:mod:`fedpriv.attacks.infer.class_scatter`) a mean's deviation D therefore has

    |D|^2 / k ~ v chi^2_f / f,    v = 1 / n + 1 / N,    f = (tr C)^2 / tr C^2,

with C the covariance and k = tr C the mean squared length of own images in coordinates that the others whitened. No image of
the client's is looked for, and no shadow trained.

A mixture deviates by sum_c w_tc D_tc in round t, with D_tc alike in whitened coordinates from round to round as far as own
images are (C_ts, :mod:`fedpriv.attacks.infer.rounds_together`). So the matrix G of inner products of the rounds' deviations,
over k, is that of a Wishart distribution,

    E G = (W diag(v) W^T) * C + s diag(W W^T),

with * entry by entry, and v and s are those of the highest posterior density, log(1 / n) and log s being normal around
:data:`USUAL` and :data:`DRIFT`.

Noise of a known defense adds s^2 tr P / k to the diagonal of G, with P the whitening's square.

That the variance of a mean tells how many it is the mean of is elementary; that uploads tell their counts so is ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from fedpriv.attacks.infer.class_scatter import FOLDS, enough, scatter
from fedpriv.attacks.infer.contract import InferenceProblem, Moment
from fedpriv.attacks.infer.rounds_together import Together, off, together
from fedpriv.attacks.infer.sent_means import MEANS, Round, as_round
from fedpriv.attacks.observation import Knowledge, Observation
from fedpriv.wire.kinds import CLASS_OUTPUTS, MIXTURES

USUAL, USUAL_SPREAD = math.log(1 / 10), 1.5
"""Of log(1 / n): ten images, and 0.5 to 200 within two standard deviations."""

LIKELY = math.exp(-USUAL)
"""Images behind a mean of which nothing else is known."""

DRIFT, DRIFT_SPREAD = -5.0, 2.0
"""Of log s: rounds differ by the 150th part of an image's scatter."""

LOST = 0.5
"""s above which mixtures, at half of the clients, are not taken apart: rounds differ by what an image scatters, as behind
noise or a clip. On seven federations without either, or with little, it was 0.01 to 0.14, on two with much 1.5 and 7.0."""

LEAST_ROUNDS = 2
"""Rounds of mixtures below which their weights take nothing apart."""

_ALIKE = 1e-2
"""Change of weights over rounds, to their size, that counts as none."""

_FARTHEST, _RANGE, _STEADY = 100.0, (-20.0, 5.0), 1e-9
"""Squared distance, over an image's, that is not told from farther ones; of log(1 / n) and log s; of a matrix's diagonal."""

_TINY = 1e-30


@dataclass(frozen=True)
class Counted:
    """Told by deviations of a client's uploads.

    Attributes:
        numbers: class -> images, at least one.
        drift: s, by which a mixture's rounds differ; 0 of means.
    """

    numbers: dict[int, float]
    drift: float = 0.0


def numbers_of_members(rounds: Sequence[Round], own_labels: Tensor) -> Counted:
    """Return the number of images of each class in uploads, as far as lengths of deviations tell.

    Of means by the newest round, several of which tell no more; of mixtures by all. Without a scatter all are alike.

    Args:
        rounds: of one client, with the attacker's own images; candidates are not looked at.
        own_labels: classes of the attacker's own images ``(m,)``.
    """
    if rounds[-1].sent.weights is None:
        return Counted(_of_means(rounds[-1], own_labels))
    return _of_mixtures(together([part for one in rounds for part in one.parts()], own_labels), own_labels)


def _of_means(newest: Round, own_labels: Tensor) -> dict[int, float]:
    found, weight = {}, torch.ones(1, 1, dtype=torch.float64)
    for part in newest.parts():
        length, freedom = _left_out(part.own, own_labels, part.noise)
        there = scatter(part.own, own_labels, part.noise)
        noise = [part.noise * there.trace / length]
        for place, label in enumerate(part.sent.classes.tolist()):
            away = part.sent.deviation(there, place)
            gram = there.inner(away[None], away[None])[:, None] / length
            told, _ = _numbers(gram, weight, weight, [there.numbers.get(label, 1)], freedom, noise, drifts=False)
            found[label] = float(told[0])
    return found


def _of_mixtures(seen: Together, own_labels: Tensor) -> Counted:
    newest, numbers = seen.rounds[-1], seen.scatters[-1].numbers
    length, freedom = _left_out(newest.own, own_labels, newest.noise)
    beyond = length / seen.lengths[-1].clamp_min(_TINY)  # what an image scatters that the scatter was not made of
    lengths = beyond * seen.lengths
    noise = (seen.noise / beyond.clamp_min(_TINY)).tolist()
    weights = torch.stack([one.sent.weights for one in seen.rounds if one.sent.weights is not None])
    classes = (weights != 0).any(0).nonzero().squeeze(1)
    rows = torch.stack([off(one, there) for one, there in zip(seen.rounds, seen.scatters, strict=True)])
    rows = rows / lengths.clamp_min(_TINY).sqrt()[:, None]
    known = [numbers.get(label, 1) for label in classes.tolist()]
    several, drift = _numbers(rows @ rows.T, weights[:, classes], seen.alike, known, freedom, noise, drifts=True)
    return Counted(dict(zip(classes.tolist(), several.tolist(), strict=True)), drift)


def _left_out(own: Tensor, labels: Tensor, noise: float) -> tuple[float, float]:
    """Return k, the mean squared length of a whitened image, and f, its degrees of freedom; of no scatter 1 and 1."""
    lengths, squares = [], []
    for part in range(FOLDS):
        kept = torch.arange(len(labels)) % FOLDS != part
        if not enough(labels[kept]):
            continue
        there = scatter(own[kept], labels[kept], noise)
        rows = [
            there.whiten(own[~kept & (labels == label)] - mean) / (1 + 1 / there.numbers[label]) ** 0.5
            for label, mean in there.means.items()
        ]
        products = torch.cat(rows) @ torch.cat(rows).T
        length = products.diagonal()
        lengths.append(length)
        if len(length) > 1:
            apart = products.square().sum() - length.square().sum()
            squares.append(apart / (len(length) * (len(length) - 1)))
    if not lengths or not squares:
        return 1.0, 1.0
    mean, square = float(torch.cat(lengths).mean()), float(torch.stack(squares).mean())
    return (mean, max(1.0, mean**2 / square)) if mean > _TINY and square > _TINY else (1.0, 1.0)


def _numbers(
    gram: Tensor,
    weights: Tensor,
    alike: Tensor,
    own: Sequence[int],
    freedom: float,
    noise: Sequence[float],
    *,
    drifts: bool,
) -> tuple[Tensor, float]:
    """Return the most probable numbers ``(C,)`` at least 1, and s.

    Args:
        gram: inner products of deviations ``(T, T)``, over k.
        weights: of classes ``(T, C)``.
        alike: how alike rounds are ``(T, T)``.
        own: images that each class's expectation is of.
        freedom: f.
        noise: what a defense adds to each diagonal entry.
        drifts: whether rounds differ beyond that.
    """
    largest = float(gram.diagonal().amax())
    if largest > _FARTHEST:  # beyond any image: one image's distance already
        gram, noise = gram * (_FARTHEST / largest), [one * _FARTHEST / largest for one in noise]
    added = torch.diag(torch.tensor(noise, dtype=torch.float64))
    beside = 1 / torch.tensor(own, dtype=torch.float64)
    inverse = torch.full((weights.shape[1],), USUAL, dtype=torch.float64, requires_grad=True)
    drift = torch.tensor(DRIFT, dtype=torch.float64, requires_grad=drifts)
    unknown = [inverse, drift] if drifts else [inverse]
    solver = torch.optim.LBFGS(unknown, max_iter=200, line_search_fn="strong_wolfe")

    def cost() -> Tensor:
        solver.zero_grad()
        within = inverse.clamp(*_RANGE)
        expected = (weights * (within.exp() + beside)) @ weights.T * alike + added
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


def countable(problem: InferenceProblem) -> bool:
    """True if the attacker has what takes the uploads of all clients apart: own images, extractors, and enough rounds."""
    labels, uploads = problem.knowledge.public_labels, problem.uploads
    if labels is None or problem.knowledge.public_images is None or not enough(labels):
        return False
    if not uploads.keys() <= problem.knowledge.extractors.keys():
        return False
    for client, seen in uploads.items():
        if CLASS_OUTPUTS.first(seen.upload) is not None and client not in problem.knowledge.heads:
            return False
    mixed = [client for client, seen in uploads.items() if MIXTURES.first(seen.upload) is not None]
    rounds = [_rounds_of(problem, client) for client in mixed]
    return all(_apart([one for one, _ in own]) for own in rounds)


def _apart(seen: Sequence[Observation]) -> bool:
    """True if the weights of mixtures change over rounds; those that are shares of classes (VAR) do not, and say them."""
    weights = [sent.said("weights") for one in seen if (sent := MIXTURES.first(one.upload)) is not None]
    table = torch.stack([one.double().flatten().cpu() for one in weights if one is not None])
    n_classes = int((table != 0).any(0).sum())
    return len(table) >= LEAST_ROUNDS and int(torch.linalg.matrix_rank(table, rtol=_ALIKE)) >= min(2, n_classes)


def counted_shares(problem: InferenceProblem) -> dict[int, Tensor] | None:
    """Return the shares of classes ``(C,)`` in each client's images, float64, zero for those that are not sent.

    None where mixtures of half of the clients differ too much from round to round to be taken apart (:data:`LOST`).

    Args:
        problem: :func:`countable`; uploads are class means, of representations or outputs, or mixtures with weights.
    """
    images, labels = problem.knowledge.public_images, problem.knowledge.public_labels
    assert images is not None
    assert labels is not None
    shares, drifts = {}, []
    for client in problem.uploads:
        rounds = [as_round(seen, known, images[:0], images, labels) for seen, known in _rounds_of(problem, client)]
        told = numbers_of_members(rounds, labels.cpu())
        found = torch.zeros(problem.knowledge.n_classes, dtype=torch.float64)
        found[list(told.numbers)] = torch.tensor(list(told.numbers.values()), dtype=torch.float64)
        shares[client] = found / found.sum()
        drifts.append(told.drift)
    return None if median(drifts) > LOST else shares


def _rounds_of(problem: InferenceProblem, client: int) -> list[tuple[Observation, Knowledge]]:
    newest = Moment(tuple(problem.uploads.values()), problem.knowledge)
    moments = (*problem.earlier, newest) if MIXTURES.first(problem.uploads[client].upload) is not None else (newest,)
    seen = [(one, moment.knowledge) for moment in moments for one in moment.observations if one.client == client]
    return [(one, known) for one, known in seen if MEANS.first(one.upload) is not None and client in known.extractors]
