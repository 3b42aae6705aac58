"""One job of a plan: attack, shuffled control, then score against the truth, save and draw."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedpriv.attacks.contract import AttackProblem, Declared, Same, Trained
from fedpriv.attacks.inference.base import Inference
from fedpriv.attacks.observation import ExtractorAccess, Reconstruction, TargetId, ThreatModel
from fedpriv.eval import inference as scoring
from fedpriv.eval.inference_case import InferenceCase
from fedpriv.eval.records import (
    About,
    InferenceResult,
    MembershipRecord,
    Planted,
    Premise,
    Provenance,
    Reach,
    ReconstructionRecord,
)
from fedpriv.eval.redaction import OMIT
from fedpriv.eval.score import score
from fedpriv.eval.storage import (
    AttackRecord,
    holds_scores,
    is_attack_directory,
    load_metrics,
    load_scores,
    save_attack,
    write_record,
)
from fedpriv.pipeline.plan import AttackPlan, Job
from fedpriv.pipeline.planted import judge_images, planted_images, planted_membership
from fedpriv.pipeline.premise import premise_of
from fedpriv.reports.grid import grid_png
from fedpriv.sources.case import EVERYTHING, Case, build_case, rounds_up_to
from fedpriv.sources.external import ExternalSource
from fedpriv.sources.guesses import with_guesses
from fedpriv.sources.run import RunSource, step_sizes
from fedpriv.sources.source import Source
from fedpriv.sources.truth import Truth
from fedpriv.uploads.kinds import ANSWERS, VECTORS
from fedpriv.util import files
from fedpriv.util.compute import pick_device
from fedpriv.util.config import plain
from fedpriv.util.errors import UserError
from fedpriv.util.parallel import SILENT, Listener

TOGETHER = 32
"""Targets whose fit is measured at a time."""


@dataclass(frozen=True)
class AttackContext:
    """A source, what each attack is handed of it, and what attackers trained so far."""

    source: Source  # that is attacked
    plan: AttackPlan  # by which cases are built
    cases: dict[Hashable, Case] = field(default_factory=dict)  # by attack and threat model
    trained: Trained = field(default_factory=Trained)  # substitutes, which all attacks and controls share
    scorers: Trained = field(default_factory=Trained)  # pools and representations, which no attack is handed

    def case_for(self, job: Job, extractor: ExtractorAccess | None = None) -> Case:
        """Return the case that a job's attack is handed, built when it is first asked for; or one of another access."""
        plan, attack = self.plan, job.attack
        stored = sum(plan.round is None or number <= plan.round for number in self.source.rounds())
        card = plan.card_for(attack, stored)
        card = card if extractor is None else replace(card, extractor=extractor)
        key = (job.name, card)
        if key not in self.cases:
            self.cases[key] = build_case(
                self.source,
                card,
                attack,
                n_targets=plan.n_targets or attack.most_targets,
                seed=plan.seed,
                round_=plan.round,
                trained=self.trained,
            )
        return self.cases[key]

    def collected(self) -> AttackContext:
        """Build the case for each attack of the plan, and return the context."""
        plan = self.plan
        for job in plan.jobs():
            self.case_for(job)
        if plan.rounds_seen and any(made.uses_rounds_on(plan.target) for made in plan.inferences.values()):
            rounds_up_to(self.source, plan.round, plan.rounds_seen)
        return self

    @cached_property
    def premise(self) -> Premise | None:
        """Agreement of the uploads with the computation that attacks assume; only scorers ask."""
        source = self.source
        if not isinstance(source, ExternalSource):
            return None
        return self.scorers.get(("premise", Same(source)), lambda: premise_of(source))


