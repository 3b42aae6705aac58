"""Class means from what one round's training did to a linear layer, by linear algebra, and the attacks that invert them.

A layer z = W r + b under cross-entropy has for one image dW = delta r^T and db = delta = softmax(z) - onehot(y), which
gives r exactly. With n_c the share of class c in the batch, p_c its mean predictions and r_c its mean representation,

    dW = D P,    D = [n_c (p_c - e_c)]  (C x m),    P = [r_c]  (m x d),

and D and P are solved for in turn. Columns of D sum to zero, so that a client of all C classes discloses contrasts only.

An angle matrix A with z = W (r + r A) + b has dA = sum_c r_c^T q_c, q_c = n_c (p_c - e_c) W. A block of side s on its
diagonal (FedRAL) holds s equations for every coordinate of r_c: up to min(s, C - 1) class means. Where there are fewer,
||dA - sum_c r_c^T q_c(r)||^2 / ||dA||^2 is minimised over r_c = u_c^2, not negative behind a ReLU. Of several steps the
equations hold about as far as the extractor stands still.

Sources: Geiping et al. 2020, proposition 3.1; Zhao et al. 2020 (the label); Fan et al. 2025, Maui. Class means and the angle
matrix are derived here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from fedpriv.algebra.matrices import dense, diagonal_blocks
from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.features.base import Recovered, RecoverThenInvert, as_uploads
from fedpriv.attacks.gradients.separation import members_of_head
from fedpriv.attacks.gradients.update import require_facts
from fedpriv.attacks.inputs.targets import rounds_of
from fedpriv.attacks.observation import BatchFacts, Knowledge, Needs, Observation, TargetId
from fedpriv.uploads.kinds import HEADS, MAPPINGS
from fedpriv.uploads.payloads import AngleMatrix, Classifier, find_payload
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator

_ITERATIONS, _SETTLED = 300, 1e-9  # at most; relative change of the class means below which they have settled
_EXACT = 1e-5  # relative distance from the update below which a solution is the one
_ROUNDING = 1e-2  # error of means below which they are exact
_HALF_AN_IMAGE = 0.5  # images of a class from which on it counts as there
_WELL_POSED = 1e3  # condition number up to which a linear answer of blocks is kept
_STARTS, _FITTED = 3, 1e-2  # of a fit without negative entries; relative residual below which it has settled
_HEAD_CUT, _ANGLE_CUT = 1e-2, 1e-6  # share of the largest below which singular values are taken for zero
_TINY = 1e-12  # least slope that is divided by

Head = tuple[Tensor, Tensor]
"""Weight ``(C, d)`` and bias ``(C,)``."""


@dataclass(frozen=True, kw_only=True)
class HeadUpdate(RecoverThenInvert):
    """Recover class means (or the one representation) from a head's newest update, then invert each.

    A target is one class of one client, by its ``label`` where given, else the ``index``-th that the update speaks of.
    """

    name = "head-update"
    summary = "class means solved for from a classifier's update, then inverted"
    version = 9
    targets = HEADS
    needs = Needs(extractor=("white_box",), batch=True)

    def recover(self, problem: AttackProblem) -> Recovered:
        return _recovered(problem, recover_from_head)


@dataclass(frozen=True, kw_only=True)
class AngleUpdate(RecoverThenInvert):
    """Recover class means (or the one representation) from an angle matrix's newest update, then invert each.

    A target is one class of one client. Means that linear equations do not determine (blocks with a side below the number
    of classes, diagonals) are fitted without negative entries, as behind a ReLU.
    """

    name = "angle-update"
    summary = "class means solved for from an angle matrix's update, then inverted"
    version = 8
    targets = MAPPINGS
    needs = Needs(extractor=("white_box",), labels=("given",), batch=True)

    def recover(self, problem: AttackProblem) -> Recovered:
        return _recovered(problem, partial(recover_from_angle, seed=problem.seed))


@dataclass(frozen=True)
class ClassMeans:
    """Means recovered from the update of one client."""

    classes: Tensor  # (m,)
    means: Tensor  # (m, d) float32
    residual: float  # relative distance of the update from what the means explain; about zero where the equations hold
    condition: float  # number of what was inverted; infinite where the means are not determined
    settled: bool  # whether the iteration came to rest
    counts: Tensor | None = None  # (m,) int64 images of each mean, where the means are exact up to rounding

    @property
    def error(self) -> float:
        """Relative error of the means that the residual allows for; infinite where they are not determined."""
        return self.residual * self.condition if self.settled and math.isfinite(self.condition) else math.inf

    def row(self, target: TargetId) -> int:
        """Return the row of a target: its class's where that was recovered, else the one of its number."""
        places = (self.classes == target.label).nonzero()
        return int(places[0]) if len(places) else min(target.index, len(self.classes) - 1)


