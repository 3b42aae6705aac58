"""The part of an attack that asks questions: inferences return scores, not images, so they run beside the others."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.experiment.plan import AttackPlan
from fedpriv.util.errors import UserError
from fedpriv.util.listener import SILENT, Listener

if TYPE_CHECKING:
    from fedpriv.attacks.inference.base import Inference
    from fedpriv.attacks.observation import KnowledgeCard
    from fedpriv.evidence.gather import Evidence
    from fedpriv.experiment.execution import AttackContext
    from fedpriv.scoring.inference_case import InferenceCase
    from fedpriv.scoring.records import InferenceResult, Provenance

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
    from fedpriv.scoring.storage import holds_scores, load_scores

    found: dict[Path, InferenceResult] = {}
    for name, inference in plan.inferences.items():
        for stage, number in plan.moments:
            home = folder / plan.folder(name, stage)
            if holds_scores(home):
                found[home] = load_scores(home)
                continue
            with listener.progress(f"{home.name} on {plan.target}"):
                case = case_of(ground, plan, inference, number)
                had = case.evidence.knowledge.card.extractor
                card = inference.card(plan.card, plan.target)
                card = replace(card, extractor=had, rounds_seen=1 + len(case.earlier))
                if inference.reads_every_round and case.told:
                    read = [seen for seen in ground.run.captured_rounds() if number is None or seen <= number]
                    card = replace(card, rounds_seen=len(read))
                about = described(
                    (ground.run, ground.federation), plan, name, inference, card, (stage, number), command=command
                )
                record = measure(home, inference, case, about, strict=name in named, listener=listener)
            if record is not None:
                found[home] = record
    return found


def measure(
    home: Path, inference: Inference, case: InferenceCase, about: Provenance, *, strict: bool, listener: Listener
) -> InferenceResult | None:
    """Run an inference and write its record.

    Args:
        home: folder of the record.
        inference: what to run.
        case: evidence and truth.
        about: how the record is made.
        strict: raise where there is nothing to ask or to tell apart; otherwise that is said, and None returned.
        listener: hears of it.

    Raises:
        UserError: see ``strict``.
    """
    from fedpriv.scoring.inference import evaluate
    from fedpriv.scoring.storage import write_record
    from fedpriv.util.files import mark

    try:
        record = evaluate(inference, case, about)
    except UserError as error:
        if strict:
            raise
        listener.say(f"left out: {error}")
        return None
    mark(home, "scores")
    write_record(home, record)
    return record


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
                scoring.check(inference, case_of(ground, plan, inference, number))
            except UserError as error:
                if name in named:
                    raise
                refusals.append(str(error))
        if len(refusals) < len(plan.moments):
            kept[name] = inference  # the other stages say so when their turn comes
        else:
            reasons += dict.fromkeys(refusals)
    return replace(plan, inferences=kept), tuple(reasons)


def case_of(ground: AttackContext, plan: AttackPlan, inference: Inference, number: int | None) -> InferenceCase:
    """Return the evidence of an inference on a run, and its truth; ``number`` is the round, None for the last stored."""
    from fedpriv.evidence.disclosed import disclosed_labels
    from fedpriv.evidence.gather import gather
    from fedpriv.evidence.held import held_in_run, used_in_rounds
    from fedpriv.scoring.inference_case import InferenceCase

    run, federation, card = ground.run, ground.federation, inference.card(plan.card, plan.target)
    asked = partial(
        gather,
        run,
        federation,
        plan.target,
        n_targets=EVERYTHING,
        seed=plan.seed,
        round_=number,
        trained=ground.trained,
    )
    try:
        evidence = asked(card)
    except UserError:
        without = replace(card, extractor="none")
        if card == without or not _is_enough(inference, plan.target, without):
            raise
        card, evidence = without, asked(without)  # the checkpoint was not kept; uploads alone may tell too
    truth = held_in_run(federation)
    last = max(seen.round for seen in evidence.observations)
    earlier = _earlier(ground, plan, inference, last, card)
    if inference.asks == "images":
        clients = {seen.client for seen in evidence.observations}
        rounds = {last} | {seen.round for one in earlier for seen in one.observations}
        truth = replace(truth, used=used_in_rounds(run, truth, plan.target, rounds, clients))
    told = disclosed_labels(run, federation, number)
    return InferenceCase(evidence, truth, plan.target, plan.seed, told, earlier)


def _is_enough(inference: Inference, kind: str, card: KnowledgeCard) -> bool:
    try:
        inference.requirements_for(kind).refuse(inference.name, card)
    except UserError:
        return False
    return True


def _earlier(
    ground: AttackContext, plan: AttackPlan, inference: Inference, last: int, card: KnowledgeCard
) -> tuple[Evidence, ...]:
    """Return the evidence of earlier rounds of which everything is at hand that the attack on one round takes."""
    from fedpriv.evidence.gather import gather
    from fedpriv.evidence.stages import usable_rounds
    from fedpriv.wire.kinds import ANSWERS, HEADS

    run, federation = ground.run, ground.federation
    uploads_alone = plan.target in ANSWERS or (plan.target in HEADS and card.extractor == "none")
    there = sorted(run.captured_rounds()) if uploads_alone else usable_rounds(run, plan.target)
    asked = plan.rounds_seen or inference.rounds_on(plan.target, plan.card)
    most = asked - 1 if inference.uses_rounds_on(plan.target) else 0
    if (
        plan.target in ANSWERS
    ):  # what clients make of public inputs: nothing of earlier rounds but the uploads is looked at
        card = replace(card, extractor="none")
    found = []
    for number in [one for one in there if one < last][-most:] if most else ():
        try:
            found.append(
                gather(
                    run,
                    federation,
                    plan.target,
                    card,
                    n_targets=EVERYTHING,
                    seed=plan.seed,
                    round_=number,
                    trained=ground.trained,
                )
            )
        except UserError:
            continue  # nobody's steps used an image in that round, or the weights that they began with were not stored
    return tuple(found)
