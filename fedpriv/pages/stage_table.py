"""The same attack on the same run at several stages of training, side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedpriv.pages.labels import upload_title
from fedpriv.scoring.convergence import convergence, objective
from fedpriv.scoring.floors import LABELS
from fedpriv.scoring.records import ReconstructionRecord
from fedpriv.scoring.records.made import Stage
from fedpriv.scoring.storage import AttackRecord, scored
from fedpriv.util.config import plain


@dataclass(frozen=True)
class StageRow:
    """One stage.

    Attributes:
        stage: its name.
        round: its round, as ``2 of 30``.
        accuracy: pooled accuracy of the run after local training in that round, in [0, 1]; None where it was not taken.
        rounds_seen: what the attack used.
        psnr: mean PSNR in dB.
        floor: mean PSNR of the floor in dB, and which it is.
        advantage: mean, dB.
        interval: its 95 % interval over clients, or groups of them where these were declared; or None.
        converged: share of targets.
        specific: share of targets of a single image whose fit is specific; None where it was not measured.
        objective: median, as a table shows it.
    """

    stage: str
    round: str
    accuracy: float | None
    rounds_seen: int
    psnr: float
    floor: tuple[float, str]
    advantage: float
    interval: tuple[float, float] | None
    converged: float
    specific: float | None
    objective: str


@dataclass(frozen=True)
class StageTable:
    """An attack at several stages of one run, in the order of training; the card is the same but for rounds seen."""

    name: str
    rows: tuple[StageRow, ...]


def stage_tables(attack_records: Sequence[AttackRecord]) -> list[StageTable]:
    """Return a table for every attack that was run on two stages or more of one run, in the order given."""
    return [
        StageTable(title_of(members[0][1]), tuple(_row(stage, scored(attack)) for stage, attack in members))
        for members in along_training(attack_records, by_number=False)
    ]


def along_training(
    attack_records: Sequence[AttackRecord], *, by_number: bool
) -> list[list[tuple[Stage, AttackRecord]]]:
    """Return, for every attack that was run at two moments or more of one run, these moments in the order of training.

    Args:
        attack_records: scored attacks.
        by_number: rounds that were asked for by their number, instead of stages of training.
    """
    together: dict[str, list[tuple[Stage, AttackRecord]]] = {}
    for attack in attack_records:
        stage = scored(attack).stage
        if stage is not None and stage.name.startswith("round-") is by_number:
            together.setdefault(_apart_from_stage(attack), []).append((stage, attack))
    ordered = [sorted(members, key=lambda member: member[0].round) for members in together.values()]
    return [members for members in ordered if len(members) > 1]


def title_of(attack: AttackRecord) -> str:
    """Return an attack with its target, method, defense and data set."""
    about = attack.about
    return f"{about.attack} on {about.target} uploads of {upload_title(about)}, {about.dataset}"


def _apart_from_stage(attack: AttackRecord) -> str:
    record, about = scored(attack), attack.about
    card = plain(replace(record.knowledge, rounds_seen=1))
    group = [record.target, record.attack, record.method, record.dataset, record.seed, card]
    return json.dumps([group, plain(about.run), plain(about.options)], sort_keys=True)


def _row(stage: Stage, record: ReconstructionRecord) -> StageRow:
    gain, search = record.advantage_db, convergence(record)
    best = gain.best_floor
    return StageRow(
        stage=stage.name,
        round=f"{stage.round} of {stage.of}",
        accuracy=stage.accuracy.get("after_training"),
        rounds_seen=record.knowledge.rounds_seen,
        psnr=record.metrics.psnr_db.mean,
        floor=(record.image_floors[best].psnr_db, LABELS.get(best, best)),
        advantage=gain.mean,
        interval=gain.ci95,
        converged=search.converged,
        specific=search.specific,
        objective=objective(search.objective),
    )
