"""An attack of anybody's, run on uploads that carry nothing and on uploads as they are: how often a leak is claimed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedpriv.attacks import ATTACKS
from fedpriv.attacks.contract import Attack
from fedpriv.attacks.infer.contract import Inference
from fedpriv.calibration.rates import Rate, counted, table
from fedpriv.calibration.simulated import about, inferred
from fedpriv.calibration.world import NULLS, Kind, Upload, World, raw
from fedpriv.scoring.judgement import judge
from fedpriv.scoring.records import InferenceResult, ReconstructionRecord
from fedpriv.scoring.score import score
from fedpriv.util.errors import UserError
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


def calibrate(
    attack: Attack | Inference | str,
    *,
    kind: Kind = "representation",
    pages: int = 40,
    clients: int = 8,
    targets: int = 2,
    seed: int = 0,
) -> Calibration:
    """Run an attack on small simulated federations whose truth is known, and count what a page says of it.

    Every page holds one attack and its control on permuted uploads. Images are 6 x 6 and grey, of four classes; the
    extractor is granted. In every second federation clients have a look of their own. Nulls: uploads of the same mean and
    covariance as representations of the class, another client's, another data set's, and the class alone. A claim on any
    of them is false.

    Args:
        attack: an attack or inference with its options, or a name, ``package.module:NAME`` too, for one without any.
        kind: of upload: representation or prototype.
        pages: federations for each null.
        clients: of each, at least five, since fewer support no claim.
        targets: of each client, of an attack that returns images; 1 to 4.
        seed: of everything drawn.

    Returns:
        Rates with their intervals; printed, a table.

    Raises:
        UserError: when the attack is not on this kind of upload, or a number does not fit.
    """
    made = ATTACKS.load(attack)() if isinstance(attack, str) else attack
    if kind not in made.targets or kind not in ("representation", "prototype"):
        raise UserError(
            f"kind: {made.name!r} is not calibrated on {kind} uploads; expected representation or prototype"
        )
    if pages < 1 or clients < 5 or not 1 <= targets <= 4:
        raise UserError(
            f"pages {pages}, clients {clients}, targets {targets}: expected at least 1, at least 5, and from 1 to 4"
        )

    def claimed(name: str, upload: Upload) -> Rate:
        worlds = (
            World(derive_seed(seed, "own", name, page), (targets,) * clients, kind, page % 2 == 1)
            for page in range(pages)
        )
        return counted(judge(_record(made, world, upload)).claims != () for world in worlds)

    return Calibration(
        made.name, kind, {name: claimed(name, upload) for name, upload in NULLS.items()}, claimed(RAW, raw)
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
