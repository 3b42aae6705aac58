"""Class means from what training did to a linear layer, by linear algebra, and the attacks that invert them.

A linear layer z = W r + b under cross-entropy has for one image the gradients dW = delta r^T and db = delta, where delta =
softmax(z) - onehot(y). One step on one image therefore gives r away exactly, from any row of dW and its entry of db.
A step on more images sums such terms. Put together by class, with n_c the share of class c in the batch, p_c its
predicted probabilities and r_c its mean representation,

    dW = D P,    D = [n_c (p_c - e_c)]  (C x m),    P = [r_c]  (m x d),

up to the spread of p within a class. W and b are known before and after, so p_c follows from r_c, and D and P are solved
for in turn until they agree. Two things keep that steady: only the rows of classes that are there are used, since in
the others the spread of p is all there is; and each such row of D is made to sum to its entry of db, as it must, which
takes the large entries of D from the upload rather than from a guess. Columns of D sum to zero over all classes, so that
a client that holds all C of them gives away contrasts only: a common shift of its class means remains open.

An angle matrix A with z = W (r + r A) + b (row vectors) has dA = sum_c r_c^T q_c, q_c = n_c (p_c - e_c) W. A block of
side s on its diagonal, which is what FedRAL uploads, holds s such equations for every coordinate of r_c, so it yields up to
min(s, C - 1) class means. A diagonal has one, and solving in turn swings without rest. Representations after a ReLU are
not negative, which closes most of the gap: ||dA - sum_c r_c^T q_c(r)||^2 / ||dA||^2 is minimised over r_c = u_c^2 by L-BFGS
from several starts. Of several steps the equations do not hold, for the extractor moves; an attacker with images of its own
then uses :mod:`fedpriv.attacks.features.multi_step`.

Sources: Geiping et al. 2020, proposition 3.1 (one image); Zhao et al. 2020 (the label); Fan et al. 2025, Maui (features
from head gradients). Class means and the angle matrix are derived here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedpriv.algebra.matrices import dense, diagonal_blocks
from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.features.base import ClassMeans, Recovered, RecoverThenInvert, recovered_means
from fedpriv.attacks.features.multi_step import (
    angle_steps,
    clients_to_solve,
    head_steps,
    multi_step_means,
    simulates,
    work_of,
)
from fedpriv.attacks.gradients.separation import members_of_head
from fedpriv.attacks.inputs.targets import rounds_of
from fedpriv.attacks.inputs.updates import require_facts
from fedpriv.attacks.observation import BatchFacts, Knowledge, Needs, Observation
from fedpriv.attacks.search.objectives import Match
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator
from fedpriv.wire.kinds import HEADS, MAPPINGS
from fedpriv.wire.payloads import AngleMatrix, Classifier, Message, find_payload

_ITERATIONS = 300
_SETTLED = 1e-9
"""Relative change of the class means below which they have settled."""

_EXACT = 1e-5
"""Relative distance from the update below which a solution is the one; float32 updates leave about 1e-7."""

_ROUNDING = 1e-2
"""Relative error of class means below which they count as exact: a fit to vectors that wrong still gains."""

_HALF_AN_IMAGE = 0.5
"""A class is taken to be there when the update speaks of at least so many of its images."""

_WELL_POSED = 1e3
"""Condition number up to which the linear answer of blocks is kept."""

_STARTS = 3
_FITTED = 1e-2
"""Relative residual below which a fit without negative entries has settled."""

_TINY = 1e-12

_HEAD_CUT, _ANGLE_CUT = 1e-2, 1e-6
"""Singular values below this share of the largest are taken for zero."""

Head = tuple[Tensor, Tensor]
"""Weight ``(C, d)`` and bias ``(C,)``."""


# ---------------------------------------------------------------- the attacks


@dataclass(frozen=True, kw_only=True)
class HeadUpdate(RecoverThenInvert):
    """Recover class means (or the one representation) from a head's update, then invert each.

    A target is one class of one client; its ``label`` names the class where labels are given, else its ``index`` counts
    the classes that the update speaks of, ascending. All rounds handed over are solved together.

    Attributes:
        match: what of the recovered vectors is believed, by all inversions but ``decoder``: ``nonzero`` where columns of the
            update were zeroed (the answer to ``soteria``); see :data:`fedpriv.attacks.search.objectives.Match`.
    """

    match: Match = "vector"

    name = "head-update"
    summary = "class means solved for from a classifier's update, then inverted"
    version = 7
    targets = HEADS
    needs = Needs(extractor=("white_box",), batch=True)

    def recover(self, problem: AttackProblem) -> Recovered:
        """Solve for the class means of every attacked client."""
        solved = {client: self._means(problem, client) for client in clients_to_solve(problem)}
        return recovered_means(solved, problem.targets)

    def inversion_options(self) -> dict[str, Any]:
        """Return the match."""
        return {"match": self.match}

    def _means(self, problem: AttackProblem, client: int) -> ClassMeans:
        knowledge, seen = problem.knowledge, rounds_of(problem.observations, client)
        if simulates(seen, knowledge):
            facts, (only,) = require_facts(self.name, knowledge, client), seen
            step = _head_step(only, facts)
            shares = _head_shares(only, step, facts, knowledge)
            if bool((shares > 0).any()):
                work = work_of(facts, knowledge.labels.get((only.round, client)), shares)
                steps = partial(head_steps, work, step.heads[0])
                return multi_step_means(problem, only, work, steps, 2 * step.weight.numel(), step.weight[None])
        return recover_from_head(seen, client, knowledge)


@dataclass(frozen=True, kw_only=True)
class AngleUpdate(RecoverThenInvert):
    """Recover class means (or the one representation) from an angle matrix's update, then invert each.

    A target is one class of one client. All rounds handed over are solved together.

    Attributes:
        nonnegative: whether representations are known to follow a ReLU, as the small and the published networks' do. Then
            means that linear equations do not determine (blocks with a side below the number of classes, diagonals) are
            fitted without negative entries.
    """

    nonnegative: bool = True

    name = "angle-update"
    summary = "class means solved for from an angle matrix's update, then inverted"
    version = 6
    targets = MAPPINGS
    needs = Needs(extractor=("white_box",), labels=("given",), batch=True)

    def recover(self, problem: AttackProblem) -> Recovered:
        """Solve for the class means of every attacked client."""
        solved = {client: self._means(problem, client) for client in clients_to_solve(problem)}
        return recovered_means(solved, problem.targets)

    def _means(self, problem: AttackProblem, client: int) -> ClassMeans:
        knowledge, seen = problem.knowledge, rounds_of(problem.observations, client)
        if not simulates(seen, knowledge):
            return recover_from_angle(seen, client, knowledge, nonnegative=self.nonnegative, seed=problem.seed)
        facts, (only,) = require_facts(self.name, knowledge, client), seen
        step = _angle_step(only, facts, knowledge)
        work = work_of(facts, knowledge.labels.get((only.round, client)), step.shares)
        steps = partial(angle_steps, work, step.angle, step.head, len(step.blocks))
        each = 2 * (step.angle.numel() + step.head[0].numel())
        return multi_step_means(problem, only, work, steps, each, step.blocks.mT)


# ---------------------------------------------------------------- from uploads to class means


def recover_from_head(observations: Sequence[Observation], client: int, knowledge: Knowledge) -> ClassMeans:
    """Solve for the class means behind one client's head updates.

    Of a single step the rows of absent classes tell whether the means explain it, and so whether they are exact.
    """
    facts = require_facts(HeadUpdate.name, knowledge, client)
    seen = rounds_of(observations, client)
    steps = [_head_step(upload, facts) for upload in seen]
    shares = [_head_shares(upload, step, facts, knowledge) for upload, step in zip(seen, steps, strict=True)]
    single = len(seen) == 1 and facts.steps == 1
    if single and facts.batch_size == 1:
        return _of_one_image(steps[0])
    labels = knowledge.labels.get((seen[0].round, client)) if single else None
    if labels is not None:
        exact = _by_members(steps[0], labels.cpu())
        if exact is not None:
            return exact
    classes = (torch.stack(shares) > 0).any(0).nonzero().squeeze(1)
    solved = means_of_head(
        [replace(step, shares=own[classes]) for step, own in zip(steps, shares, strict=True)], classes
    )
    determined = single and len(classes) < len(steps[0].bias)
    return _counted(solved, shares[0][classes] * facts.images) if determined else solved


def recover_from_angle(
    observations: Sequence[Observation], client: int, knowledge: Knowledge, *, nonnegative: bool = True, seed: int = 0
) -> ClassMeans:
    """Solve for the class means behind one client's updates of the angle matrix; ``seed`` draws the fit's starts.

    Of a single step, blocks wider than the number of classes tell whether the means are exact.
    """
    facts = require_facts(AngleUpdate.name, knowledge, client)
    whole = [_angle_step(upload, facts, knowledge) for upload in rounds_of(observations, client)]
    classes = (torch.stack([step.shares for step in whole]) > 0).any(0).nonzero().squeeze(1)
    steps = [replace(step, shares=step.shares[classes]) for step in whole]
    solved = means_of_angle(steps, classes)
    if nonnegative and not (solved.settled and solved.condition < _WELL_POSED):
        solved = fit_nonnegative(steps, classes, generator(seed, "angle fit", client))
    determined = len(steps) == 1 and facts.steps == 1 and len(classes) < len(steps[0].blocks[0])
    return _counted(solved, steps[0].shares * facts.images) if determined else solved


def _counted(found: ClassMeans, counts: Tensor) -> ClassMeans:
    """Return class means with their numbers of images ``(m,)``, rounded, where the means are exact."""
    exact = found.error < _ROUNDING
    return replace(found, counts=counts.round().long().clamp_min(1)) if exact else found


def _of_one_image(step: HeadStep) -> ClassMeans:
    representation = single_representation(step.weight, step.bias)
    left = float((step.weight - torch.outer(step.bias, representation)).norm() / step.weight.norm().clamp(min=1e-30))
    moved = bool(step.weight.any()) and bool(step.bias.any())
    label = torch.tensor([single_label(step.bias)])
    return _counted(ClassMeans(label, representation[None], left, 1.0, moved), torch.ones(1))


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


def _head_shares(seen: Observation, step: HeadStep, facts: BatchFacts, knowledge: Knowledge) -> Tensor:
    """Return the classes' shares of the batches ``(C,)``, summed over steps: given, else read off the bias."""
    shares = _given_shares(knowledge, seen, facts)
    if shares is not None:
        return shares
    typical = torch.stack([bias for _, bias in step.heads]).mean(0).softmax(0)
    shares = class_shares(step.bias, typical, facts.steps)
    return torch.where(shares * facts.batch_size >= _HALF_AN_IMAGE, shares, torch.zeros_like(shares))