def _recovered(problem: AttackProblem, solve: Callable[[Observation, Knowledge], ClassMeans]) -> Recovered:
    """Return the class means behind each client's newest upload as uploads of their own."""
    solved = {k: solve(rounds_of(problem.observations, k)[-1], problem.knowledge) for k in problem.clients}
    places = tuple(replace(target, index=solved[target.client].row(target)) for target in problem.targets)
    rows = [(solved[position.client], position.index) for position in places]
    counts = [None if result.counts is None else int(result.counts[row]) for result, row in rows]
    return Recovered(
        as_uploads([result.means[row] for result, row in rows], places, counts),
        places,
        labels=torch.tensor([int(result.classes[row]) for result, row in rows]),
        sound=torch.tensor([result.settled for result, _ in rows]),
        exact=True,
    )


def recover_from_head(seen: Observation, knowledge: Knowledge) -> ClassMeans:
    """Solve for the class means behind a client's head update; of one step rows of absent classes tell if they are exact."""
    facts = require_facts(HeadUpdate.name, knowledge, seen.client)
    step = _head_step(seen, facts, knowledge)
    if facts.steps == facts.batch_size == 1:
        return _of_one_image(step)
    labels = knowledge.labels.get((seen.round, seen.client))
    exact = None if facts.steps > 1 or labels is None else _by_members(step, labels.cpu())
    if exact is not None:
        return exact
    classes = (step.shares > 0).nonzero().squeeze(1)
    solved = means_of_head(replace(step, shares=step.shares[classes]), classes)
    determined = facts.steps == 1 and len(classes) < len(step.bias)
    return _counted(solved, step.shares[classes] * facts.images) if determined else solved


def recover_from_angle(seen: Observation, knowledge: Knowledge, seed: int = 0) -> ClassMeans:
    """Solve for the class means behind a client's update of the angle matrix; ``seed`` draws the fit's starts."""
    facts = require_facts(AngleUpdate.name, knowledge, seen.client)
    step = _angle_step(seen, facts, knowledge)
    classes = (step.shares > 0).nonzero().squeeze(1)
    step = replace(step, shares=step.shares[classes])
    solved = means_of_angle(step, classes)
    if not (solved.settled and solved.condition < _WELL_POSED):
        solved = fit_nonnegative(step, classes, generator(seed, "angle fit", seen.client))
    determined = facts.steps == 1 and len(classes) < len(step.blocks[0])
    return _counted(solved, step.shares * facts.images) if determined else solved


def _counted(class_means: ClassMeans, counts: Tensor) -> ClassMeans:
    """Return class means with their numbers of images ``(m,)``, rounded, where the means are exact."""
    exact = class_means.error < _ROUNDING
    return replace(class_means, counts=counts.round().long().clamp_min(1)) if exact else class_means


