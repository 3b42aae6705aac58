"""The same attack on the same run at several stages of training, side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedpriv.pages.frontier import defense_label
from fedpriv.pages.labels import upload_title
from fedpriv.scoring.convergence import convergence, objective
from fedpriv.scoring.floors import LABELS
from fedpriv.scoring.ranking import stage_name
from fedpriv.scoring.storage import AttackRecord, scored


@dataclass(frozen=True)
class StageRow:
    """One stage.

    Attributes:
        stage: its name.
        round: its round, as ``2 of 30``.
        accuracy: pooled accuracy of the run after local training in that round, in [0, 1].
        rounds_seen: what the attack used.
        psnr: mean PSNR in dB.
        floor: mean PSNR of the floor in dB, and which it is.
        advantage: mean, dB.
        interval: its 95 % interval, or None.
        converged: share of targets.
        objective: median, as a table shows it.
    """

    stage: str
    round: str
    accuracy: float
    rounds_seen: int
    psnr: float
    floor: tuple[float, str]
    advantage: float
    interval: tuple[float, float] | None
    converged: float
    objective: str


@dataclass(frozen=True)
class StageTable:
    """An attack at several stages of one run, in the order of training; the card is the same but for rounds seen."""

    name: str
    rows: tuple[StageRow, ...]


def stage_tables(found: Sequence[AttackRecord]) -> list[StageTable]:
    """Return a table for every attack that was run on two stages or more of one run, in the order given."""
    together: dict[str, list[AttackRecord]] = {}
    for attack in found:
        if stage_name(scored(attack)) is not None:
            together.setdefault(_apart_from_stage(attack), []).append(attack)
    tables = []
    for members in together.values():
        if len(members) > 1:
            record = scored(members[0])
            upload = upload_title(members[0].about, defense_label(members[0].about.get("run", {})))
            name = f"{record['attack']} on {record['target']} uploads of {upload}, {record['dataset']}"
            ordered = sorted(members, key=lambda attack: int(scored(attack)["stage"]["round"]))
            tables.append(StageTable(name, tuple(_row(attack) for attack in ordered)))
    return tables


def _apart_from_stage(attack: AttackRecord) -> str:
    record = scored(attack)
    own = {key: record[key] for key in ("target", "attack", "method", "dataset", "seed")}
    own["card"] = {key: value for key, value in record["knowledge"].items() if key != "rounds_seen"}
    return json.dumps([own, attack.about.get("run"), attack.about.get("options")], sort_keys=True)


def _row(attack: AttackRecord) -> StageRow:
    record: dict[str, Any] = scored(attack)
    stage, gain, search = record["stage"], record["advantage_db"], convergence(record)
    best = gain["best_floor"]
    return StageRow(
        stage=stage["name"],
        round=f"{stage['round']} of {stage['of']}",
        accuracy=stage["accuracy"]["after_training"],
        rounds_seen=record["knowledge"]["rounds_seen"],
        psnr=record["metrics"]["psnr_db"]["mean"],
        floor=(record["floors"][best]["psnr_db"], LABELS.get(best, best)),
        advantage=gain["mean"],
        interval=None if gain["ci95"] is None else (gain["ci95"][0], gain["ci95"][1]),
        converged=search.share,
        objective=objective(search.objective),
    )
