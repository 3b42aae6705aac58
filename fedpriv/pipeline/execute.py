"""One job of a plan: attack, shuffled control, then score against the truth, save and draw."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedpriv.attacks.contract import AttackProblem, Declared
from fedpriv.attacks.observation import Reconstruction, TargetId, ThreatModel
from fedpriv.attacks.trained import Trained
from fedpriv.pages.grid import grid_png
from fedpriv.pipeline.plan import PARTS, AttackPlan, Job
from fedpriv.pipeline.premise import premise_of
from fedpriv.scoring.judge import JUDGED, train_class_evaluator
from fedpriv.scoring.records import About, Provenance, ReconstructionRecord
from fedpriv.scoring.records.made import Budget, Premise, Reach, Upload
from fedpriv.scoring.redaction import OMIT
from fedpriv.scoring.score import score
from fedpriv.scoring.storage import AttackRecord, is_attack_directory, load_metrics, save_attack
from fedpriv.scoring.tensor_files import load_reconstruction, save_reconstruction
from fedpriv.sources.case import Case, build_case, rounds_up_to
from fedpriv.sources.external import ExternalSource
from fedpriv.sources.guesses import with_guesses
from fedpriv.sources.run import RunSource, step_sizes
from fedpriv.sources.source import Source
from fedpriv.sources.truth import Truth
from fedpriv.util import files
from fedpriv.util.config import plain
from fedpriv.util.device import pick_device
from fedpriv.util.errors import UserError
from fedpriv.util.listener import SILENT, Listener
from fedpriv.util.seeds import generator
from fedpriv.wire.kinds import CLASS_MEANS, LAYERS, MIXTURES, OF_IMAGES, SEPARATE

PARTIAL = ".partial"
"""Folder of the parts of an attack that are carried out and not yet scored."""

COMPARED = 8
"""Sets of images from the pool that are compared with an upload."""

TOGETHER = 32
"""Targets whose fit is measured at a time."""


@dataclass(frozen=True)
class AttackContext:
    """A source, what each attack is handed of it, and what attackers trained so far.

    Attributes:
        source: that is attacked.
        plan: by which cases are built.
        cases: by attack, what is collected so far.
        trained: substitutes for extractors and decoders, which all attacks, controls and budgets share.
        scorers: pools and their representations, which all scores share and no attack is handed.
    """

    source: Source
    plan: AttackPlan
    cases: dict[str, Case]
    trained: Trained
    scorers: Trained

    @classmethod
    def of(cls, source: Source, plan: AttackPlan) -> AttackContext:
        """Return a new one."""
        return cls(source, plan, {}, Trained(), Trained())

    def case_for(self, job: Job) -> Case:
        """Return the case that a job's attack is handed, built when it is first asked for.

        Raises:
            UserError: when the source does not have it.
        """
        plan, attack = self.plan, job.attack
        if job.name not in self.cases:
            stored = sum(plan.round is None or number <= plan.round for number in self.source.rounds())
            self.cases[job.name] = build_case(
                self.source,
                plan.card_for(attack, stored),
                attack,
                n_targets=plan.n_targets or attack.most_targets,
                seed=plan.seed,
                round_=plan.round,
                trained=self.trained,
            )
        return self.cases[job.name]

    @cached_property
    def premise(self) -> Premise | None:
        """Agreement of the uploads with the computation that attacks assume; only scorers ask."""
        return premise_of(self.source) if isinstance(self.source, ExternalSource) else None


def open_ground(run_path: Path, plan: AttackPlan) -> AttackContext:
    """Open a run for a plan of attacks."""
    return AttackContext.of(
        RunSource.open(run_path, plan.target, pick_device(plan.device), download=plan.download), plan
    )


def collected(ground: AttackContext) -> AttackContext:
    """Build the case for each attack of a context's plan, and return the context."""
    plan = ground.plan
    for job in plan.jobs():
        ground.case_for(job)
    if plan.rounds_seen and any(made.uses_rounds_on(plan.target) for made in plan.inferences.values()):
        rounds_up_to(ground.source, plan.round, plan.rounds_seen)
    return ground


def without_points(ground: AttackContext, named: Collection[str] = ()) -> tuple[AttackContext, tuple[str, ...]]:
    """Leave attacks that return images out where samples are points of the plane; inferences stay."""
    if not isinstance(ground.source, RunSource):
        return ground, ()
    dataset = ground.source.federation.data.dataset
    if dataset.samples.images[:1].numel() != 2:
        return ground, ()
    has = f"data set {dataset.name!r} has none: its samples are points of the plane"
    reasons = {name: f"attack {name!r} returns images, and {has}" for name in ground.plan.attacks}
    for name in named:
        if name in reasons:
            raise UserError(reasons[name])
    return replace(ground, plan=replace(ground.plan, attacks={})), tuple(reasons.values())