def _of_one_image(step: HeadStep) -> ClassMeans:
    """Return r = dW^T db / ||db||^2, the least-squares answer of all rows; its label has the only negative entry of db."""
    weight, bias = step.weight, step.bias
    representation = weight.T @ bias / bias.square().sum().clamp(min=torch.finfo(bias.dtype).tiny)
    left = float((weight - torch.outer(bias, representation)).norm() / weight.norm().clamp(min=1e-30))
    moved = bool(weight.any()) and bool(bias.any())
    return _counted(ClassMeans(bias.argmin()[None], representation[None], left, 1.0, moved), torch.ones(1))


def _by_members(step: HeadStep, labels: Tensor) -> ClassMeans | None:
    """Return class means as those of single images that explain the head's gradient; None where none do."""
    members = members_of_head(step.weight, step.bias, step.heads[0], labels, torch.Generator().manual_seed(0))
    if members is None:
        return None
    classes, of_class = labels.unique(return_inverse=True)
    counts = torch.bincount(of_class)
    means = torch.zeros(len(classes), step.weight.shape[1]).index_add_(0, of_class, members.inputs)
    means /= counts.unsqueeze(1)
    pushed = members.derivatives.double().T @ members.inputs.double() / len(labels)
    left = float((step.weight - pushed).norm() / step.weight.norm().clamp(min=1e-30))
    if not left < _EXACT:
        return None
    mixing = torch.zeros(len(classes), len(step.bias)).index_add_(0, of_class, members.derivatives)
    condition = float(torch.linalg.cond(mixing.double()))
    return _counted(ClassMeans(classes, means, left, condition, settled=True), counts)


@dataclass(frozen=True)
class HeadStep:
    """A round's gradient of a head, summed over its steps."""

    weight: Tensor  # (C, d)
    bias: Tensor  # (C,)
    heads: tuple[Head, ...]  # before and after
    shares: Tensor  # (m,) n_c, times the number of steps, of the m classes that are solved for


@dataclass(frozen=True)
class AngleStep:
    """A round's gradient of the blocks of an angle matrix, summed over its steps."""

    blocks: Tensor  # (k, s, s), k s = d
    angle: Tensor  # (d, d) that the round began with
    head: Head  # the client's
    shares: Tensor  # as of a head's step


def _given_shares(knowledge: Knowledge, seen: Observation, facts: BatchFacts) -> Tensor | None:
    """Return the classes' shares of the batches ``(C,)``, summed over steps, from given labels; None where not given."""
    labels = knowledge.labels.get((seen.round, seen.client))
    if labels is None:
        return None
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < knowledge.n_classes:
        raise UserError(
            f"labels of client {seen.client} in round {seen.round} should be in [0, {knowledge.n_classes}), got "
            f"{int(labels.min())} to {int(labels.max())}"
        )
    sizes = facts.sizes if sum(facts.sizes) == len(labels) else (min(facts.batch_size, len(labels)),) * len(labels)
    share = torch.cat([torch.full((size,), 1 / size) for size in sizes])[: len(labels)]
    return torch.zeros(knowledge.n_classes).index_add_(0, labels.cpu(), share)


def _head_step(seen: Observation, facts: BatchFacts, knowledge: Knowledge) -> HeadStep:
    """Return a round's gradient, with the shares of all classes: given, else n_k = steps p_k - db_k of one p."""
    states: list[Head] = []
    for side, message in (("broadcast", seen.broadcast), ("upload", seen.upload)):
        sent = find_payload(message, Classifier)
        if sent is None or not {"weight", "bias"} <= sent.state.keys():
            where = f"{side} of client {seen.client} in round {seen.round}"
            raise UserError(f"{where}: holds no classifier with weight and bias; an update cannot be formed")
        states.append((sent.state["weight"].cpu().double(), sent.state["bias"].cpu().double()))
    before, after = states
    if not facts.learning_rate > 0:
        raise UserError(f"the learning rate of client {seen.client} should be above 0, got {facts.learning_rate}")
    weight, bias = ((old - new) / facts.learning_rate for old, new in zip(before, after, strict=True))
    if not bool(weight.isfinite().all() and bias.isfinite().all()):
        raise UserError(f"the head of client {seen.client} in round {seen.round} holds entries that are not finite")
    # One step was computed at the first head; of several, the last head is as good a guess.
    heads = (before,) if facts.steps == 1 else (before, after)
    shares = _given_shares(knowledge, seen, facts)
    if shares is None:
        typical = torch.stack([current for _, current in heads]).mean(0).softmax(0)
        shares = (facts.steps * typical - bias).clamp(min=0)
        shares = torch.where(shares * facts.batch_size >= _HALF_AN_IMAGE, shares, 0.0)
    return HeadStep(weight, bias, heads, shares)


