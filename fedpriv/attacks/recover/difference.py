"""Attack what changed between rounds: recover the representation of an added image from two uploads, then invert it.

In federations whose clients gain or lose images between rounds, a class of a thousand images protects none of those that
come one at a time. See :mod:`fedpriv.attacks.recover.differencing`. Clients whose data stay as they are give nothing
to find, and the attack says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from fedpriv.attacks.invert.inversion import DipInversion
from fedpriv.attacks.observation import Knowledge, Needs, Observation, Progress, Reconstruction, TargetId, Unit
from fedpriv.attacks.read.target_features import list_targets, observation_of
from fedpriv.attacks.recover.differencing import (
    Change,
    change_of_class,
    change_of_mixture,
    newest_of_running_mean,
    usual_drift,
)
from fedpriv.attacks.recover.found_vectors import invert_vectors
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import CLASS_MEANS, MIXTURES
from fedpriv.wire.payloads import Entangled, Prototypes, optional_part


@dataclass(frozen=True)
class Differencing:
    """Recover and invert what each target's class gained or lost since the client's upload before.

    A result counts as converged only if the drift expected from uploads of unchanged data, of the same or earlier rounds, is
    less than what was recovered; not where no upload tells of drift.

    Attributes:
        momentum: m of prototypes that are running means, in [0, 1); None for exact means, which need uploaded counts.
        iterations: most steps of a row of the inversion.
        restarts: rows a target of the inversion.
    """

    momentum: Annotated[float, Ge(0), Lt(1)] | None = None
    iterations: Annotated[int, Ge(1)] = 800
    restarts: Annotated[int, Ge(1)] = 1

    name = "difference"
    targets = CLASS_MEANS | MIXTURES
    only_by_name: ClassVar[bool] = True
    unit: ClassVar[Unit] = "upload"
    budget: ClassVar[str | None] = "iterations"
    needs = Needs(extractor=("white_box", "shadow"), min_rounds=2)

    def run(
        self,
        observations: tuple[Observation, ...],
        targets: tuple[TargetId, ...],
        knowledge: Knowledge,
        *,
        seed: int,
        device: torch.device,
        chunk_rows: int | None = None,
        progress: Progress | None = None,
    ) -> Reconstruction:
        """Difference and invert; see :class:`fedpriv.attacks.observation.Attack`.

        Raises:
            UserError: when the card grants no extractor or too few rounds, or a target did not change.
        """
        self.needs.refuse(self.name, knowledge.card)
        changes = [self.change(observations, target) for target in targets]
        for target, change in zip(targets, changes, strict=True):
            if change is None:
                raise UserError(_nothing(observations, target))
        found: list[Change] = [change for change in changes if change is not None]
        inverted = invert_vectors(
            DipInversion(iterations=self.iterations, restarts=self.restarts),
            torch.stack([change.vector for change in found]),
            targets,
            knowledge,
            seed=seed,
            device=device,
            chunk_rows=chunk_rows,
            progress=progress,
        )
        clear: Tensor = torch.tensor([change.noise < 1 for change in found], device=inverted.converged.device)
        labels = torch.tensor([[change.label] for change in found], device=inverted.labels.device)
        return replace(inverted, converged=inverted.converged & clear, labels=labels)

    def change(self, observations: Sequence[Observation], target: TargetId) -> Change | None:
        """Return what a target's client gained or lost since its upload before, or None."""
        after = observation_of(observations, target)
        before = _before(observations, target)
        if before is None:
            return None
        usual = usual_drift(_earlier_pairs(observations, target.client, before.round))
        means = [optional_part(seen.upload, Prototypes) for seen in (before, after)]
        if means[0] is not None and means[1] is not None:
            label = int(means[1].classes[target.index])
            if self.momentum is not None:
                return newest_of_running_mean(means[0], means[1], label, self.momentum, usual)
            return change_of_class(means[0], means[1], label, usual)
        mixed = [optional_part(seen.upload, Entangled) for seen in (before, after)]
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
    sent = [optional_part(seen.upload, Prototypes) or optional_part(seen.upload, Entangled) for seen in own]
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
    means = optional_part(before.upload, Prototypes)
    if means is not None and means.counts is None:
        return text + ", which carries no counts; where prototypes are running means, pass --attack-option momentum=M"
    return (
        text + "; clients of fedpriv train keep the data they start with, so their uploads hold nothing to difference"
    )