def open_run(path: Path, plan: AttackPlan, named: Collection[str] = ()) -> tuple[AttackContext, tuple[str, ...]]:
    """Open a run for a plan of attacks, with every case built, and say which attacks are left out.

    Attacks that return images are, where samples are points of the plane; those that were ``named`` are refused.
    """
    source = RunSource.open(path, plan.target, pick_device(plan.device), download=plan.download)
    dataset = source.federation.data.dataset
    if dataset.samples.images[:1].numel() != 2:
        return AttackContext(source, plan).collected(), ()
    has = f"data set {dataset.name!r} has none: its samples are points of the plane"
    reasons = {name: f"attack {name!r} returns images, and {has}" for name in plan.attacks}
    for name in named:
        if name in reasons:
            raise UserError(reasons[name])
    return AttackContext(source, replace(plan, attacks={})).collected(), tuple(reasons.values())


def run_plan(
    folder: Path,
    ground: AttackContext,
    *,
    command: str,
    named: Collection[str] = (),
    listener: Listener = SILENT,
    refused: Callable[[str], None] = SILENT.say,
    pages: bool = True,
) -> tuple[dict[Path, ReconstructionRecord], dict[Path, InferenceResult]]:
    """Run, score and save every attack and inference of a plan that has no result yet; return all records by folder."""
    plan, records, scores = ground.plan, dict[Path, ReconstructionRecord](), dict[Path, InferenceResult]()
    for job in plan.jobs():
        home = folder / job.folder
        if is_attack_directory(home):
            records[home] = load_metrics(home)
            continue
        try:
            records[home] = run_job(home, ground, job, command, listener, pages=pages)
        except UserError as error:
            if not plan.suffix or plan.reach is None:
                raise
            refused(f"attack {job.name!r} at {plan.reach.words}: {error}")
    for name, inference in plan.inferences.items():
        home = folder / plan.folder(name)
        if holds_scores(home):
            scores[home] = load_scores(home)
            continue
        with listener.progress(f"{home.name} on {plan.target}"):
            case = case_of(ground, plan, inference)
            about = described(ground, name, inference, _card_of(ground, inference, case), command)
            try:
                scores[home] = scoring.evaluate(inference, case, about)
            except UserError as error:
                if name in named:
                    raise
                listener.say(f"left out: {error}")
                continue
            if plan.control and isinstance(scores[home], MembershipRecord) and plan.target in VECTORS:
                clients = {seen.client for seen in case.evidence.observations}
                pools = {client: ground.source.pool(client, plan.seed, ground.scorers) for client in clients}
                planted = planted_membership(inference, case, pools, about)
                scores[home] = scores[home].model_copy(update={"planted": planted})
            files.mark(home, "scores")
            write_record(home, scores[home])
    return records, scores


def run_job(
    directory: Path, ground: AttackContext, job: Job, command: str, listener: Listener, *, pages: bool = True
) -> ReconstructionRecord:
    """Attack, attack shuffled uploads where there is another client, score, save and draw; return the record."""
    source, unit, seed = ground.source, job.attack.unit, ground.plan.seed
    case = ground.case_for(job)
    title = f"{directory.name} on {{}}".format
    problem = _problem(ground, case, case.targets)
    reconstruction = search(title(ground.plan.target), problem, ground, job, listener)
    control = None
    if job.control and case.shuffled is not None:
        shuffled = replace(problem, observations=case.shuffled)
        control = search(title("shuffled uploads"), shuffled, ground, job, listener)
    # The truth is looked up only now: no attack runs with it in reach.
    truths = source.truths(case.targets, seed=seed, unit=unit, kept=ground.scorers)
    truths = with_guesses(truths, case, source.kind, unit, device=source.device, kept=ground.scorers)
    reconstruction = with_fits(ground, job, reconstruction, truths)
    about = _about(ground, job, command)
    if job.control and job.name == ground.plan.primary:
        about = about.model_copy(
            update={"planted": positive_control(ground, job, about, title("planted uploads"), listener)}
        )
    record = score(reconstruction, truths, control, seed=seed, about=about)
    files.mark(directory, "attack")
    if pages:
        draw(AttackRecord(directory, reconstruction, control, truths, about, record))
    parts: dict[str, Any] = {"reconstruction": reconstruction, "truths": truths, "shuffled": control}
    save_attack(directory, **parts, about=about, metrics=record)
    return record


