"""Stages of training: an attack that works on an untrained network may fail on a trained one, and the other way round.

Source of the advice: Huang et al., "Evaluating gradient inversion attacks and defenses" (NeurIPS 2021); Balunovic et
al. and later surveys show that most published successes are on networks that have hardly been trained.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

from fedpriv.federation.run_directory import RunDirectory
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError, unknown_name
from fedpriv.wire.kinds import LAYERS, WHOLE

Stage = Literal["early", "middle", "converged"]
STAGES: tuple[Stage, ...] = get_args(Stage)

EARLY = 0.075
"""The early stage comes after this share of the rounds, but after the first round at least."""

_WINDOWS: dict[Stage, tuple[float, float]] = {"early": (0.0, 0.1), "middle": (0.4, 0.6), "converged": (1.0, 1.0)}


def parse_stage(name: str) -> Stage:
    """Return the stage of that name."""
    for stage in STAGES:
        if stage == name:
            return stage
    raise unknown_name("stage", name, STAGES)


def stage_round(stage: Stage, rounds: int) -> int:
    """Return the round after which a run of so many rounds is at a stage.

    >>> [stage_round(stage, 30) for stage in STAGES]
    [2, 15, 30]
    """
    if stage == "early":
        return max(1, math.floor(EARLY * rounds + 0.5))
    return (rounds + 1) // 2 if stage == "middle" else rounds


def planned_rounds(stages: Sequence[Stage], rounds: int) -> dict[Stage, int]:
    """Return the round of each stage of a run that is still to be trained."""
    found = {stage: stage_round(stage, rounds) for stage in STAGES}
    if len(set(found.values())) < len(found) and tuple(stages) != ("converged",):
        raise UserError(
            f"{argument('stages', list(stages))}: {rounds} round(s) have no stages; train for at least 3: "
            f"{argument('rounds', 3)}"
        )
    return {stage: found[stage] for stage in stages}


def rounds_to_keep(kind: str, rounds: Sequence[int]) -> tuple[int, ...]:
    """Return the checkpoints that a run has to keep for attacks on a kind of upload in these rounds.

    An update is computed through the network as it was before the round (see :mod:`fedpriv.evidence.client_states`).
    """
    before = [number - 1 for number in rounds if number > 1] if kind in LAYERS else []
    return tuple(sorted({*rounds, *before}))


def kept_rounds(run: RunDirectory, kind: str, stages: Sequence[Stage]) -> dict[Stage, int]:
    """Return the round of each stage among those that a finished run kept: the nearest to where the stage should be."""
    rounds = run.config.rounds
    planned = planned_rounds(stages, rounds)
    stored, kept = set(run.captured_rounds()), {0, *run.checkpointed_rounds()}

    def usable(number: int) -> bool:
        if number not in stored:
            return False
        # No checkpoint is needed where the upload holds all that its attackers differentiate through. An extractor does not:
        # its gradient is matched through a head that stays private, which the checkpoint has.
        return kind in WHOLE or number in kept or (kind in LAYERS and number - 1 in kept)

    found: dict[Stage, int] = {}
    for stage in stages:
        low, high = (share * rounds for share in _WINDOWS[stage])
        near = [n for n in range(1, rounds + 1) if low <= n <= max(high, planned[stage]) and usable(n)]
        if not near:
            needed = argument("keep", list(rounds_to_keep(kind, sorted(planned.values()))))
            raise UserError(
                f"{run.path}: nothing of the {stage} stage (round {planned[stage]} of {rounds}) was kept; checkpoints: "
                f"{_listed(kept - {0})}; uploads: {_listed(stored)}; train with {needed}"
            )
        found[stage] = min(near, key=lambda n: (abs(n - planned[stage]), n))
    return found


def _listed(rounds: set[int]) -> str:
    return "rounds " + ", ".join(str(number) for number in sorted(rounds)) if rounds else "none"
