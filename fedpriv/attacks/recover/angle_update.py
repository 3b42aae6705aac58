"""The attack on angle matrices: solve for the representations behind the update of A, then invert them.

FedRAL sends the diagonal blocks of a d x d matrix that turns representations, trained from the broadcast one. Every
coordinate of a representation is in some block, so leaving out the rest of the matrix takes away equations, not
coordinates; see :mod:`fedpriv.attacks.recover.closed_form`.

Linear equations alone do not determine the class means of sparse blocks. A diagonal has one equation for each coordinate,
and its divisors q_j depend on the answer, so that solving in turn as in
:func:`fedpriv.attacks.recover.closed_form.means_of_angle` swings without rest. Representations after a ReLU are not
negative, which closes most of the gap: ||dA - sum_c r_c^T q_c(r)||^2 / ||dA||^2 is minimised over r_c = u_c^2 by L-BFGS from
several starts, and the lowest objective is kept.

Of several steps the equations do not hold, for head and extractor move; an attacker with images of its own then believes the
update as far as made-up clients say (:mod:`fedpriv.attacks.recover.told_means`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedpriv.algebra.matrices import dense, diagonal_blocks
from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.observation import BatchFacts, Knowledge, Needs, Observation
from fedpriv.attacks.read.target_features import rounds_of
from fedpriv.attacks.read.updates import require_facts
from fedpriv.attacks.recover.closed_form import AngleStep, ClassMeans, means_of_angle
from fedpriv.attacks.recover.head_update import MeansOfClasses, class_means, counted, given_counts
from fedpriv.attacks.recover.made_up_clients import angle_steps, work_of
from fedpriv.attacks.recover.then_invert import Recovered, RecoverThenInvert
from fedpriv.attacks.recover.told_means import Layer, learns_of, told_clients, told_means
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator
from fedpriv.wire.kinds import MAPPINGS
from fedpriv.wire.payloads import AngleMatrix, find_payload

WELL_POSED = 1e3
"""Condition number up to which the linear answer is kept."""

STARTS = 3
ITERATIONS = 300
FITTED = 1e-2
"""Relative residual below which a fit has settled."""


@dataclass(frozen=True, kw_only=True)
class AngleUpdate(RecoverThenInvert):
    """Recover class means (or the one representation) from an angle matrix's update, then invert each.

    A target is one class of one client. All rounds handed over are solved together.

    Attributes:
        nonnegative: whether representations are known to follow a ReLU, as the small and the published networks' do. Then
            means that linear equations do not determine (blocks with a side below the number of classes, diagonals) are
            fitted without negative entries; see :mod:`fedpriv.attacks.recover.angle_update`.
    """

    nonnegative: bool = True

    name = "angle-update"
    summary = "class means solved for from an angle matrix's update, then inverted"
    version = 6
    targets = MAPPINGS
    needs = Needs(extractor=("white_box",), labels=("given",), batch=True)

    def recover(self, problem: AttackProblem) -> Recovered:
        """Solve for the class means of every attacked client."""
        return class_means(
            {client: self._of_client(problem, client) for client in told_clients(problem)}, problem.targets
        )

    def _of_client(self, problem: AttackProblem, client: int) -> MeansOfClasses:
        seen, knowledge = rounds_of(problem.observations, client), problem.knowledge
        if not learns_of(seen, knowledge):
            return recover_from_angle(seen, client, knowledge, nonnegative=self.nonnegative, seed=problem.seed)
        facts, (only,) = require_facts("angle-update", knowledge, client), seen
        blocks, angle = angle_gradient(only, facts)
        head = _head(knowledge, client)
        work = work_of(facts, knowledge.labels.get((only.round, client)), _shares(knowledge, only, facts))
        layer = Layer(
            partial(angle_steps, work, angle, head, len(blocks)), 2 * (angle.numel() + head[0].numel()), blocks.mT
        )
        return told_means(problem, only, work, layer), work.classes


def recover_from_angle(
    observations: Sequence[Observation], client: int, knowledge: Knowledge, *, nonnegative: bool = True, seed: int = 0
) -> MeansOfClasses:
    """Solve for the class means behind one client's updates of the angle matrix; ``seed`` draws the fit's starts.

    Of a single step, blocks wider than the number of classes tell whether the means explain it, and so whether they are
    exact.
    """
    facts = require_facts("angle-update", knowledge, client)
    head = _head(knowledge, client)
    own = rounds_of(observations, client)
    shares = [_shares(knowledge, seen, facts) for seen in own]
    classes = (torch.stack(shares) > 0).any(0).nonzero().squeeze(1)
    steps = []
    for seen, counts in zip(own, shares, strict=True):
        blocks, angle = angle_gradient(seen, facts)
        steps.append(AngleStep(blocks, angle, head, counts[classes]))
    found = means_of_angle(steps, classes)
    if nonnegative and not (found.settled and found.condition < WELL_POSED):
        found = fit_nonnegative(steps, classes, generator(seed, "angle fit", client))
    known = len(own) == 1 and facts.steps == 1 and len(classes) < len(steps[0].blocks[0])
    return counted(found, shares[0][classes] * facts.images) if known else found, classes


def _head(knowledge: Knowledge, client: int) -> tuple[Tensor, Tensor]:
    if client not in knowledge.heads:
        raise UserError(f"no head of client {client} was handed over; attack 'angle-update' solves with it")
    return knowledge.heads[client]


def _shares(knowledge: Knowledge, seen: Observation, facts: BatchFacts) -> Tensor:
    counts = given_counts(knowledge, seen, facts)
    if counts is None:
        raise UserError(f"no labels of client {seen.client} in round {seen.round} were handed over")
    return counts


def angle_gradient(seen: Observation, facts: BatchFacts) -> tuple[Tensor, Tensor]:
    """Return the gradient of the uploaded blocks ``(k, s, s)``, summed over the steps, and the broadcast ``(d, d)``."""
    sent, received = find_payload(seen.broadcast, AngleMatrix), find_payload(seen.upload, AngleMatrix)
    if sent is None or received is None:
        side = "broadcast" if sent is None else "upload"
        raise UserError(f"{side} of client {seen.client} in round {seen.round}: holds no angle matrix")
    before, after = dense(sent.blocks.cpu()).double(), received.blocks.cpu().double()
    return (diagonal_blocks(before, len(after)) - after) / facts.learning_rate, before


def fit_nonnegative(steps: Sequence[AngleStep], classes: Tensor, rng: torch.Generator) -> ClassMeans:
    """Fit means without negative entries, of the classes ``(m,)``, to steps of one extractor; ``rng`` draws the starts."""
    n_blocks, side, _ = steps[0].blocks.shape
    shape = (len(classes), n_blocks * side)
    n_classes = len(steps[0].head[1])
    truth = one_hot(classes, n_classes).double()
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
    for _ in range(STARTS):
        root = (0.3 + 0.5 * torch.rand(shape, generator=rng, dtype=torch.float64)).requires_grad_()
        found, value = _minimise(misfit, root)
        if value < least:
            best, least = found, value
    residual = math.sqrt(least) if math.isfinite(least) else math.inf
    return ClassMeans(best.square().float(), residual, math.inf, residual < FITTED)


def _minimise(misfit: Callable[[Tensor], Tensor], root: Tensor) -> tuple[Tensor, float]:
    optimiser = torch.optim.LBFGS(
        [root],
        max_iter=ITERATIONS,
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