def positive_control(ground: AttackContext, job: Job, about: About, title: str, listener: Listener) -> Planted | None:
    """Attack planted uploads, and return the advantage there; None where nothing can be planted in this kind of upload."""
    case, source, seed = ground.case_for(job), ground.source, ground.plan.seed
    if ground.plan.target not in VECTORS:
        return None
    if case.knowledge.card.extractor != "white_box":
        try:
            case = ground.case_for(job, extractor="white_box")
        except UserError:  # nobody has the clients' extractors
            return None
    pools = {target.client: source.pool(target.client, seed, ground.scorers) for target in case.targets}
    problem = _problem(ground, ground.case_for(job), case.targets)
    planted = planted_images(problem, case, pools, {client: about.unit_of(client) for client in pools})
    if planted is None:
        return None
    try:
        return judge_images(search(title, planted[0], ground, job, listener), planted[1], about)
    except UserError as error:
        listener.say(f"no positive control of {job.name}: {error}")
        return None


def search(title: str, problem: AttackProblem, ground: AttackContext, job: Job, listener: Listener) -> Reconstruction:
    """Carry out an attack on what the server saw, on the shuffled control, or on planted uploads."""
    plan = ground.plan
    with listener.progress(title) as report:
        return job.attack(
            problem.observations,
            problem.knowledge,
            problem.targets,
            kind=plan.target,
            seed=plan.seed,
            device=ground.source.device,
            chunk_rows=plan.chunk_rows,
            progress=lambda done, planned: report(done, planned, ""),
            say=listener.say,
            trained=ground.trained,
            numerics=plan.numerics,
        ).to_cpu()


def draw(attack: AttackRecord) -> None:
    """Draw the picture of a scored attack into its folder, or remove it where the rule is that there is none."""
    path = attack.directory / "grid.png"
    if attack.about.redacted == OMIT:
        path.unlink(missing_ok=True)
    else:
        files.write_bytes(path, grid_png(attack))


# ---------------------------------------------------------------- fits


def with_fits(
    ground: AttackContext, job: Job, reconstruction: Reconstruction, truths: Sequence[Truth]
) -> Reconstruction:
    """Return the reconstruction with its ``fits``: the objective of its images, and of the true ones.

    As it is where nothing leads from images to uploads.
    """
    device, fits = ground.source.device, []
    targets, case = reconstruction.targets, ground.case_for(job)
    for start in range(0, len(targets), TOGETHER):
        some = slice(start, start + TOGETHER)
        objective = job.attack.objective(_problem(ground, case, targets[some]))
        if objective is None:
            return reconstruction
        images = reconstruction.images[some]
        true = [
            in_place(truth, labels) for truth, labels in zip(truths[some], reconstruction.labels[some], strict=True)
        ]
        known = torch.tensor([current is not None for current in true])
        pictures = torch.stack(
            [each if current is None else current for each, current in zip(images, true, strict=True)]
        )
        values = torch.stack([objective(shown.to(device)).detach().double().cpu() for shown in (images, pictures)], 1)
        values[~known, 1] = torch.inf
        fits.append(values.nan_to_num(nan=torch.inf))
    return replace(reconstruction, fits=torch.cat(fits))


def in_place(truth: Truth, labels: Tensor) -> Tensor | None:
    """Return the true images ``(M, c, h, w)``, each in the place of a guess of its class; None where there are not M."""
    if len(labels) != truth.n_c:
        return None
    left, order = list(range(truth.n_c)), [-1] * truth.n_c
    for place, label in enumerate(labels.tolist()):
        chosen = next((index for index in left if int(truth.labels[index]) == label), None)
        if chosen is not None:
            left.remove(chosen)
            order[place] = chosen
    order = [left.pop(0) if index < 0 else index for index in order]
    return truth.members[order].float()


def _problem(ground: AttackContext, case: Case, targets: tuple[TargetId, ...]) -> AttackProblem:
    plan, device = ground.plan, ground.source.device
    known = case.observations, case.knowledge, targets
    return AttackProblem(*known, plan.seed, device, plan.chunk_rows, trained=ground.trained)


