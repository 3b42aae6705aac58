"""One attack from the evidence to its folder: run, with its control, then scored against the truth, saved and drawn."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.experiment.fits import with_fits
from fedpriv.experiment.plan import PARTS
from fedpriv.experiment.suite import Execution, are_kept, attack_in_pieces, forget_pieces
from fedpriv.pages.grid import grid_png
from fedpriv.scoring.redaction import OMIT
from fedpriv.scoring.score import score
from fedpriv.scoring.storage import AttackRecord, save_attack
from fedpriv.util.files import mark, write_bytes
from fedpriv.util.listener import Listener

if TYPE_CHECKING:
    from fedpriv.attacks.observation import Reconstruction
    from fedpriv.evidence.gather import Evidence
    from fedpriv.evidence.truth import Truth
    from fedpriv.experiment.plan import Job
    from fedpriv.scoring.judge import ClassEvaluator
    from fedpriv.scoring.records import About, ReconstructionRecord


@dataclass(frozen=True)
class Answers:
    """The truths that an attack is scored against, and the part of its record that says how it was made.

    Attributes:
        truths: one a target.
        about: how it was made: ``about.json``.
        judge: an independent classifier of class images, or None.
    """

    truths: tuple[Truth, ...]
    about: About
    judge: ClassEvaluator | None = None


def attack_and_score(
    directory: Path,
    job: Job,
    evidence: Evidence,
    execution: Execution,
    look_up: Callable[[], Answers],
    listener: Listener,
) -> ReconstructionRecord:
    """Attack, attack permuted uploads where the job has a control and there is another client, score, save and draw.

    Args:
        directory: of the attack's results.
        job: the attack.
        evidence: what the attack is handed.
        execution: how it is computed.
        look_up: called only after the attacks: none runs with the truth in reach.
        listener: hears of the progress.

    Returns:
        The record.
    """
    reconstruction, permuted = (search(directory, job, evidence, execution, part, listener) for part in PARTS)
    assert reconstruction is not None
    found = look_up()
    if permuted is not None:
        reconstruction = with_fits(job.attack, reconstruction, permuted, evidence, found.truths, execution)
    about = found.about.model_copy(update={"redacted": execution.redact})
    record = score(reconstruction, found.truths, permuted, seed=execution.seed, about=about, judge=found.judge)
    whole = AttackRecord(directory, reconstruction, permuted, found.truths, about, record)
    draw(whole)
    save_attack(
        directory,
        reconstruction=reconstruction,
        truths=found.truths,
        about=about,
        permuted=permuted,
        metrics=record,
        judge=found.judge,
    )
    forget_pieces(directory)
    return record


def search(
    directory: Path, job: Job, evidence: Evidence, execution: Execution, part: str, listener: Listener
) -> Reconstruction | None:
    """Carry out a part of an attack (:data:`fedpriv.experiment.plan.PARTS`), or read back what is kept of it.

    Returns:
        What it finds; None for the control of a job without one, or where there is no other client.
    """
    control = part == PARTS[1]
    observations = evidence.permuted if control and job.control else None if control else evidence.observations
    if observations is None:
        return None
    mark(directory, "attack")
    title = f"{directory.name} on {'permuted uploads' if control else execution.kind}"
    there = are_kept(directory, part, len(evidence.targets), execution)
    with contextlib.nullcontext() if there else listener.progress(title) as report:
        return attack_in_pieces(
            job.attack, observations, evidence.targets, evidence.knowledge, execution, directory, part, report
        )


def draw(attack: AttackRecord) -> None:
    """Draw the picture of a scored attack into its folder, or remove it where the rule is that there is none."""
    place = attack.directory / "grid.png"
    if attack.about.redacted == OMIT:
        place.unlink(missing_ok=True)
    else:
        write_bytes(place, grid_png(attack))