def _head_step(seen: Observation, facts: BatchFacts) -> HeadStep:
    """Return a round's gradient, without shares."""
    before = _head(seen.broadcast, f"broadcast of round {seen.round}")
    after = _head(seen.upload, f"upload of client {seen.client} in round {seen.round}")
    if not facts.learning_rate > 0:
        raise UserError(f"the learning rate of client {seen.client} should be above 0, got {facts.learning_rate}")
    weight, bias = ((old - new) / facts.learning_rate for old, new in zip(before, after, strict=True))
    if not bool(weight.isfinite().all() and bias.isfinite().all()):
        raise UserError(f"the head of client {seen.client} in round {seen.round} holds entries that are not finite")
    # One step was computed at the first head; of several, the last head is as good a guess.
    return HeadStep(weight, bias, (before,) if facts.steps == 1 else (before, after), torch.zeros(0))


def _head(message: Message, where: str) -> Head:
    sent = find_payload(message, Classifier)
    if sent is None:
        raise UserError(f"{where}: holds no classifier; an update cannot be formed")
    if not {"weight", "bias"} <= sent.state.keys():
        raise UserError(f"{where}: expected a linear head with weight and bias, got {', '.join(sent.state)}")
    return sent.state["weight"].cpu().double(), sent.state["bias"].cpu().double()