# ---------------------------------------------------------------- records


def _about(ground: AttackContext, job: Job, command: str) -> About:
    case, source = ground.case_for(job), ground.source
    more: dict[str, Any] = {"redacted": ground.plan.redact}
    if isinstance(source, RunSource):
        summary = source.run.summary
        more |= {"run_accuracy": summary.accuracy, "communication": summary.communication}
    return About(
        **dict(described(ground, job.name, job.attack, case.knowledge.card, command)),
        device=str(source.device),
        **more,
    )


def described(ground: AttackContext, name: str, attack: Declared, card: ThreatModel, command: str) -> Provenance:
    """Return the part of a record that says how it was made."""
    plan = ground.plan
    source = ground.source.described(plan.round)
    return Provenance(
        target=plan.target,
        attack=name,
        attack_version=attack.version,
        knowledge=card,
        seed=plan.seed,
        options=plain(attack),
        reach=_reach_facts(plan, ground.source),
        premise=ground.premise,
        command=command,
        **source,
    )


def _reach_facts(plan: AttackPlan, source: Source) -> Reach | None:
    """Return the facts of a setting of a sweep for records; None where a plan is on none."""
    work = plan.reach
    if work is None or not isinstance(source, RunSource):
        return None
    federation = source.federation
    sizes = max((step_sizes(federation, setup.client) for setup in federation.clients), key=sum)
    return Reach(setting=work.name, label=work.label, steps=len(sizes), images=sum(sizes))


# ---------------------------------------------------------------- inferences


def _card_of(ground: AttackContext, inference: Inference, case: InferenceCase) -> ThreatModel:
    """Return the card of an inference with the extractor and the rounds that it had."""
    plan, rounds = ground.plan, 1 + len(case.earlier)
    if inference.reads_every_round and case.told:
        rounds = sum(plan.round is None or number <= plan.round for number in ground.source.rounds())
    extractor = case.evidence.knowledge.card.extractor
    return replace(inference.card(plan.card, plan.target), extractor=extractor, rounds_seen=rounds)


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
    except UserError as first:
        without = replace(card, extractor="none")
        try:
            inference.requirements_for(plan.target).refuse(inference.name, without)
        except UserError:
            raise first from None
        if card == without:
            raise
        card, case = without, _case(ground, plan, without, plan.round)  # the checkpoint was not kept
    last = max(seen.round for seen in case.observations)
    earlier = _earlier(ground, plan, inference, last, card)
    of_images = inference.asks == "images"
    rounds = {last} | {seen.round for item in earlier for seen in item.observations}
    clients = {seen.client for seen in case.observations}
    truth = source.holdings(rounds if of_images else (), clients if of_images else ())
    if of_images and not any(map(len, truth.held_out.values())) and bool((truth.samples.labels < 0).any()):
        raise UserError(
            f"held_out: missing; attack {inference.name!r} tells members from images that the client did not train on"
        )
    return InferenceCase(case, truth, plan.target, plan.seed, source.disclosed(plan.round), earlier, ground.trained)


def _case(ground: AttackContext, plan: AttackPlan, card: ThreatModel, number: int | None) -> Case:
    return build_case(ground.source, card, n_targets=EVERYTHING, seed=plan.seed, round_=number, trained=ground.trained)


def _earlier(
    ground: AttackContext, plan: AttackPlan, inference: Inference, last: int, card: ThreatModel
) -> tuple[Case, ...]:
    """Return the cases of earlier rounds of which everything is at hand that the inference takes."""
    if not inference.uses_rounds_on(plan.target):
        return ()
    most = (plan.rounds_seen or inference.rounds_on(plan.target, plan.card)) - 1
    if plan.target in ANSWERS:  # nothing of earlier rounds but the uploads is looked at
        card = replace(card, extractor="none")
    result = []
    for number in [item for item in ground.source.usable_rounds(card) if item < last][-most:] if most else ():
        try:
            result.append(_case(ground, plan, card, number))
        except UserError:
            continue  # nobody's steps used an image in that round, or the weights that they began with were not stored
    return tuple(result)
