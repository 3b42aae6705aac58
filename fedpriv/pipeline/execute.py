"""One job of a plan: attack, shuffled control, then score against the truth, save and draw."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedpriv.attacks.contract import Attack, AttackProblem, Declared, Same, Trained
from fedpriv.attacks.inference.base import Inference
from fedpriv.attacks.observation import ExtractorAccess, Reconstruction, TargetId, ThreatModel
from fedpriv.eval import inference as scoring
from fedpriv.eval import storage
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
from fedpriv.eval.score import planted_advantage, score
from fedpriv.pipeline.plan import AttackPlan, Job
from fedpriv.pipeline.planted import planted_images, planted_membership
from fedpriv.pipeline.premise import premise_of
from fedpriv.reports.grid import grid_png
from fedpriv.sources.case import EVERYTHING, Case, build_case, rounds_up_to
from fedpriv.sources.external import ExternalSource
from fedpriv.sources.run import RunSource, step_sizes
from fedpriv.sources.source import Source
from fedpriv.sources.truth import Truth
from fedpriv.uploads.kinds import ANSWERS, VECTORS
from fedpriv.util import files
from fedpriv.util.compute import pick_device
from fedpriv.util.config import plain
from fedpriv.util.errors import UserError, first_line
from fedpriv.util.parallel import SILENT, Listener

TOGETHER = 32
"""Targets whose fit is measured at a time."""


@dataclass(frozen=True)
class AttackContext:
    """A source, what each attack is handed of it, and what attackers trained so far."""

    source: Source  # that is attacked
    plan: AttackPlan  # by which cases are built
    named: Collection[str] = ()  # attacks that somebody asked for by name: what they lack is refused
    command: str = ""  # for records
    listener: Listener = SILENT
    cases: dict[Hashable, Case] = field(default_factory=dict)  # by attack and threat model
    trained: Trained = field(default_factory=Trained)  # substitutes, which all attacks and controls share
    scorers: Trained = field(default_factory=Trained)  # pools and representations, which no attack is handed

    def case_for(self, job: Job, extractor: ExtractorAccess | None = None) -> Case:
        """Return the case that a job's attack is handed, built when it is first asked for; or one of another access."""
        attack, card = job.attack, self.plan.card_for(job.attack, self.stored)
        card = card if extractor is None else replace(card, extractor=extractor)
        key = (job.name, card)
        if key not in self.cases:
            n_targets = self.plan.n_targets or attack.most_targets
            self.cases[key] = self.case(card, self.plan.round, attack, n_targets=n_targets)
        return self.cases[key]

    def case(self, card: ThreatModel, round_: int | None, attack: Attack | None = None, *, n_targets: int) -> Case:
        """Return a case of uploads up to a round."""
        more: dict[str, Any] = {"n_targets": n_targets, "seed": self.plan.seed, "round_": round_}
        return build_case(self.source, card, attack, **more, trained=self.trained)

    def problem(self, case: Case, targets: tuple[TargetId, ...] | None = None) -> AttackProblem:
        """Return the problem of an attack on a case's targets, or on some of them."""
        known = case.observations, case.knowledge, case.targets if targets is None else targets
        plan, device = self.plan, self.source.device
        return AttackProblem(*known, plan.seed, device, plan.chunk_rows, trained=self.trained)

    def collected(self) -> AttackContext:
        """Build the case for each attack of the plan, and return the context."""
        plan = self.plan
        for job in plan.jobs():
            self.case_for(job)
        if plan.rounds_seen and any(made.uses_rounds_on(plan.target) for made in plan.inferences.values()):
            rounds_up_to(self.source, plan.round, plan.rounds_seen)
        return self

    @property
    def stored(self) -> int:
        """Number of the rounds up to the attacked one whose uploads are there."""
        return sum(self.plan.round is None or number <= self.plan.round for number in self.source.rounds())

    @cached_property
    def premise(self) -> Premise | None:
        """Agreement of the uploads with the computation that attacks assume; only scorers ask."""
        source = self.source
        if not isinstance(source, ExternalSource):
            return None
        return self.scorers.get(("premise", Same(source)), lambda: premise_of(source))


def open_run(path: Path, plan: AttackPlan, **how: Any) -> tuple[AttackContext, tuple[str, ...]]:
    """Open a run for a plan of attacks, with every case built, and say which attacks are left out.

    Attacks that return images are, where samples are points of the plane; those that were ``named`` are refused. ``how`` are
    names, command and listener of the context.
    """
    source = RunSource.open(path, plan.target, pick_device(plan.device), download=plan.download)
    ground, dataset = AttackContext(source, plan, **how), source.federation.data.dataset
    if dataset.samples.images[:1].numel() != 2:
        return ground.collected(), ()
    has = f"data set {dataset.name!r} has none: its samples are points of the plane"
    reasons = {name: f"attack {name!r} returns images, and {has}" for name in plan.attacks}
    for name in ground.named:
        if name in reasons:
            raise UserError(reasons[name])
    return replace(ground, plan=replace(plan, attacks={})).collected(), tuple(reasons.values())


