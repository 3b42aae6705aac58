"""The part of ``fedpriv attack`` that asks who was a member: it returns scores, not images, so it runs beside the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.experiment.plan import MEMBERSHIP as NAME
from fedpriv.experiment.plan import AttackPlan, folder_name
from fedpriv.util.errors import UserError
from fedpriv.util.listener import SILENT, Listener

if TYPE_CHECKING:
    from fedpriv.experiment.execution import Ground
    from fedpriv.scoring.records import InferenceResult

EVERYTHING = 10**9
"""Targets asked for, so that evidence covers every client."""


def measure_all(
    folder: Path, ground: Ground, plan: AttackPlan, *, command: str, listener: Listener = SILENT
) -> dict[Path, InferenceResult]:
    """Run the plan's inference on every stage, or read back what was saved; return the records by folder.

    Args:
        folder: holds a folder for each stage, or one named ``membership``.
        ground: the run.
        plan: what to run; nothing where it has no inference.
        command: that does the same again; goes into the records.
        listener: hears of the progress.
    """
    if plan.members is None:
        return {}
    from fedpriv.evidence.disclosed import said_in_clear
    from fedpriv.evidence.gather import gather
    from fedpriv.experiment.execution import described
    from fedpriv.scoring.membership import evaluate
    from fedpriv.scoring.storage import holds_scores, load_scores, write_record

    run, federation, card = ground.run, ground.federation, replace(plan.card, rounds_seen=1)
    found: dict[Path, InferenceResult] = {}
    for stage, number in plan.moments:
        home = folder / folder_name(NAME, stage)
        if holds_scores(home):
            found[home] = load_scores(home)
            continue
        with listener.progress(f"{home.name} on {plan.target}"):
            evidence = gather(run, federation, plan.target, card, n_targets=EVERYTHING, seed=plan.seed, round_=number)
            about = described(run, plan, NAME, plan.members, card, (stage, number), command=command)
            found[home] = evaluate(
                plan.members,
                evidence,
                run,
                federation,
                about,
                seed=plan.seed,
                told=said_in_clear(run, federation, number),
            )
        write_record(home, found[home])
    return found


def check(ground: Ground, plan: AttackPlan, *, named: bool) -> tuple[AttackPlan, tuple[str, ...]]:
    """Find out before anything is attacked whether there are members and non-members to tell apart.

    Args:
        ground: the run.
        plan: what to run.
        named: whether the user asked for it.

    Returns:
        The plan, without the inference where a stage leaves nothing to it, and a line that says why.

    Raises:
        UserError: when it was named and a stage leaves nothing to it.
    """
    if plan.members is None:
        return plan, ()
    from fedpriv.evidence.gather import gather
    from fedpriv.scoring.membership import trials_of

    run, federation, card = ground.run, ground.federation, replace(plan.card, rounds_seen=1)
    try:
        for _, number in plan.moments:
            evidence = gather(run, federation, plan.target, card, n_targets=EVERYTHING, seed=plan.seed, round_=number)
            newest, clients = evidence.observations[0].round, [seen.client for seen in evidence.observations]
            trials_of(plan.members, run, federation, clients, newest, plan.target, plan.seed)
    except UserError as error:
        if named:
            raise
        return replace(plan, members=None), (str(error),)
    return plan, ()
