"""The part of ``fedpriv attack`` that asks what a client holds: it returns scores, so it runs beside the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.experiment.membership import EVERYTHING
from fedpriv.experiment.plan import PROPERTY as NAME
from fedpriv.experiment.plan import AttackPlan, folder_name
from fedpriv.util.errors import UserError
from fedpriv.util.listener import SILENT, Listener

if TYPE_CHECKING:
    from fedpriv.attacks.observation import KnowledgeCard
    from fedpriv.experiment.execution import Ground
    from fedpriv.scoring.records import InferenceResult


def measure_all(
    folder: Path, ground: Ground, plan: AttackPlan, *, command: str, named: bool, listener: Listener = SILENT
) -> dict[Path, InferenceResult]:
    """Run the plan's inference on every stage, or read back what was saved; return the records by folder.

    Args:
        folder: holds a folder for each stage, or one named ``property``.
        ground: the run.
        plan: what to run; nothing where it has no inference.
        command: that does the same again; goes into the records.
        named: whether the user asked for it; unnamed, a run that leaves nothing to ask is passed over.
        listener: hears of the progress.

    Raises:
        UserError: when it was named and the run leaves nothing to ask or to learn from.
    """
    if plan.properties is None:
        return {}
    from fedpriv.evidence.disclosed import said_in_clear
    from fedpriv.evidence.gather import gather
    from fedpriv.experiment.execution import described
    from fedpriv.scoring.property import evaluate
    from fedpriv.scoring.storage import holds_scores, load_scores, write_record

    run, federation, card = ground.run, ground.federation, _card(plan)
    found: dict[Path, InferenceResult] = {}
    for stage, number in plan.moments:
        home = folder / folder_name(NAME, stage)
        if holds_scores(home):
            found[home] = load_scores(home)
            continue
        with listener.progress(f"{home.name} on {plan.target}"):
            evidence = gather(run, federation, plan.target, card, n_targets=EVERYTHING, seed=plan.seed, round_=number)
            told = said_in_clear(run, federation, number)
            read = [seen for seen in run.captured_rounds() if number is None or seen <= number]
            had = replace(card, rounds_seen=len(read)) if told else card
            about = described(run, plan, NAME, plan.properties, had, (stage, number), command=command)
            try:
                found[home] = evaluate(plan.properties, evidence, federation, about, seed=plan.seed, told=told)
            except UserError as error:
                if named:
                    raise
                listener.say(f"left out: {error}")
                continue
        write_record(home, found[home])
    return found


def check(ground: Ground, plan: AttackPlan, *, named: bool) -> tuple[AttackPlan, tuple[str, ...]]:
    """Find out before anything is attacked whether there is something to ask and to learn from.

    Args:
        ground: the run.
        plan: what to run.
        named: whether the user asked for it.

    Returns:
        The plan, without the inference where no stage leaves anything to it, and lines that say why.

    Raises:
        UserError: when it was named and a stage leaves nothing to it.
    """
    if plan.properties is None:
        return plan, ()
    from fedpriv.evidence.disclosed import said_in_clear
    from fedpriv.evidence.gather import gather
    from fedpriv.scoring.property import inquire

    run, federation = ground.run, ground.federation
    refusals = []
    for _, number in plan.moments:
        evidence = gather(
            run, federation, plan.target, _card(plan), n_targets=EVERYTHING, seed=plan.seed, round_=number
        )
        try:
            inquire(plan.properties, evidence, federation, said_in_clear(run, federation, number))
        except UserError as error:
            if named:
                raise
            refusals.append(str(error))
    if len(refusals) < len(plan.moments):
        return plan, ()  # the other stages say so when their turn comes
    return replace(plan, properties=None), tuple(dict.fromkeys(refusals))


def _card(plan: AttackPlan) -> KnowledgeCard:
    """Return the plan's card for this attack: uploads are enough, no client's extractor is asked for."""
    return replace(plan.card, rounds_seen=1, extractor="none")
