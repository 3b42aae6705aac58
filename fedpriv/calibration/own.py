"""An attack of anybody's, run on uploads that carry nothing and on uploads as they are: how often a leak is claimed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedpriv.attacks.contract import Attack
from fedpriv.attacks.inference.base import Inference
from fedpriv.calibration.rates import Rate, counted, table
from fedpriv.calibration.simulated import about, inferred
from fedpriv.calibration.world import NULLS, Kind, Upload, World, raw
from fedpriv.scoring.judgement import judge
from fedpriv.scoring.records import InferenceResult, ReconstructionRecord
from fedpriv.scoring.score import score
from fedpriv.util.seeds import derive_seed

RAW = "the upload itself"


@dataclass(frozen=True)
class Calibration:
    """Rate at which a page claims that an attack finds a leak.

    Attributes:
        attack, kind: what was run on which kind of upload.
        false: by what the uploads were that carry nothing.
        power: on uploads as they are.
    """

    attack: str
    kind: str
    false: dict[str, Rate]
    power: Rate

    def __str__(self) -> str:
        """A Markdown table."""
        return rates_table([self])


def calibrate_drawn(
    attack: Attack | Inference, *, kind: Kind, pages: int, clients: int, targets: int, seed: int
) -> Calibration:
    """Run an attack on simulated federations whose uploads are drawn, and count what a page says of it.

    Args:
        attack: an attack or inference with its options.
        kind: of upload.
        pages: federations for each null.
        clients: of each.
        targets: of each client, of an attack that returns images.
        seed: of everything drawn.
    """

    def claimed(name: str, upload: Upload) -> Rate:
        worlds = (
            World(derive_seed(seed, "own", name, page), (targets,) * clients, kind, page % 2 == 1)
            for page in range(pages)
        )
        return counted(judge(_record(attack, world, upload)).claims != () for world in worlds)

    return Calibration(
        attack.name, kind, {name: claimed(name, upload) for name, upload in NULLS.items()}, claimed(RAW, raw)
    )


def _record(attack: Attack | Inference, world: World, upload: Upload) -> ReconstructionRecord | InferenceResult:
    seen = upload(world, 0)
    if isinstance(attack, Inference):
        return inferred(world, attack, seen, attack.name)
    evidence = world.evidence(seen)
    shared: dict[str, Any] = {"kind": world.kind, "seed": world.seed}
    found = attack(evidence.observations, evidence.knowledge, evidence.targets, **shared)
    assert evidence.permuted is not None
    wrong = attack(evidence.permuted, evidence.knowledge, evidence.targets, **shared)
    return score(found, world.truths(evidence), wrong, seed=world.seed, about=about(world, attack.name))


def rates_table(found: Sequence[Calibration]) -> str:
    """A Markdown table of several calibrations."""
    rows = [
        {"attack": one.attack, "upload": one.kind, "uploads": name, "pages": rate.trials, "claims a leak (%)": rate}
        for one in found
        for name, rate in (one.false | {RAW: one.power}).items()
    ]
    return table(rows)