def _angle_step(seen: Observation, facts: BatchFacts, knowledge: Knowledge) -> AngleStep:
    """Return a round's gradient, with the shares of all classes."""
    if seen.client not in knowledge.heads:
        raise UserError(f"no head of client {seen.client} was handed over; attack 'angle-update' solves with it")
    shares = _given_shares(knowledge, seen, facts)
    if shares is None:
        raise UserError(f"no labels of client {seen.client} in round {seen.round} were handed over")
    sent, received = find_payload(seen.broadcast, AngleMatrix), find_payload(seen.upload, AngleMatrix)
    if sent is None or received is None:
        side = "broadcast" if sent is None else "upload"
        raise UserError(f"{side} of client {seen.client} in round {seen.round}: holds no angle matrix")
    before, after = dense(sent.blocks.cpu()).double(), received.blocks.cpu().double()
    change = (diagonal_blocks(before, len(after)) - after) / facts.learning_rate
    weight, bias = knowledge.heads[seen.client]
    return AngleStep(change, before, (weight.double(), bias.double()), shares)


def means_of_head(step: HeadStep, classes: Tensor) -> ClassMeans:
    """Recover means of the classes ``(m,)`` from an update of a head."""
    wanted, slopes = step.weight[classes], step.bias[classes]

    def errors(means: Tensor) -> Tensor:
        chances = torch.stack([(means @ w.T + b).softmax(1) for w, b in step.heads]).mean(0)
        return _errors(chances, classes, step.shares.double()).T

    def mixing(means: Tensor) -> Tensor:
        matrix = errors(means)[classes]
        return matrix + torch.diag(slopes - matrix.sum(1))

    def solve(means: Tensor) -> Tensor:
        values: Tensor = torch.linalg.pinv(mixing(means), rtol=_HEAD_CUT) @ wanted
        return values

    # The rows of these classes may have a second solution; those of all others have nothing to do with it.
    ratios = torch.where(slopes.abs() > _TINY, 1 / slopes, 0.0)[:, None] * wanted
    attempts: list[tuple[float, Tensor, bool]] = []
    for start in (torch.zeros_like(ratios), ratios):
        result, rests = _settle(solve, start)
        left = float((step.weight - errors(result) @ result).norm() / step.weight.norm().clamp(min=1e-300))
        attempts.append((left if math.isfinite(left) else math.inf, result, rests))
        if left < _EXACT:
            break
    residual, means, settled = min(attempts, key=lambda attempt: attempt[0])
    return ClassMeans(classes, means.float(), residual, _condition(mixing(means), _HEAD_CUT), settled)


def means_of_angle(step: AngleStep, classes: Tensor) -> ClassMeans:
    """Recover means of the classes ``(m,)`` from an update of equal blocks."""
    n_blocks, side, _ = step.blocks.shape
    wanted = step.blocks.mT  # block by block, dA^T = q^T P

    def pushes(means: Tensor) -> Tensor:
        push = _pushes(step, means, classes)
        return push.reshape(len(classes), n_blocks, side).permute(1, 2, 0)

    def solve(means: Tensor) -> Tensor:
        values: Tensor = torch.linalg.pinv(pushes(means), rtol=_ANGLE_CUT) @ wanted
        return values.permute(1, 0, 2).reshape(len(classes), -1)

    means, settled = _settle(solve, wanted.new_zeros(len(classes), n_blocks * side))
    matrix = pushes(means)
    in_blocks = means.reshape(len(classes), n_blocks, side).permute(1, 0, 2)
    residual = float((wanted - matrix @ in_blocks).norm() / wanted.norm().clamp(min=1e-300))
    condition = max(_condition(block, _ANGLE_CUT) for block in matrix)
    return ClassMeans(classes, means.float(), residual, condition, settled)


