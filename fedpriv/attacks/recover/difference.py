"""Attack what changed between rounds: recover the representation of an added image from two uploads, then invert it.

In federations whose clients gain or lose images between rounds, a class of a thousand images protects none of those that
come one at a time. See :mod:`fedpriv.attacks.recover.differencing`. Clients whose data stay as they are give nothing
to find, and the attack says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import torch
from annotated_types import Ge, Lt

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.observation import Needs, Observation, TargetId
from fedpriv.attacks.read.target_features import list_targets, observation_of
from fedpriv.attacks.recover.differencing import (
    Change,
    change_of_class,
    change_of_mixture,
    newest_of_running_mean,
    usual_drift,
)
from fedpriv.attacks.recover.then_invert import Recovered, RecoverThenInvert, as_uploads
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import CLASS_MEANS, MIXTURES
from fedpriv.wire.payloads import Entangled, Prototypes, find_payload


@dataclass(frozen=True, kw_only=True)
class Differencing(RecoverThenInvert):
    """Recover and invert what each target's class gained or lost since the client's upload before.

    A result counts as converged only if the drift expected from uploads of unchanged data, of the same or earlier rounds, is
    less than what was recovered; not where no upload tells of drift.

    Attributes:
        momentum: m of prototypes that are running means, in [0, 1); None for exact means, which need uploaded counts.
    """

    momentum: Annotated[float, Ge(0), Lt(1)] | None = None

    name = "difference"
    summary = "the vector of images that a client gained or lost between two rounds, then inverted"
    targets = CLASS_MEANS | MIXTURES
    unit = "upload"
    needs = Needs(min_rounds=2)
    only_by_name = True

    def recover(self, problem: AttackProblem) -> Recovered:
        """Recover the difference of each target.

        Raises:
            UserError: when a target did not change.
        """
        found: list[Change] = []
        for target in problem.targets:
            change = self.change(problem.observations, target)
            if change is None:
                raise UserError(_nothing(problem.observations, target))
            found.append(change)
        return Recovered(
            as_uploads([change.vector for change in found], problem.targets),
            problem.targets,
            labels=torch.tensor([change.label for change in found]),
            sound=torch.tensor([change.noise < 1 for change in found]),
        )

    def change(self, observations: Sequence[Observation], target: TargetId) -> Change | None:
        """Return what a target's client gained or lost since its upload before, or None."""
        after = observation_of(observations, target)
        before = _before(observations, target)
        if before is None:
            return None
        usual = usual_drift(_earlier_pairs(observations, target.client, before.round))
        means = [find_payload(seen.upload, Prototypes) for seen in (before, after)]
        if means[0] is not None and means[1] is not None:
            label = int(means[1].classes[target.index])
            if self.momentum is not None:
                return newest_of_running_mean(means[0], means[1], label, self.momentum, usual)
            return change_of_class(means[0], means[1], label, usual)
        mixed = [find_payload(seen.upload, Entangled) for seen in (before, after)]
        return None if mixed[0] is None or mixed[1] is None else change_of_mixture(mixed[0], mixed[1], usual)

    def select(self, observations: Sequence[Observation], targets: Sequence[TargetId]) -> tuple[TargetId, ...]:
        """Return the targets in which something changed.

        Raises:
            UserError: when there are none.
        """
        changed = tuple(target for target in targets if self.change(observations, target) is not None)
        if targets and not changed:
            raise UserError(_nothing(observations, targets[0]))
        return changed


def changed_targets(
    observations: Sequence[Observation], kind: str, momentum: float | None = None
) -> tuple[TargetId, ...]:
    """Return the targets of a kind whose class gained or lost images since the client's upload before."""
    attack = Differencing(momentum=momentum)
    return tuple(t for t in list_targets(observations, kind) if attack.change(observations, t) is not None)


def _earlier_pairs(
    observations: Sequence[Observation], client: int, last: int
) -> list[tuple[Prototypes | Entangled, Prototypes | Entangled]]:
    """Return a client's uploads up to a round, each with the one before."""
    own = sorted((seen for seen in observations if seen.client == client and seen.round <= last), key=lambda o: o.round)
    sent = [find_payload(seen.upload, Prototypes) or find_payload(seen.upload, Entangled) for seen in own]
    return [(a, b) for a, b in pairwise(sent) if a is not None and b is not None]


def _before(observations: Sequence[Observation], target: TargetId) -> Observation | None:
    earlier = [seen for seen in observations if seen.client == target.client and seen.round < target.round]
    return max(earlier, key=lambda seen: seen.round, default=None)


def _nothing(observations: Sequence[Observation], target: TargetId) -> str:
    before = _before(observations, target)
    if before is None:
        return (
            f"attack 'difference': client {target.client} uploaded in round {target.round} only; two uploads are needed"
        )
    which = "" if target.label < 0 else f" of class {target.label}"
    text = (
        f"attack 'difference': no change found in the upload{which} of client {target.client} between rounds "
        f"{before.round} and {target.round}"
    )
    means = find_payload(before.upload, Prototypes)
    if means is not None and means.counts is None:
        return text + ", which carries no counts; where prototypes are running means, pass --attack-option momentum=M"
    return (
        text + "; clients of fedpriv train keep the data they start with, so their uploads hold nothing to difference"
    )
