"""The attack on angle matrices: solve for the representations behind the update of A, then invert them.

FedRAL sends the diagonal blocks of a d x d matrix that turns representations, trained from the broadcast one. Every
coordinate of a representation is in some block, so leaving out the rest of the matrix takes away equations, not
coordinates; see :mod:`fedpriv.attacks.recover.closed_form`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.algebra.angle_matrix import dense, diagonal_blocks
from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.observation import BatchFacts, Knowledge, Needs, Observation
from fedpriv.attacks.recover.angle_fit import fit_nonnegative
from fedpriv.attacks.recover.closed_form import AngleStep, means_of_angle
from fedpriv.attacks.recover.head_update import MeansOfClasses, class_means, given_counts, require_facts
from fedpriv.attacks.recover.then_invert import Recovered, RecoverThenInvert
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator
from fedpriv.wire.kinds import MAPPINGS
from fedpriv.wire.payloads import AngleMatrix, find_payload

WELL_POSED = 1e3
"""Condition number up to which the linear answer is kept."""


@dataclass(frozen=True, kw_only=True)
class AngleUpdate(RecoverThenInvert):
    """Recover class means (or the one representation) from an angle matrix's update, then invert each.

    A target is one class of one client. All rounds handed over are solved together.

    Attributes:
        nonnegative: whether representations are known to follow a ReLU, as the small and the published networks' do. Then
            means that linear equations do not determine (blocks with a side below the number of classes, diagonals) are
            fitted without negative entries; see :mod:`fedpriv.attacks.recover.angle_fit`.
    """

    nonnegative: bool = True

    name = "angle-update"
    summary = "class means solved for from an angle matrix's update, then inverted"
    targets = MAPPINGS
    needs = Needs(extractor=("white_box",), labels=("given",), batch=True)

    def recover(self, problem: AttackProblem) -> Recovered:
        """Solve for the class means of every attacked client.

        Raises:
            UserError: when a head was not handed over, or a message holds no angle matrix.
        """
        seen, knowledge = problem.observations, problem.knowledge
        solved = {
            client: recover_from_angle(seen, client, knowledge, nonnegative=self.nonnegative, seed=problem.seed)
            for client in sorted({target.client for target in problem.targets})
        }
        return class_means(solved, problem.targets)


def recover_from_angle(
    observations: Sequence[Observation], client: int, knowledge: Knowledge, *, nonnegative: bool = True, seed: int = 0
) -> MeansOfClasses:
    """Solve for the class means behind one client's updates of the angle matrix.

    Args:
        observations: what the server saw.
        client: whose updates.
        knowledge: card and grants.
        nonnegative: fit without negative entries where linear equations do not determine the means.
        seed: of the fit's starts.
    """
    facts = require_facts("angle-update", knowledge, client)
    if client not in knowledge.heads:
        raise UserError(f"no head of client {client} was handed over; attack 'angle-update' solves with it")
    own = sorted((seen for seen in observations if seen.client == client), key=lambda seen: seen.round)
    shares = []
    for seen in own:
        counts = given_counts(knowledge, seen, facts)
        if counts is None:
            raise UserError(f"no labels of client {client} in round {seen.round} were handed over")
        shares.append(counts)
    classes = (torch.stack(shares) > 0).any(0).nonzero().squeeze(1)
    steps = []
    for seen, counts in zip(own, shares, strict=True):
        blocks, angle = angle_gradient(seen, facts)
        steps.append(AngleStep(blocks, angle, knowledge.heads[client], counts[classes]))
    found = means_of_angle(steps, classes)
    if nonnegative and not (found.settled and found.condition < WELL_POSED):
        found = fit_nonnegative(steps, classes, generator(seed, "angle fit", client))
    return found, classes


def angle_gradient(seen: Observation, facts: BatchFacts) -> tuple[Tensor, Tensor]:
    """Return the gradient of the uploaded blocks ``(k, s, s)``, summed over the steps, and the broadcast ``(d, d)``.

    Raises:
        UserError: when a message holds no angle matrix.
    """
    sent, received = find_payload(seen.broadcast, AngleMatrix), find_payload(seen.upload, AngleMatrix)
    if sent is None or received is None:
        side = "broadcast" if sent is None else "upload"
        raise UserError(f"{side} of client {seen.client} in round {seen.round}: holds no angle matrix")
    before, after = dense(sent.blocks.cpu()).double(), received.blocks.cpu().double()
    return (diagonal_blocks(before, len(after)) - after) / facts.learning_rate, before