def fit_nonnegative(step: AngleStep, classes: Tensor, rng: torch.Generator) -> ClassMeans:
    """Fit means without negative entries, of the classes ``(m,)``; ``rng`` draws the starts."""
    n_blocks, side, _ = step.blocks.shape
    shape, scale = (len(classes), n_blocks * side), float(step.blocks.square().sum()) or 1.0

    def misfit(root: Tensor) -> Tensor:
        means = root.square()
        parts = (rows.reshape(len(classes), n_blocks, side) for rows in (means, _pushes(step, means, classes)))
        return (step.blocks - torch.einsum("mks,mkt->kst", *parts)).square().sum() / scale

    best, least = torch.zeros(shape, dtype=torch.float64), math.inf
    for _ in range(_STARTS):
        root = (0.3 + 0.5 * torch.rand(shape, generator=rng, dtype=torch.float64)).requires_grad_()
        exact = partial(torch.optim.LBFGS, tolerance_grad=1e-14, tolerance_change=1e-16, line_search_fn="strong_wolfe")
        optimiser = exact([root], max_iter=_ITERATIONS, history_size=50)

        def closure(root: Tensor = root, optimiser: torch.optim.LBFGS = optimiser) -> float:
            optimiser.zero_grad()
            value = misfit(root)
            value.backward()
            return float(value.detach())

        optimiser.step(closure)
        value = float(misfit(root.detach()))
        if value < least:
            best, least = root.detach(), value
    residual = math.sqrt(least) if math.isfinite(least) else math.inf
    return ClassMeans(classes, best.square().float(), residual, math.inf, residual < _FITTED)


def _pushes(step: AngleStep, means: Tensor, classes: Tensor) -> Tensor:
    """Return q ``(m, d)`` of class means ``(m, d)``."""
    weight, bias = (value.double() for value in step.head)
    turned = means + means @ step.angle.double()
    return _errors((turned @ weight.T + bias).softmax(1), classes, step.shares.double()) @ weight


def _errors(chances: Tensor, classes: Tensor, shares: Tensor) -> Tensor:
    """Return n_c (p_c - e_c), one row a class ``(m, C)``, from predictions ``(m, C)``."""
    truth = torch.zeros_like(chances).scatter_(1, classes[:, None], 1.0)
    return shares[:, None] * (chances - truth)


def _settle(solve: Callable[[Tensor], Tensor], start: Tensor) -> tuple[Tensor, bool]:
    """Iterate P <- solve(P), and half steps where whole ones swing to and fro."""
    means, last, pace = start, math.inf, 1.0
    best, least = start, math.inf
    for _ in range(_ITERATIONS):
        result = solve(means)
        size = float((result - means).norm() / result.norm().clamp(min=1e-12))
        if not math.isfinite(size):
            break
        if size < least:
            best, least = result, size
        if size < _SETTLED:
            return result, True
        if size >= last:
            pace = max(pace / 2, 1 / 16)
        means, last = means + pace * (result - means), size
    return best, False


def _condition(matrix: Tensor, cut: float) -> float:
    """Return the condition number of equations ``(rows, m)``; infinite where they leave an unknown open."""
    values = torch.linalg.svdvals(matrix)
    short = len(matrix) < matrix.shape[1] or float(values[-1]) <= cut * float(values[0])
    return math.inf if short else float(values[0] / values[-1])