def _angle_step(seen: Observation, facts: BatchFacts, knowledge: Knowledge) -> AngleStep:
    """Return a round's gradient, with the shares of all classes."""
    if seen.client not in knowledge.heads:
        raise UserError(f"no head of client {seen.client} was handed over; attack 'angle-update' solves with it")
    shares = _given_shares(knowledge, seen, facts)
    if shares is None:
        raise UserError(f"no labels of client {seen.client} in round {seen.round} were handed over")
    return AngleStep(*angle_gradient(seen, facts), knowledge.heads[seen.client], shares)


def angle_gradient(seen: Observation, facts: BatchFacts) -> tuple[Tensor, Tensor]:
    """Return the gradient of the uploaded blocks ``(k, s, s)``, summed over the steps, and the broadcast ``(d, d)``."""
    sent, received = find_payload(seen.broadcast, AngleMatrix), find_payload(seen.upload, AngleMatrix)
    if sent is None or received is None:
        side = "broadcast" if sent is None else "upload"
        raise UserError(f"{side} of client {seen.client} in round {seen.round}: holds no angle matrix")
    before, after = dense(sent.blocks.cpu()).double(), received.blocks.cpu().double()
    return (diagonal_blocks(before, len(after)) - after) / facts.learning_rate, before


# ---------------------------------------------------------------- algebra