def run_plan(
    folder: Path, ground: AttackContext, *, refused: Callable[[str], None] = SILENT.say, pages: bool = True
) -> tuple[dict[Path, ReconstructionRecord], dict[Path, InferenceResult]]:
    """Run, score and save every attack and inference of a plan that has no result yet; return all records by folder."""
    plan, records, scores = ground.plan, dict[Path, ReconstructionRecord](), dict[Path, InferenceResult]()
    for job in plan.jobs():
        home = folder / plan.folder(job.name)
        if storage.is_attack_directory(home):
            records[home] = storage.load_metrics(home)
            continue
        try:
            records[home] = run_job(home, ground, job, pages=pages)
        except Exception as error:
            if isinstance(error, UserError) and plan.suffix and plan.reach is not None:
                refused(f"attack {job.name!r} at {plan.reach.words}: {error}")
            else:
                refused(_left_out(ground, job.name, error))
    for name, inference in plan.inferences.items():
        home = folder / plan.folder(name)
        if storage.holds_scores(home):
            scores[home] = storage.load_scores(home)
            continue
        with ground.listener.progress(f"{home.name} on {plan.target}"):
            case = case_of(ground, inference)
            about = described(ground, name, inference, _card_of(ground, inference, case))
            try:
                scores[home] = scoring.evaluate(inference, case, about)
            except Exception as error:
                refused(_left_out(ground, name, error))
                continue
            if plan.control and isinstance(scores[home], MembershipRecord) and plan.target in VECTORS:
                clients = {seen.client for seen in case.evidence.observations}
                pools = {client: ground.source.pool(client, plan.seed, ground.scorers) for client in clients}
                planted = planted_membership(inference, case, pools, about)
                scores[home] = scores[home].model_copy(update={"planted": planted})
            files.mark(home, "scores")
            storage.write_record(home, scores[home])
    return records, scores


def _left_out(ground: AttackContext, name: str, error: Exception) -> str:
    """Return why an attack is left out while others go on: it was not named, or the user's network raised an error.

    Other errors are raised again.
    """
    if isinstance(error, UserError) and name not in ground.named:
        return str(error)
    if isinstance(error, UserError) or not isinstance(ground.source, ExternalSource):
        raise error
    return f"attack {name!r}: {type(error).__name__}: {first_line(error)}"


def run_job(directory: Path, ground: AttackContext, job: Job, *, pages: bool = True) -> ReconstructionRecord:
    """Attack, attack shuffled uploads where there is another client, score, save and draw; return the record."""
    source, unit, seed = ground.source, job.attack.unit, ground.plan.seed
    case = ground.case_for(job)
    title = f"{directory.name} on {{}}".format
    problem = ground.problem(case)
    reconstruction = search(title(ground.plan.target), problem, ground, job)
    control = None
    if job.control and case.shuffled is not None:
        control = search(title("shuffled uploads"), replace(problem, observations=case.shuffled), ground, job)
    # The truth is looked up only now: no attack runs with it in reach.
    truths = source.truths(case.targets, seed=seed, unit=unit, kept=ground.scorers)
    reconstruction = with_fits(ground, job, reconstruction, truths)
    facts: dict[str, Any] = {"redacted": ground.plan.redact}
    if isinstance(source, RunSource):
        summary = source.run.summary
        facts |= {"run_accuracy": summary.accuracy, "communication": summary.communication}
    about = About(**dict(described(ground, job.name, job.attack, case.knowledge.card)), **facts)
    if job.control and job.name == ground.plan.primary:
        planted = positive_control(ground, job, about, title("planted uploads"))
        about = about.model_copy(update={"planted": planted})
    record = score(reconstruction, truths, control, seed=seed, about=about)
    files.mark(directory, "attack")
    if pages:
        draw(storage.AttackRecord(directory, about, record, reconstruction, control, truths))
    parts: dict[str, Any] = {"reconstruction": reconstruction, "truths": truths, "shuffled": control}
    storage.save_attack(directory, **parts, about=about, metrics=record)
    return record


def positive_control(ground: AttackContext, job: Job, about: About, title: str) -> Planted | None:
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
    problem = ground.problem(ground.case_for(job), case.targets)
    planted = planted_images(problem, case, pools, about)
    if planted is None:
        return None
    try:
        return planted_advantage(search(title, planted[0], ground, job), planted[1], about)
    except UserError as error:
        ground.listener.say(f"no positive control of {job.name}: {error}")
        return None


def search(title: str, problem: AttackProblem, ground: AttackContext, job: Job) -> Reconstruction:
    """Carry out an attack on what the server saw, on the shuffled control, or on planted uploads."""
    plan, listener = ground.plan, ground.listener
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
        ).to_cpu()


