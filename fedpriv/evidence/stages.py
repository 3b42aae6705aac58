"""Stages of training: an attack that works on an untrained network may fail on a trained one, and the other way round.

Source of the advice: Huang et al., "Evaluating gradient inversion attacks and defenses" (NeurIPS 2021); Balunovic et
al. and later surveys show that most published successes are on networks that have hardly been trained.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from fedpriv.federation.run_directory import RunDirectory
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError, unknown_name
from fedpriv.wire.kinds import LAYERS, WHOLE

Stage = str
"""One of ``STAGES``, or a round by its number: ``round-0007``."""

STAGES: tuple[Stage, ...] = ("early", "middle", "converged")

_ROUND = "round-"

EARLY = 0.075
"""The early stage comes after this share of the rounds, but after the first round at least."""

_WINDOWS: dict[Stage, tuple[float, float]] = {"early": (0.0, 0.1), "middle": (0.4, 0.6), "converged": (1.0, 1.0)}


def parse_stage(name: str) -> Stage:
    """Return the stage of that name; of a round the number may be written without zeros."""
    number = stage_number(name)
    if number is not None:
        return round_stage(number)
    if name in STAGES:
        return name
    raise unknown_name("stage", name, (*STAGES, "round-N"))


def round_stage(number: int) -> Stage:
    """Return the name of a round as a stage.

    >>> round_stage(7), stage_number("round-7"), stage_number("early")
    ('round-0007', 7, None)
    """
    return f"{_ROUND}{number:04d}"


def stage_number(stage: Stage) -> int | None:
    """Return the number of the round that a stage names; None for a stage of training."""
    digits = stage.removeprefix(_ROUND) if stage.startswith(_ROUND) else ""
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 10 else None


def in_training_order(stages: Iterable[Stage]) -> tuple[Stage, ...]:
    """Return different stages, those of training first, then rounds by their number."""
    return tuple(sorted(set(stages), key=lambda stage: (stage_number(stage) or 0, [*STAGES, stage].index(stage))))


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
    named = {stage: number for stage in stages if (number := stage_number(stage)) is not None}
    for stage, number in named.items():
        if not 1 <= number <= rounds:
            raise UserError(f"{argument('stages', [stage])}: the run has rounds 1 to {rounds}")
    if len(set(found.values())) < len(found) and set(stages) - {"converged", *named}:
        raise UserError(
            f"{argument('stages', list(stages))}: {rounds} round(s) have no stages; train for at least 3: "
            f"{argument('rounds', 3)}"
        )
    return {stage: named.get(stage) or found[stage] for stage in stages}


def every_round(numbers: Iterable[int]) -> dict[Stage, int]:
    """Return rounds as stages, by number."""
    return {round_stage(number): number for number in sorted(numbers)}


def rounds_to_keep(kind: str, rounds: Sequence[int]) -> tuple[int, ...]:
    """Return the checkpoints that a run has to keep for attacks on a kind of upload in these rounds.

    An update is computed through the network as it was before the round (see :mod:`fedpriv.evidence.client_states`).
    """
    before = [number - 1 for number in rounds if number > 1] if kind in LAYERS else []
    return tuple(sorted({*rounds, *before}))


def usable_rounds(run: RunDirectory, kind: str) -> tuple[int, ...]:
    """Return the rounds of a finished run whose uploads of a kind can be attacked, by number."""
    kept = {0, *run.checkpointed_rounds()}

    def usable(number: int) -> bool:
        # No checkpoint is needed where the upload holds all that its attackers differentiate through. An extractor does not:
        # its gradient is matched through a head that stays private, which the checkpoint has.
        return kind in WHOLE or number in kept or (kind in LAYERS and number - 1 in kept)

    return tuple(number for number in sorted(run.captured_rounds()) if usable(number))


def kept_rounds(run: RunDirectory, kind: str, stages: Sequence[Stage]) -> dict[Stage, int]:
    """Return the round of each stage among those that a finished run kept: the nearest to where the stage should be."""
    rounds = run.config.rounds
    planned = planned_rounds(stages, rounds)
    there = usable_rounds(run, kind)
    found: dict[Stage, int] = {}
    for stage in stages:
        if stage in STAGES:
            low, high = (share * rounds for share in _WINDOWS[stage])
            near = [n for n in there if low <= n <= max(high, planned[stage])]
        else:
            near = [n for n in there if n == planned[stage]]
        if not near:
            needed = argument("keep", list(rounds_to_keep(kind, sorted(planned.values()))))
            what = (
                f"the {stage} stage (round {planned[stage]} of {rounds})"
                if stage in STAGES
                else f"round {planned[stage]}"
            )
            raise UserError(
                f"{run.path}: nothing of {what} was kept; checkpoints: {_listed(set(run.checkpointed_rounds()) - {0})}; "
                f"uploads: {_listed(set(run.captured_rounds()))}; train with {needed}"
            )
        found[stage] = min(near, key=lambda n: (abs(n - planned[stage]), n))
    return found


def _listed(rounds: set[int]) -> str:
    return "rounds " + ", ".join(str(number) for number in sorted(rounds)) if rounds else "none"