def attack_all(
    folder: Path,
    ground: AttackContext,
    plan: AttackPlan,
    *,
    command: str,
    listener: Listener = SILENT,
    refused: Callable[[str], None] = SILENT.say,
) -> dict[Path, ReconstructionRecord]:
    """Run every job that has no result yet, score it, and save it."""
    results: dict[Path, ReconstructionRecord] = {}
    for job in plan.jobs():
        directory = folder / job.folder
        if is_attack_directory(directory):
            files.remove(directory / PARTIAL)  # where a crash came between
            results[directory] = load_metrics(directory)
            continue
        try:
            results[directory] = run_job(directory, ground, plan, job, command, listener)
        except UserError as error:
            if not plan.suffix or plan.reach is None:
                raise
            refused(f"attack {job.name!r} at {plan.reach.words}: {error}")
    return results


def run_job(
    directory: Path, ground: AttackContext, plan: AttackPlan, job: Job, command: str, listener: Listener
) -> ReconstructionRecord:
    """Attack, attack shuffled uploads where there is another client, score, save and draw; return the record."""
    source, unit = ground.source, job.attack.unit
    reconstruction, control = (search(directory, ground, plan, job, part, listener) for part in PARTS)
    assert reconstruction is not None
    # The truth is looked up only now: no attack runs with it in reach.
    case = ground.case_for(job)
    truths = source.truths(case.targets, seed=plan.seed, unit=unit, kept=ground.scorers)
    truths = with_guesses(truths, case, source.kind, unit, device=source.device, kept=ground.scorers)
    judge = None
    if job.name in JUDGED and isinstance(source, RunSource):
        with listener.progress("an independent classifier"):
            clients = [target.client for target in case.targets]
            judge = train_class_evaluator(source.federation, clients, plan.seed)
    if control is not None:
        reconstruction = with_fits(ground, plan, job, reconstruction, control, truths)
    about = _about(ground, plan, job, command)
    record = score(reconstruction, truths, control, seed=plan.seed, about=about, judge=judge)
    draw(AttackRecord(directory, reconstruction, control, truths, about, record))
    save_attack(
        directory,
        reconstruction=reconstruction,
        truths=truths,
        about=about,
        shuffled=control,
        metrics=record,
        judge=judge,
    )
    files.remove(directory / PARTIAL)
    return record


def search(
    directory: Path, ground: AttackContext, plan: AttackPlan, job: Job, part: str, listener: Listener
) -> Reconstruction | None:
    """Carry out a part of an attack, or read back what is kept of it; None for the control of a job that has none."""
    case, control = ground.case_for(job), part == PARTS[1]
    observations = case.shuffled if control and job.control else None if control else case.observations
    if observations is None:
        return None
    files.mark(directory, "attack")
    path = directory / PARTIAL / f"{part}.safetensors"
    if path.is_file():
        return load_reconstruction(path)
    with listener.progress(f"{directory.name} on {'shuffled uploads' if control else plan.target}") as report:

        def progress(done: int, planned: int) -> None:
            report(done, planned, part)

        result = job.attack(
            observations,
            case.knowledge,
            case.targets,
            kind=plan.target,
            seed=plan.seed,
            device=ground.source.device,
            chunk_rows=plan.chunk_rows,
            progress=progress,
            say=listener.say,
            trained=ground.trained,
            numerics=plan.numerics,
        ).to_cpu()
    save_reconstruction(path, result)
    return result


def draw(attack: AttackRecord) -> None:
    """Draw the picture of a scored attack into its folder, or remove it where the rule is that there is none."""
    path = attack.directory / "grid.png"
    if attack.about.redacted == OMIT:
        path.unlink(missing_ok=True)
    else:
        files.write_bytes(path, grid_png(attack))


# ---------------------------------------------------------------- fits