def draw(attack: storage.AttackRecord) -> None:
    """Draw the picture of a scored attack into its folder, or remove it where the rule is that there is none."""
    path = attack.directory / "grid.png"
    if attack.about.redacted == OMIT:
        files.remove(path)
    else:
        files.write_bytes(path, grid_png(attack))


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
        objective = job.attack.objective(ground.problem(case, targets[some]))
        if objective is None:
            return reconstruction
        images = reconstruction.images[some]
        true = list(map(in_place, truths[some], reconstruction.labels[some]))
        known = torch.tensor([current is not None for current in true])
        pictures = torch.stack(
            [each if current is None else current for each, current in zip(images, true, strict=True)]
        )
        values = torch.stack([objective(shown.to(device)).detach().double().cpu() for shown in (images, pictures)], 1)
        values[~known, 1] = torch.inf
        fits.append(values.nan_to_num(torch.inf, torch.inf, -torch.inf))
    return replace(reconstruction, fits=torch.cat(fits))


def in_place(truth: Truth, labels: Tensor) -> Tensor | None:
    """Return the true images ``(M, c, h, w)``, each in the place of a guess of its class.

    None where there are not M, or a class was guessed that they do not have: an objective says nothing of them then.
    """
    if len(labels) != truth.n_c:
        return None
    left, order = list(range(truth.n_c)), [-1] * truth.n_c
    for place, label in enumerate(labels.tolist()):
        chosen = next((index for index in left if int(truth.labels[index]) == label), None)
        if chosen is not None:
            left.remove(chosen)
            order[place] = chosen
        elif label >= 0:
            return None
    order = [left.pop(0) if index < 0 else index for index in order]
    return truth.members[order].float()


def described(ground: AttackContext, name: str, attack: Declared, card: ThreatModel) -> Provenance:
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
        command=ground.command,
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


def _card_of(ground: AttackContext, inference: Inference, case: InferenceCase) -> ThreatModel:
    """Return the card of an inference with the extractor and the rounds that it had."""
    rounds = ground.stored if inference.reads_every_round and case.told else 1 + len(case.earlier)
    extractor = case.evidence.knowledge.card.extractor
    return replace(inference.card(ground.plan.card, ground.plan.target), extractor=extractor, rounds_seen=rounds)


def checked(ground: AttackContext) -> tuple[AttackContext, tuple[str, ...]]:
    """Leave out inferences that have nothing to ask or to tell apart, and say why; refuse those that were named."""
    kept: dict[str, Inference] = {}
    reasons: dict[str, None] = {}
    for name, inference in ground.plan.inferences.items():
        try:
            scoring.check(inference, case_of(ground, inference))
            kept[name] = inference
        except UserError as error:
            if name in ground.named:
                raise
            reasons[str(error)] = None
    return replace(ground, plan=replace(ground.plan, inferences=kept)), tuple(reasons)


def case_of(ground: AttackContext, inference: Inference) -> InferenceCase:
    """Return the case of an inference, with its truth."""
    source, plan = ground.source, ground.plan
    card = inference.card(plan.card, plan.target)
    try:
        case = ground.case(card, plan.round, n_targets=EVERYTHING)
    except UserError as first:
        without = replace(card, extractor="none")
        try:
            inference.requirements_for(plan.target).refuse(inference.name, without)
        except UserError:
            raise first from None
        if card == without:
            raise
        card, case = without, ground.case(without, plan.round, n_targets=EVERYTHING)  # the checkpoint was not kept
    last = max(seen.round for seen in case.observations)
    earlier = _earlier(ground, inference, last, card)
    of_images = inference.asks == "images"
    rounds = {last} | {seen.round for item in earlier for seen in item.observations}
    clients = {seen.client for seen in case.observations}
    truth = source.holdings(rounds if of_images else (), clients if of_images else ())
    if of_images and not any(map(len, truth.held_out.values())) and bool((truth.samples.labels < 0).any()):
        raise UserError(
            f"held_out: missing; attack {inference.name!r} tells members from images that the client did not train on"
        )
    return InferenceCase(case, truth, plan.target, plan.seed, source.disclosed(plan.round), earlier, ground.trained)


def _earlier(ground: AttackContext, inference: Inference, last: int, card: ThreatModel) -> tuple[Case, ...]:
    """Return the cases of earlier rounds of which everything is at hand that the inference takes."""
    plan = ground.plan
    if not inference.uses_rounds_on(plan.target):
        return ()
    most = (plan.rounds_seen or inference.rounds_on(plan.target, plan.card)) - 1
    if plan.target in ANSWERS:  # nothing of earlier rounds but the uploads is looked at
        card = replace(card, extractor="none")
    result = []
    for number in [item for item in ground.source.usable_rounds(card) if item < last][-most:] if most else ():
        # Nobody's steps may have used an image in that round, or the weights that they began with were not stored.
        with contextlib.suppress(UserError):
            result.append(ground.case(card, number, n_targets=EVERYTHING))
    return tuple(result)
