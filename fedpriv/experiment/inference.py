"""The part of an attack that asks questions: inferences return scores, not images, so they run beside the others."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.experiment.plan import AttackPlan, folder_name
from fedpriv.util.errors import UserError
from fedpriv.util.listener import SILENT, Listener

if TYPE_CHECKING:
    from fedpriv.attacks.infer.contract import Inference
    from fedpriv.experiment.execution import AttackContext
    from fedpriv.scoring.inference_case import InferenceCase
    from fedpriv.scoring.records import InferenceResult

EVERYTHING = 10**9
"""Targets asked for, so that evidence covers every client."""


def measure_all(
    folder: Path,
    ground: AttackContext,
    plan: AttackPlan,
    *,
    command: str,
    named: Collection[str] = (),
    listener: Listener = SILENT,
) -> dict[Path, InferenceResult]:
    """Run the plan's inferences on every stage, or read back what was saved; return the records by folder.

    Args:
        folder: holds a folder for each inference, or for each of its stages.
        ground: the run.
        plan: what to run.
        command: that does the same again; goes into the records.
        named: inferences that the user asked for; others pass over a run that leaves nothing to ask.
        listener: hears of the progress.

    Raises:
        UserError: when one was named and the run leaves nothing to ask or to learn from.
    """
    from fedpriv.experiment.execution import described
    from fedpriv.scoring.inference import evaluate
    from fedpriv.scoring.storage import holds_scores, load_scores, write_record

    found: dict[Path, InferenceResult] = {}
    for name, inference in plan.inferences.items():
        for stage, number in plan.moments:
            home = folder / folder_name(name, stage)
            if holds_scores(home):
                found[home] = load_scores(home)
                continue
            with listener.progress(f"{home.name} on {plan.target}"):
                case = _case(ground, plan, inference, number)
                card = inference.card(plan.card)
                if inference.reads_every_round and case.told:
                    read = [seen for seen in ground.run.captured_rounds() if number is None or seen <= number]
                    card = replace(card, rounds_seen=len(read))
                about = described(
                    (ground.run, ground.federation), plan, name, inference, card, (stage, number), command=command
                )
                try:
                    found[home] = evaluate(inference, case, about)
                except UserError as error:
                    if name in named:
                        raise
                    listener.say(f"left out: {error}")
                    continue
            write_record(home, found[home])
    return found


def check(ground: AttackContext, plan: AttackPlan, named: Collection[str] = ()) -> tuple[AttackPlan, tuple[str, ...]]:
    """Find out before anything is attacked whether there is something to ask and to tell apart.

    Args:
        ground: the run.
        plan: what to run.
        named: inferences that the user asked for.

    Returns:
        The plan, without the inferences that no stage leaves anything to, and lines that say why.

    Raises:
        UserError: when one was named and a stage leaves nothing to it.
    """
    from fedpriv.scoring import inference as scoring

    kept: dict[str, Inference] = {}
    reasons: list[str] = []
    for name, inference in plan.inferences.items():
        refusals = []
        for _, number in plan.moments:
            try:
                scoring.check(inference, _case(ground, plan, inference, number))
            except UserError as error:
                if name in named:
                    raise
                refusals.append(str(error))
        if len(refusals) < len(plan.moments):
            kept[name] = inference  # the other stages say so when their turn comes
        else:
            reasons += dict.fromkeys(refusals)
    return replace(plan, inferences=kept), tuple(reasons)


def _case(ground: AttackContext, plan: AttackPlan, inference: Inference, number: int | None) -> InferenceCase:
    from fedpriv.evidence.disclosed import disclosed_labels
    from fedpriv.evidence.gather import gather
    from fedpriv.scoring.inference_case import InferenceCase

    run, federation, card = ground.run, ground.federation, inference.card(plan.card)
    evidence = gather(
        run,
        federation,
        plan.target,
        card,
        n_targets=EVERYTHING,
        seed=plan.seed,
        round_=number,
        trained=ground.trained,
    )
    told = disclosed_labels(run, federation, number)
    return InferenceCase(evidence, run, federation, plan.target, plan.seed, told)