def single_representation(weight: Tensor, bias: Tensor) -> Tensor:
    """Return the representation ``(d,)`` behind a one-image gradient, ``(C, d)`` and ``(C,)``: r = dW^T db / ||db||^2.

    Every row k gives r = dW_k / db_k; this is the least-squares answer, zero where the bias has no gradient.
    """
    return weight.T @ bias / bias.square().sum().clamp(min=torch.finfo(bias.dtype).tiny)


def single_label(bias: Tensor) -> int:
    """Return the label behind a one-image gradient of the bias ``(C,)``: its only negative entry."""
    return int(bias.argmin())


def class_shares(bias: Tensor, probabilities: Tensor, steps: int) -> Tensor:
    """Return the frequency ``(C,)`` of each class in training, in units of whole batches: n_k = steps p_k - db_k.

    The ``probabilities`` p ``(C,)`` are taken to be alike for all images, for example the softmax of the bias.
    """
    return (steps * probabilities - bias).clamp(min=0)


@dataclass(frozen=True)
class HeadStep:
    """One round's gradient of a head, summed over its steps.

    Attributes:
        weight: ``(C, d)``.
        bias: ``(C,)``.
        heads: before and after the round, or one of them.
        shares: ``(m,)`` n_c, times the number of steps, of the m classes that are solved for.
    """

    weight: Tensor
    bias: Tensor
    heads: tuple[Head, ...]
    shares: Tensor


@dataclass(frozen=True)
class AngleStep:
    """One round's gradient of the blocks of an angle matrix, summed over its steps.

    Attributes:
        blocks: ``(k, s, s)`` of the diagonal blocks, k s = d.
        angle: ``(d, d)`` the matrix that the round began with.
        head: of the client.
        shares: ``(m,)`` n_c, times the number of steps, of the m classes that are solved for.
    """

    blocks: Tensor
    angle: Tensor
    head: Head
    shares: Tensor


def means_of_head(steps: Sequence[HeadStep], classes: Tensor) -> ClassMeans:
    """Recover means of the classes ``(m,)`` from updates of a head in rounds over which the extractor stands still."""
    wanted = torch.cat([step.weight.double()[classes] for step in steps])
    everything = torch.cat([step.weight.double() for step in steps])

    def errors(means: Tensor, step: HeadStep) -> Tensor:
        chances = torch.stack([(means @ w.double().T + b.double()).softmax(1) for w, b in step.heads]).mean(0)
        return _errors(chances, classes, step.shares.double()).T

    def mixing(means: Tensor) -> Tensor:
        parts = []
        for step in steps:
            matrix = errors(means, step)[classes]
            parts.append(matrix + torch.diag(step.bias.double()[classes] - matrix.sum(1)))
        return torch.cat(parts)

    def solve(means: Tensor) -> Tensor:
        found: Tensor = torch.linalg.pinv(mixing(means), rtol=_HEAD_CUT) @ wanted
        return found

    def misfit(means: Tensor) -> float:
        pushed = torch.cat([errors(means, step) for step in steps]) @ means
        left = float((everything - pushed).norm() / everything.norm().clamp(min=1e-300))
        return left if math.isfinite(left) else math.inf

    # The rows of these classes may have a second solution; those of all others have nothing to do with it.
    slopes = torch.stack([step.bias.double()[classes] for step in steps]).sum(0)
    pushes = wanted.view(len(steps), len(classes), -1).sum(0)
    ratios = torch.where(slopes.abs() > _TINY, 1 / slopes, 0.0)[:, None] * pushes
    attempts: list[tuple[float, Tensor, bool]] = []
    for start in (torch.zeros_like(ratios), ratios):
        found, rests = _settle(solve, start)
        attempts.append((misfit(found), found, rests))
        if attempts[-1][0] < _EXACT:
            break
    residual, means, settled = min(attempts, key=lambda attempt: attempt[0])
    return ClassMeans(classes, means.float(), residual, _condition(mixing(means), _HEAD_CUT), settled)


