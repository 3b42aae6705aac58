"""Carry out a plan of attacks on a run: evidence, attacks, control, scores, pictures."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.experiment.plan import AttackPlan, Job
from fedpriv.util.config import plain
from fedpriv.util.device import pick_device
from fedpriv.util.errors import UserError
from fedpriv.util.listener import SILENT, Listener
from fedpriv.wire.kinds import CLASS_MEANS, LAYERS, MIXTURES, OF_IMAGES, SEPARATE

if TYPE_CHECKING:
    from fedpriv.attacks.contract import Declared
    from fedpriv.attacks.observation import KnowledgeCard
    from fedpriv.attacks.trained import Trained
    from fedpriv.evidence.gather import Evidence
    from fedpriv.evidence.stages import Stage
    from fedpriv.experiment.suite import Execution
    from fedpriv.federation.prepared import Federation
    from fedpriv.federation.run_directory import RunDirectory
    from fedpriv.scoring.records import About, Provenance, ReconstructionRecord
    from fedpriv.scoring.records.made import Reach, Training, Upload
    from fedpriv.scoring.records.made import Stage as StageFacts

__all__ = ["AttackContext", "AttackPlan", "attack_all", "collected", "open_ground", "prepare_ground", "without_points"]


@dataclass(frozen=True)
class AttackContext:
    """A finished run, prepared again, what each attack is handed of it, and what attackers trained so far.

    Attributes:
        run: finished.
        federation: prepared again.
        plan: by which evidence is collected.
        evidence: by attack and stage, what is collected so far.
        trained: substitutes for extractors and decoders, which all attacks, controls and budgets share.
        scorers: strangers and their representations, which all scores share and no attack is handed.
    """

    run: RunDirectory
    federation: Federation
    plan: AttackPlan
    evidence: dict[tuple[str, Stage | None], Evidence]
    trained: Trained
    scorers: Trained

    def evidence_for(self, job: Job) -> Evidence:
        """Return the evidence that a job's attack is handed, collected when it is first asked for.

        Raises:
            UserError: when the run does not have it.
        """
        from fedpriv.evidence.gather import gather

        key, plan = (job.name, job.stage), self.plan
        if key not in self.evidence:
            stored = sum(job.round is None or number <= job.round for number in self.run.captured_rounds())
            self.evidence[key] = gather(
                self.run,
                self.federation,
                plan.target,
                plan.card_for(job, stored),
                n_targets=plan.n_targets or job.attack.most_targets,
                seed=plan.seed,
                round_=job.round,
                unit=job.attack.unit,
                select=job.attack.select,
                trained=self.trained,
                every_extractor=job.attack.needs.every_extractor,
            )
        return self.evidence[key]


def open_ground(run_path: Path, plan: AttackPlan) -> AttackContext:
    """Open a run for a plan of attacks.

    Raises:
        UserError: when the run is unfinished or damaged.
    """
    from fedpriv.attacks.trained import Trained
    from fedpriv.experiment.federation import prepare
    from fedpriv.federation.run_directory import RunDirectory

    run = RunDirectory.open(run_path)
    run.require_complete()
    federation = prepare(run.config, pick_device(plan.device), download=plan.download)
    return AttackContext(run, federation, plan, {}, Trained(), Trained())


def prepare_ground(run_path: Path, plan: AttackPlan) -> AttackContext:
    """Open a run and collect the evidence for each attack.

    Raises:
        UserError: when the run is unfinished or damaged, or does not have what the plan asks for.
    """
    return collected(open_ground(run_path, plan))


def collected(ground: AttackContext) -> AttackContext:
    """Collect the evidence for each attack of a ground's plan, and return the ground.

    Raises:
        UserError: when the run does not have what the plan asks for.
    """
    plan = ground.plan
    for job in plan.jobs():
        ground.evidence_for(job)
    if (
        plan.rounds_seen
        and not plan.stages
        and any(made.uses_rounds_on(plan.target) for made in plan.inferences.values())
    ):
        from fedpriv.evidence.gather import rounds_up_to

        rounds_up_to(ground.run, plan.round, plan.rounds_seen)
    return ground


def without_points(ground: AttackContext, named: Collection[str] = ()) -> tuple[AttackContext, tuple[str, ...]]:
    """Leave attacks that return images out where samples are points of the plane; inferences stay.

    Args:
        ground: the run, with the plan.
        named: attacks that the user asked for.

    Returns:
        The ground with what is left of its plan, and a line for each attack that is left out.

    Raises:
        UserError: when one was named.
    """
    dataset, attacks = ground.federation.data.dataset, ground.plan.attacks
    if dataset.samples.images[:1].numel() != 2 or not attacks:
        return ground, ()
    reasons = {
        name: f"attack {name!r} returns images, and data set {dataset.name!r} has none: its samples are points of the plane"
        for name in attacks
    }
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
    """Run every job that has no result yet, score it, and save it.

    Args:
        folder: holds one folder a job.
        ground: the run and the evidence for this plan.
        plan: what to run.
        command: that does the same again; goes into the records.
        listener: hears of the progress.
        refused: told in a line of an attack that the upload of a further setting of a reach is beyond, which is left out.

    Returns:
        The records by folder, in the order in which the jobs were run.
    """
    from fedpriv.experiment.suite import forget_pieces
    from fedpriv.scoring.storage import is_attack_directory, load_metrics

    results: dict[Path, ReconstructionRecord] = {}
    for job in plan.jobs():
        directory = folder / job.folder
        done = is_attack_directory(directory)
        if done:
            forget_pieces(directory)  # where a crash came between
        try:
            results[directory] = (
                load_metrics(directory) if done else _attack(directory, ground, plan, job, command, listener)
            )
        except UserError as error:
            if done or not plan.suffix or plan.reach is None:
                raise
            refused(f"attack {job.name!r} at {plan.reach.words}: {error}")
    return results


def attack_part(
    folder: Path, ground: AttackContext, plan: AttackPlan, part: str, *, listener: Listener = SILENT
) -> None:
    """Carry out a part of every job that has no result yet, and keep what it finds for whoever does the rest.

    What the upload of a further setting of a reach is beyond is left to them too.

    Args:
        folder: as of :func:`attack_all`.
        ground: likewise.
        plan: likewise.
        part: one of :data:`fedpriv.experiment.plan.PARTS`.
        listener: hears of the progress.
    """
    from fedpriv.experiment.scored import search
    from fedpriv.scoring.storage import is_attack_directory

    for job in plan.jobs():
        if is_attack_directory(folder / job.folder):
            continue
        with contextlib.suppress(UserError):
            search(
                folder / job.folder, job, ground.evidence_for(job), _execution(ground, plan, listener), part, listener
            )


def _execution(ground: AttackContext, plan: AttackPlan, listener: Listener) -> Execution:
    from fedpriv.experiment.suite import Execution

    return Execution(
        plan.seed,
        ground.federation.server.device,
        plan.chunk_rows,
        kind=plan.target,
        trained=ground.trained,
        say=listener.say,
        redact=plan.redact,
        numerics=plan.numerics,
    )


def _attack(
    directory: Path, ground: AttackContext, plan: AttackPlan, job: Job, command: str, listener: Listener
) -> ReconstructionRecord:
    from fedpriv.evidence.gather import truths
    from fedpriv.evidence.guesses import with_guesses
    from fedpriv.experiment.scored import Answers, attack_and_score
    from fedpriv.scoring.judge import JUDGED, train_class_evaluator

    run, federation = ground.run, ground.federation
    evidence = ground.evidence_for(job)

    def look_up() -> Answers:
        unit, keep = job.attack.unit, ground.scorers
        found = truths(run, federation, plan.target, evidence.targets, seed=plan.seed, unit=unit, kept=keep)
        truth = with_guesses(found, evidence, plan.target, unit, device=federation.server.device, kept=keep)
        judge = None
        if job.name in JUDGED:
            with listener.progress("an independent classifier"):
                judge = train_class_evaluator(federation, [target.client for target in evidence.targets], plan.seed)
        return Answers(truth, _about(ground, plan, job, command), judge)

    return attack_and_score(directory, job, evidence, _execution(ground, plan, listener), look_up, listener)


def _about(ground: AttackContext, plan: AttackPlan, job: Job, command: str) -> About:
    from fedpriv.attacks.contract import AttackProblem
    from fedpriv.scoring.records import About
    from fedpriv.scoring.records.made import Budget

    summary = ground.run.summary
    evidence = ground.evidence_for(job)
    asked = AttackProblem(
        evidence.observations, evidence.knowledge, evidence.targets, plan.seed, trained=ground.trained
    )
    card, moment = evidence.knowledge.card, (job.stage, job.round)
    return About(
        **dict(described((ground.run, ground.federation), plan, job.name, job.attack, card, moment, command=command)),
        caveat=job.attack.caveat(asked),
        budget=None if job.budget is None else Budget(field=str(job.attack.budget), value=job.budget),
        run_accuracy=summary.accuracy,
        communication=summary.communication,
        device=str(ground.federation.server.device),
    )


def described(
    attacked: tuple[RunDirectory, Federation],
    plan: AttackPlan,
    name: str,
    attack: Declared,
    card: KnowledgeCard,
    moment: tuple[Stage | None, int | None],
    *,
    command: str,
) -> Provenance:
    """Return the part of a record that says how it was made.

    Args:
        attacked: the run, and its federation prepared again.
        plan: of which it was a part.
        name: of the attack or inference.
        attack: its options, a dataclass.
        card: the knowledge it had.
        moment: stage of training and its round, or None for either.
        command: that does the same again.
    """
    from fedpriv.federation.run_directory import dataset_title
    from fedpriv.scoring.records import Provenance

    run, federation = attacked
    defenses = run.summary.defenses
    return Provenance(
        target=plan.target,
        attack=name,
        attack_version=attack.version,
        method=run.config.method,
        dataset=dataset_title(run.config),
        knowledge=card,
        seed=plan.seed,
        upload=upload_facts(plan.target, defended=bool(defenses)),
        training=_training(run, federation, moment[1]),
        options=plain(attack),
        stage=stage_facts(run, *moment),
        reach=reach_facts(plan, federation),
        run=run.config,
        images=run.summary.images,
        defenses=defenses,
        command=command,
    )


def upload_facts(target: str, *, defended: bool = False) -> Upload:
    """Return the facts of a kind of upload that records hold."""
    from fedpriv.scoring.records.made import Upload

    separate = target in SEPARATE and not defended
    if target in CLASS_MEANS | MIXTURES:
        return Upload(vectors="class prototypes", separate=separate)
    if target in OF_IMAGES | LAYERS:
        return Upload(vectors="representations", separate=separate)
    return Upload(separate=separate)


def _training(run: RunDirectory, federation: Federation, number: int | None) -> Training:
    """Return the accuracy of a run in a round, or at its end, and that of guessing each client's commonest class.

    For a round that was not evaluated stands the newest before it that was, or the first.
    """
    from fedpriv.scoring.records.made import Training

    lines = [row for row in run.rounds() if row.accuracy]
    line = ([row for row in lines if number is None or row.round <= number] or lines[:1])[-1]
    labels = [tests.labels for tests in federation.tests]
    commonest = sum(int(own.bincount().max()) for own in labels if len(own))
    return Training(accuracy=line.accuracy["after_training"].pooled, guess=commonest / max(1, sum(map(len, labels))))


def reach_facts(plan: AttackPlan, federation: Federation) -> Reach | None:
    """Return the facts of a setting of a reach for records; None where a plan is on none."""
    if plan.reach is None:
        return None
    from fedpriv.evidence.client_states import step_sizes
    from fedpriv.scoring.records.made import Reach

    sizes = max((step_sizes(federation, setup.client) for setup in federation.clients), key=sum)
    return Reach(
        setting=plan.reach.name,
        label=plan.reach.label,
        words=plan.reach.words,
        place=plan.series.index(plan.reach),
        series=tuple(one.label for one in plan.series),
        steps=len(sizes),
        images=sum(sizes),
    )


def stage_facts(run: RunDirectory, stage: Stage | None, number: int | None) -> StageFacts | None:
    """Return the facts of a stage for records: its name, its round of how many, and the pooled accuracy at that round."""
    if stage is None or number is None:
        return None
    from fedpriv.scoring.records.made import Stage as StageFacts

    line = next(row for row in run.rounds() if row.round == number)
    accuracy = {when: values.pooled for when, values in line.accuracy.items()}
    return StageFacts(name=stage, round=number, of=run.config.rounds, accuracy=accuracy)
