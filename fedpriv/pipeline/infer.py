"""Inferences of a plan: they return scores, not images, and run beside the attacks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from fedpriv.attacks.inference.base import Inference
from fedpriv.attacks.observation import ThreatModel
from fedpriv.pipeline.execute import AttackContext, described
from fedpriv.pipeline.plan import AttackPlan
from fedpriv.scoring import inference as scoring
from fedpriv.scoring.inference_case import InferenceCase
from fedpriv.scoring.records import InferenceResult
from fedpriv.scoring.storage import holds_scores, load_scores, write_record
from fedpriv.sources.case import EVERYTHING, Case, build_case
from fedpriv.util.errors import UserError
from fedpriv.util.files import mark
from fedpriv.util.parallel import SILENT, Listener
from fedpriv.wire.kinds import ANSWERS


def measure_all(
    folder: Path, ground: AttackContext, *, command: str, named: Collection[str] = (), listener: Listener = SILENT
) -> dict[Path, InferenceResult]:
    """Run the plan's inferences, or read back what was saved; return the records by folder."""
    plan, results = ground.plan, dict[Path, InferenceResult]()
    for name, inference in plan.inferences.items():
        home = folder / plan.folder(name)
        if holds_scores(home):
            results[home] = load_scores(home)
            continue
        with listener.progress(f"{home.name} on {plan.target}"):
            case = case_of(ground, plan, inference)
            rounds = 1 + len(case.earlier)
            if inference.reads_every_round and case.told:
                rounds = sum(plan.round is None or number <= plan.round for number in ground.source.rounds())
            card = replace(
                inference.card(plan.card, plan.target),
                extractor=case.evidence.knowledge.card.extractor,
                rounds_seen=rounds,
            )
            about = described(ground, name, inference, card, command)
            try:
                record = scoring.evaluate(inference, case, about)
            except UserError as error:
                if name in named:
                    raise
                listener.say(f"left out: {error}")
                continue
            mark(home, "scores")
            write_record(home, record)
            results[home] = record
    return results


def check(ground: AttackContext, plan: AttackPlan, named: Collection[str] = ()) -> tuple[AttackPlan, tuple[str, ...]]:
    """Check before anything is attacked whether there is something to ask and to tell apart."""
    kept: dict[str, Inference] = {}
    reasons: dict[str, None] = {}
    for name, inference in plan.inferences.items():
        try:
            scoring.check(inference, case_of(ground, plan, inference))
        except UserError as error:
            if name in named:
                raise
            reasons[str(error)] = None
        else:
            kept[name] = inference
    return replace(plan, inferences=kept), tuple(reasons)


def case_of(ground: AttackContext, plan: AttackPlan, inference: Inference) -> InferenceCase:
    """Return the case of an inference, with its truth."""
    source, card = ground.source, inference.card(plan.card, plan.target)
    try:
        case = _case(ground, plan, card, plan.round)
    except UserError:
        without = replace(card, extractor="none")
        if card == without or not _is_enough(inference, plan.target, without):
            raise
        card, case = without, _case(ground, plan, without, plan.round)  # the checkpoint was not kept
    last = max(seen.round for seen in case.observations)
    earlier = _earlier(ground, plan, inference, last, card)
    rounds = (
        {last} | {seen.round for item in earlier for seen in item.observations} if inference.asks == "images" else ()
    )
    truth = source.holdings(rounds, {seen.client for seen in case.observations} if rounds else ())
    if (
        inference.asks == "images"
        and not any(map(len, truth.held_out.values()))
        and bool((truth.samples.labels < 0).any())
    ):
        raise UserError(
            f"held_out: missing; attack {inference.name!r} tells members from images that the client did not train on"
        )
    return InferenceCase(case, truth, plan.target, plan.seed, source.disclosed(plan.round), earlier)


def _case(ground: AttackContext, plan: AttackPlan, card: ThreatModel, number: int | None) -> Case:
    return build_case(ground.source, card, n_targets=EVERYTHING, seed=plan.seed, round_=number, trained=ground.trained)


def _is_enough(inference: Inference, kind: str, card: ThreatModel) -> bool:
    try:
        inference.requirements_for(kind).refuse(inference.name, card)
    except UserError:
        return False
    return True


def _earlier(
    ground: AttackContext, plan: AttackPlan, inference: Inference, last: int, card: ThreatModel
) -> tuple[Case, ...]:
    """Return the cases of earlier rounds of which everything is at hand that the inference takes."""
    if not inference.uses_rounds_on(plan.target):
        return ()
    most = (plan.rounds_seen or inference.rounds_on(plan.target, plan.card)) - 1
    if (
        plan.target in ANSWERS
    ):  # what clients make of public inputs: nothing of earlier rounds but the uploads is looked at
        card = replace(card, extractor="none")
    result = []
    for number in [item for item in ground.source.usable_rounds(card) if item < last][-most:] if most else ():
        try:
            result.append(_case(ground, plan, card, number))
        except UserError:
            continue  # nobody's steps used an image in that round, or the weights that they began with were not stored
    return tuple(result)