def with_fits(
    ground: AttackContext,
    plan: AttackPlan,
    job: Job,
    reconstruction: Reconstruction,
    control: Reconstruction,
    truths: Sequence[Truth],
) -> Reconstruction:
    """Return the reconstruction with its ``fits``: of its images, of the control's, and of images from the pool.

    These are of the classes that the attack was given or recovered: what the client's labels say beyond that has no part. As
    it is where nothing leads from images to uploads.
    """
    targets, case, device, fits = reconstruction.targets, ground.case_for(job), ground.source.device, []
    for start in range(0, len(targets), TOGETHER):
        some = slice(start, start + TOGETHER)
        objective = job.attack.objective(_problem(ground, plan, case, targets[some]))
        if objective is None:
            return reconstruction
        known = zip(truths[some], reconstruction.labels[some], targets[some], strict=True)
        others = [
            pool_images(truth, labels, generator(plan.seed, "fit", item.round, item.client, item.index))
            for truth, labels, item in known
        ]
        sets = [reconstruction.images[some], control.images[some], *torch.stack(others, 1)]
        values = torch.stack([objective(images.to(device)).detach().double().cpu() for images in sets], 1)
        values = values.nan_to_num(nan=torch.inf)
        fits.append(torch.cat([values[:, :2], values[:, 2:].amin(1, keepdim=True)], 1))
    return replace(reconstruction, fits=torch.cat(fits))


def pool_images(truth: Truth, labels: Tensor, rng: torch.Generator) -> Tensor:
    """Draw sets of images from the pool, each of the class of the guess that it stands in for.

    Args:
        truth: holds the pool.
        labels: ``(M,)`` classes of the guesses, -1 where none is known; then, as for classes without images, any.
        rng: of the draw.

    Returns:
        ``(COMPARED, M, c, h, w)`` in [0, 1].
    """
    order = torch.randperm(len(truth.pool.guesses), generator=rng)
    chosen = torch.zeros(COMPARED, len(labels), dtype=torch.int64)
    for label in labels.unique().tolist():
        guesses = (labels == label).nonzero().flatten()
        of_class = order[truth.pool.guess_labels[order] == label] if label >= 0 else order
        pool = of_class if len(of_class) else order
        chosen[:, guesses] = pool[torch.arange(COMPARED * len(guesses)) % len(pool)].view(COMPARED, -1)
    return truth.pool.guesses[chosen]


def _problem(ground: AttackContext, plan: AttackPlan, case: Case, targets: tuple[TargetId, ...]) -> AttackProblem:
    device = ground.source.device
    observations, knowledge = case.observations, case.knowledge
    return AttackProblem(observations, knowledge, targets, plan.seed, device, plan.chunk_rows, trained=ground.trained)


# ---------------------------------------------------------------- records


def _about(ground: AttackContext, plan: AttackPlan, job: Job, command: str) -> About:
    case, source = ground.case_for(job), ground.source
    more: dict[str, Any] = {"redacted": plan.redact}
    if isinstance(source, RunSource):
        summary = source.run.summary
        more |= {"run_accuracy": summary.accuracy, "communication": summary.communication}
    return About(
        **dict(described(ground, plan, job.name, job.attack, case.knowledge.card, command)),
        caveat=job.attack.caveat(_problem(ground, plan, case, case.targets)),
        budget=None if job.budget is None else Budget(field=str(job.attack.budget), value=job.budget),
        device=str(source.device),
        **more,
    )


def described(
    ground: AttackContext, plan: AttackPlan, name: str, attack: Declared, card: ThreatModel, command: str
) -> Provenance:
    """Return the part of a record that says how it was made."""
    source = ground.source.described(plan.round)
    return Provenance(
        target=plan.target,
        attack=name,
        attack_version=attack.version,
        knowledge=card,
        seed=plan.seed,
        upload=upload_facts(plan.target, defended=bool(source.get("defenses"))),
        options=plain(attack),
        reach=_reach_facts(plan, ground.source),
        premise=ground.premise,
        command=command,
        **source,
    )


def upload_facts(target: str, *, defended: bool = False) -> Upload:
    """Return the facts of a kind of upload that records hold."""
    separate = target in SEPARATE and not defended
    if target in CLASS_MEANS | MIXTURES:
        return Upload(vectors="class prototypes", separate=separate)
    if target in OF_IMAGES | LAYERS:
        return Upload(vectors="representations", separate=separate)
    return Upload(separate=separate)


def _reach_facts(plan: AttackPlan, source: Source) -> Reach | None:
    """Return the facts of a setting of a sweep for records; None where a plan is on none."""
    if plan.reach is None or not isinstance(source, RunSource):
        return None
    federation = source.federation
    sizes = max((step_sizes(federation, setup.client) for setup in federation.clients), key=sum)
    return Reach(
        setting=plan.reach.name,
        label=plan.reach.label,
        words=plan.reach.words,
        place=plan.series.index(plan.reach),
        series=tuple(work.label for work in plan.series),
        steps=len(sizes),
        images=sum(sizes),
    )
