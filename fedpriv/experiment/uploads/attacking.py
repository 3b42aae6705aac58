"""Attacks on uploads that were made elsewhere, once everything is checked: evidence, attacks, control, scores, pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from fedpriv.attacks.contract import AttackProblem, Declared
from fedpriv.attacks.observation import KnowledgeCard
from fedpriv.attacks.trained import Trained
from fedpriv.datasets.types import Samples
from fedpriv.evidence.guesses import with_guesses
from fedpriv.evidence.truth import Truth
from fedpriv.experiment.adapted_suite import adapted_suite
from fedpriv.experiment.asked import numerics_of, plan_of, with_settings
from fedpriv.experiment.execution import upload_facts
from fedpriv.experiment.inference import EVERYTHING, measure
from fedpriv.experiment.plan import AttackPlan, attack_names, granted, refuse_rounds
from fedpriv.experiment.scored import Answers, attack_and_score
from fedpriv.experiment.scratch import place
from fedpriv.experiment.suite import Execution
from fedpriv.experiment.uploads.evidence import Handed, derive_card, earlier_evidence, make_evidence
from fedpriv.experiment.uploads.handed import drawn
from fedpriv.experiment.uploads.premise import premise_of
from fedpriv.experiment.uploads.protection import stated_defense
from fedpriv.experiment.uploads.truth import own_case, own_truths
from fedpriv.experiment.verbs.result import AttackResult
from fedpriv.federation.summary import DefenseFacts
from fedpriv.pages.report import write_report
from fedpriv.scoring.inference import check
from fedpriv.scoring.inference_case import InferenceCase
from fedpriv.scoring.judge import JUDGED
from fedpriv.scoring.reason_words import premise_words
from fedpriv.scoring.records import About, InferenceResult, Provenance, ReconstructionRecord
from fedpriv.scoring.records.made import Budget, Premise, Stage
from fedpriv.util import folders
from fedpriv.util.arguments import argument
from fedpriv.util.config import plain
from fedpriv.util.errors import UserError
from fedpriv.util.listener import SILENT
from fedpriv.util.pairs import mapping


@dataclass(frozen=True)
class Origin:
    """Where uploads come from, as records and messages call it.

    Attributes:
        method: the training loop.
        dataset: the images.
        command: a call that does the same again.
        defenses: what clients do to uploads before they leave, as far as it is known.
        notices: lines that are told beside those of the attacks.
        stage: the attacked round, where several are attacked one after the other.
    """

    method: str = "own uploads"
    dataset: str = "own images"
    command: str = "fedpriv.attack_uploads(...)"
    defenses: tuple[DefenseFacts, ...] = ()
    notices: tuple[str, ...] = ()
    stage: Stage | None = None


def attack_handed(
    handed: Handed, outside: Samples, named: tuple[str, ...], settings: Mapping[str, Any], origin: Origin | None = None
) -> AttackResult:
    """Attack what was handed in, score what comes out, and write records and pages.

    Args:
        handed: uploads, truth and what the attacker is granted, checked.
        outside: strangers.
        named: attacks that were asked for by name; none for all that fit and are granted.
        settings: of :class:`fedpriv.experiment.verbs.uploading.UploadSettings`, as far as they are about attacking.
        origin: where the uploads come from.

    Raises:
        UserError: when nothing can be attacked, before a folder is made.
    """
    target, listener, seed = handed.target, settings.get("listener", SILENT), settings.get("seed", 0)
    origin = origin or _own_origin(target, settings)
    (plan, notices), numerics = (
        _plan(target, named, handed, settings, origin.defenses),
        numerics_of(settings, handed.device),
    )
    trained = Trained()
    cases, silent = _cases(plan, named, handed, outside, trained)
    notices = [*origin.notices, *notices, *silent]
    if not (plan.attacks or cases):
        raise UserError(f"{argument('target', target)}: nothing can be attacked: {notices[len(origin.notices)]}")
    premise = cache(partial(premise_of, handed, defended=bool(origin.defenses)))  # asked after the first attack
    pool, scorers = drawn(outside, seed, alike=settings.get("strangers_alike", False)), Trained()
    folder, scratch = place(settings.get("out"))
    for line in notices:
        listener.say(line)
    records: dict[str, ReconstructionRecord] = {}
    scores: dict[str, InferenceResult] = {}
    with folders.output(folder, "attacks", force=settings.get("force", False)):
        for job in plan.jobs():
            card = plan.card_for(job, handed.rounds)
            evidence = make_evidence(handed, card, job.attack, plan.n_targets or job.attack.most_targets, seed, trained)
            asked = AttackProblem(evidence.observations, evidence.knowledge, evidence.targets, seed, trained=trained)
            about = About(
                **dict(_provenance(handed, job.attack, card, settings, origin)),
                caveat=job.attack.caveat(asked),
                budget=None if job.budget is None else Budget(field=str(job.attack.budget), value=job.budget),
                device=str(handed.device),
            )
            found = own_truths(handed, pool, evidence.targets, job.attack.unit)
            truths = with_guesses(found, evidence, target, job.attack.unit, device=handed.device, kept=scorers)
            known = {"kind": target, "trained": trained, "say": listener.say, "redact": plan.redact}
            execution = Execution(seed, handed.device, plan.chunk_rows, numerics=numerics, **known)
            records[job.folder] = attack_and_score(
                folder / job.folder,
                job,
                evidence,
                execution,
                partial(_answers, truths, about, premise),
                listener,
            )
        for name, case in cases.items():
            inference = plan.inferences[name]
            card = replace(inference.card(plan.card, target), rounds_seen=case.rounds_read(inference, handed.rounds))
            with listener.progress(f"{name} on {target}"):
                made = _provenance(handed, inference, card, settings, origin)
                made = made.model_copy(update={"premise": premise()})
                record = measure(folder / name, inference, case, made, strict=name in named, listener=listener)
            scores |= {} if record is None else {name: record}
        write_report([folder / name for name in records], folder, [folder / name for name in scores])
    if premise().status == "not checkable":
        notices.append(premise_words(premise()))
        listener.say(notices[-1])
    return AttackResult(folder, records, scores, tuple(notices), None, scratch)


def _answers(truths: tuple[Truth, ...], about: About, premise: Callable[[], Premise]) -> Answers:
    return Answers(truths, about.model_copy(update={"premise": premise()}))


def _own_origin(target: str, settings: Mapping[str, Any]) -> Origin:
    return Origin(
        method=settings.get("method", Origin.method),
        dataset=settings.get("dataset", Origin.dataset),
        command=f"fedpriv.attack_uploads(..., target={target!r})",
        defenses=stated_defense(settings.get("defense")),
    )


def _provenance(
    handed: Handed, made: Declared, card: KnowledgeCard, settings: Mapping[str, Any], origin: Origin
) -> Provenance:
    return Provenance(
        target=handed.target,
        attack=made.name,
        attack_version=made.version,
        method=origin.method,
        dataset=origin.dataset,
        knowledge=card,
        seed=settings.get("seed", 0),
        groups=handed.groups,
        stage=origin.stage,
        upload=upload_facts(handed.target, defended=bool(origin.defenses)),
        options=plain(made),
        defenses=origin.defenses,
        command=settings.get("listener", SILENT).command or f"{origin.command[:-1]}, attacks={made.name!r})",
    )


def _cases(
    plan: AttackPlan, named: Sequence[str], handed: Handed, strangers: Samples, trained: Trained
) -> tuple[dict[str, InferenceCase], list[str]]:
    """Return the case that each inference is tried on, and a line for each that has nothing to ask or to tell apart."""
    found: dict[str, InferenceCase] = {}
    lines: list[str] = []
    for name, inference in plan.inferences.items():
        try:
            if inference.asks == "images" and not handed.held_out and bool((strangers.labels < 0).all()):
                raise UserError(
                    f"{argument('held_out')}: missing; attack {name!r} tells members from images that the client did not "
                    "train on"
                )
            evidence = make_evidence(
                handed, inference.card(plan.card, plan.target), inference, EVERYTHING, plan.seed, trained
            )
            earlier = earlier_evidence(handed, evidence, inference, plan.rounds_seen)
            case = replace(own_case(handed, evidence, strangers, plan.seed), earlier=earlier)
            check(inference, case)
        except UserError as error:
            if name in named:
                raise
            lines.append(f"left out: {error}")
        else:
            found[name] = case
    return found, lines


def _plan(
    target: str,
    named: tuple[str, ...],
    handed: Handed,
    settings: Mapping[str, Any],
    defenses: Sequence[DefenseFacts],
) -> tuple[AttackPlan, list[str]]:
    """Return the plan of attacks, and a line for each thing that is left out."""
    card = derive_card(handed, mapping("knowledge", settings.get("knowledge", ())))
    suite = adapted_suite(
        target,
        attack_names(target, named),
        () if named else defenses,
        handed.rounds,
        every_extractor=bool(handed.earlier),
    )
    rounds_seen = settings.get("rounds_seen")
    if rounds_seen is not None and rounds_seen > handed.rounds:
        where = argument("rounds_seen", rounds_seen)
        raise UserError(f"{where}: {handed.rounds} round(s) were handed in; expected no more")
    built, budgets = with_settings(suite.names, settings, suite.options)
    refuse_rounds(named, built, target, rounds_seen)
    across = {name: made.needs.min_rounds for name, made in built.items() if made.needs.min_rounds > handed.rounds}
    early = [
        f"{argument('uploads')}: of {handed.rounds} round(s), but attack {name!r} uses {least}; expected a list of rounds, "
        "each a list of uploads"
        for name, least in across.items()
    ]
    alone = [name for name, made in built.items() if made.needs.every_extractor and not handed.earlier]
    early += [
        f"{argument('earlier_extractors')}: missing; attack {name!r} takes the extractor behind each round's uploads"
        for name in alone
        if name not in across
    ]
    if early and (named or len(early) == len(built)):
        raise UserError(early[0])
    there = {name: made for name, made in built.items() if name not in (*across, *alone)}
    chosen, refusals = granted(there, named, target, card, rounds_seen)
    notices = [*(f"left out: {line}" for line in (*early, *refusals)), *suite.lines]
    if settings.get("control", True) and handed.summed:
        notices.append("no negative control: the server sees one sum, in which every client's upload is")
    elif settings.get("control", True) and len(handed.newest) == 1:
        notices.append("no negative control: permuting uploads takes two clients at least")
    if any(name in JUDGED for name in chosen):
        notices.append("no independent classifier judges class images: it is trained on a run's data")
    return plan_of(target, chosen, card, budgets, settings, seed=settings.get("seed", 0)), notices