def means_of_angle(steps: Sequence[AngleStep], classes: Tensor) -> ClassMeans:
    """Recover means of the classes ``(m,)`` from updates of equal blocks in rounds over which the extractor stands still."""
    n_blocks, side, _ = steps[0].blocks.shape
    # (k, rounds x s, s): block by block, dA^T = q^T P.
    wanted = torch.cat([step.blocks.double().transpose(1, 2) for step in steps], 1)

    def pushes(means: Tensor) -> Tensor:
        parts = []
        for step in steps:
            weight, bias = (value.double() for value in step.head)
            turned = means + means @ step.angle.double()
            push = _errors((turned @ weight.T + bias).softmax(1), classes, step.shares.double()) @ weight
            parts.append(push.reshape(len(classes), n_blocks, side).permute(1, 2, 0))
        return torch.cat(parts, 1)

    def solve(means: Tensor) -> Tensor:
        found: Tensor = torch.linalg.pinv(pushes(means), rtol=_ANGLE_CUT) @ wanted
        return found.permute(1, 0, 2).reshape(len(classes), -1)

    means, settled = _settle(solve, wanted.new_zeros(len(classes), n_blocks * side))
    matrix = pushes(means)
    in_blocks = means.reshape(len(classes), n_blocks, side).permute(1, 0, 2)
    residual = float((wanted - matrix @ in_blocks).norm() / wanted.norm().clamp(min=1e-300))
    condition = max(_condition(block, _ANGLE_CUT) for block in matrix)
    return ClassMeans(classes, means.float(), residual, condition, settled)


def fit_nonnegative(steps: Sequence[AngleStep], classes: Tensor, rng: torch.Generator) -> ClassMeans:
    """Fit means without negative entries, of the classes ``(m,)``, to steps of one extractor; ``rng`` draws the starts."""
    n_blocks, side, _ = steps[0].blocks.shape
    shape = (len(classes), n_blocks * side)
    truth = one_hot(classes, len(steps[0].head[1])).double()
    fixed = [
        (s.blocks.double(), s.angle.double(), *(v.double() for v in s.head), s.shares.double()[:, None]) for s in steps
    ]
    scale = float(sum(blocks.square().sum() for blocks, *_ in fixed)) or 1.0

    def misfit(root: Tensor) -> Tensor:
        means = root.square()
        total = root.new_zeros(())
        for blocks, angle, weight, bias, shares in fixed:
            chances = ((means + means @ angle) @ weight.T + bias).softmax(1)
            push = shares * (chances - truth) @ weight
            parts = (vectors.reshape(len(classes), n_blocks, side) for vectors in (means, push))
            total = total + (blocks - torch.einsum("mks,mkt->kst", *parts)).square().sum()
        return total / scale

    best, least = torch.zeros(shape, dtype=torch.float64), math.inf
    for _ in range(_STARTS):
        root = (0.3 + 0.5 * torch.rand(shape, generator=rng, dtype=torch.float64)).requires_grad_()
        found, value = _minimise(misfit, root)
        if value < least:
            best, least = found, value
    residual = math.sqrt(least) if math.isfinite(least) else math.inf
    return ClassMeans(classes, best.square().float(), residual, math.inf, residual < _FITTED)


def _minimise(misfit: Callable[[Tensor], Tensor], root: Tensor) -> tuple[Tensor, float]:
    optimiser = torch.optim.LBFGS(
        [root],
        max_iter=_ITERATIONS,
        history_size=50,
        tolerance_grad=1e-14,
        tolerance_change=1e-16,
        line_search_fn="strong_wolfe",
    )

    def closure() -> float:
        optimiser.zero_grad()
        value = misfit(root)
        value.backward()
        return float(value.detach())

    optimiser.step(closure)
    found = root.detach()
    return found, float(misfit(found))


def _errors(chances: Tensor, classes: Tensor, shares: Tensor) -> Tensor:
    """Return n_c (p_c - e_c), one row a class ``(m, C)``, from predictions ``(m, C)``."""
    truth = torch.zeros_like(chances).scatter_(1, classes[:, None].to(chances.device), 1.0)
    return shares[:, None].to(chances.device) * (chances - truth)


def _settle(solve: Callable[[Tensor], Tensor], start: Tensor) -> tuple[Tensor, bool]:
    """Iterate P <- solve(P), and half steps where whole ones swing to and fro."""
    means, last, pace = start, math.inf, 1.0
    best, least = start, math.inf
    for _ in range(_ITERATIONS):
        found = solve(means)
        size = float((found - means).norm() / found.norm().clamp(min=1e-12))
        if not math.isfinite(size):
            break
        if size < least:
            best, least = found, size
        if size < _SETTLED:
            return found, True
        if size >= last:
            pace = max(pace / 2, 1 / 16)
        means, last = means + pace * (found - means), size
    return best, False


def _condition(matrix: Tensor, cut: float) -> float:
    """Return the condition number of equations ``(rows, m)``; infinite where they leave an unknown open."""
    values = torch.linalg.svdvals(matrix)
    short = len(matrix) < matrix.shape[1] or float(values[-1]) <= cut * float(values[0])
    return math.inf if short else float(values[0] / values[-1])
