"""An attack on trained federations whose private images are exchanged for others: what a page then claims is false."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.calibration.drawn_images import write_images
from fedpriv.calibration.own import RAW
from fedpriv.experiment.execution import attack_all, described, open_ground
from fedpriv.experiment.federation import prepare
from fedpriv.experiment.federation_settings import named_config, sets_images_aside
from fedpriv.experiment.first_run import quick_settings
from fedpriv.experiment.inference import case_of, measure, measure_all
from fedpriv.experiment.plan import granted
from fedpriv.experiment.read_card import parse_card
from fedpriv.experiment.training import train_run
from fedpriv.util.errors import UserError
from fedpriv.util.listener import SILENT
from fedpriv.util.seeds import derive_seed

if TYPE_CHECKING:
    from fedpriv.attacks.contract import Attack
    from fedpriv.attacks.inference.base import Inference
    from fedpriv.experiment.execution import AttackContext
    from fedpriv.experiment.plan import AttackPlan
    from fedpriv.federation.prepared import Federation
    from fedpriv.federation.run_directory import RunConfig
    from fedpriv.scoring.records import InferenceResult

IMAGES = "another client's"
"""Null: private images exchanged for others of the same classes."""

DATA_SET = "another data set's"
"""Null: the same for images of another data set."""

CLASSES = "another division's classes"
"""Null of a question about classes, which other images leave as they are: what clients hold in another division."""

PUBLIC = 60
"""Images on which clients say what they make of them, where a method has such."""

STRANGERS = 0.4
"""Share of every class that no client holds, half of it the attacker's."""


@dataclass(frozen=True)
class Ground:
    """An attack, and the federations that it is calibrated on.

    Attributes:
        attack: with its options.
        kind: of upload.
        method: which uploads it.
        clients: of each federation.
        targets: of each client, of an attack that returns images.
        knowledge: changes to the knowledge card.
        settings: of the federations, beside the images, which are drawn.
    """

    attack: Attack | Inference
    kind: str
    method: str
    clients: int
    targets: int
    knowledge: Mapping[str, Any]
    settings: Mapping[str, Any]

    def config(self, data: Path, seed: int) -> RunConfig:
        """Return the configuration of a federation on a folder of images.

        Raises:
            UserError: when a setting is unknown or out of range.
        """
        own = quick_settings(self.kind) | {"strangers": STRANGERS, "clients": self.clients, "capture": "all"}
        own |= {"public": PUBLIC} if "public" in own else {}
        own |= {"keep": "all"} if self.attack.needs.every_extractor else {}
        return named_config(self.method, own | dict(self.settings) | {"dataset": "folder", "data_dir": data}, seed)


def nulls_of(attack: Attack | Inference) -> tuple[str, ...]:
    """Return the names of the nulls that an attack is held to."""
    return (CLASSES,) if attack.result == "scores" and attack.asks == "classes" else (IMAGES, DATA_SET)


def claims_of_page(ground: Ground, seed: int) -> dict[str, bool]:
    """Train one federation, attack it as it is and with its secrets exchanged, and return of which a page claims a leak.

    Everything that the server sees is of the one federation that was trained. In the exchanged ones the private images, and
    those of the attacker and of strangers, are others under the same labels, or clients hold other classes: what an attack
    finds of these it does not know from any upload. Attack, control, guesses and wording are those of ``fedpriv attack``.

    Args:
        ground: what is calibrated.
        seed: of the images, the run, the attack and its scores.

    Returns:
        By :func:`nulls_of`, and the upload as it is under :data:`fedpriv.calibration.own.RAW`.

    Raises:
        UserError: when the attack does not fit the federation.
    """
    seed %= 2**32  # data sets are divided by a generator that takes no more
    patterns, others = derive_seed(seed, "patterns"), derive_seed(seed, "other images")
    with tempfile.TemporaryDirectory(prefix="fedpriv-") as name:
        home = Path(name)
        config = ground.config(write_images(home / "own", derive_seed(seed, "images"), patterns), seed)
        train_run(home / "run", config, device="cpu")
        truths = {RAW: config}
        for null in nulls_of(ground.attack):
            if null == CLASSES:
                truths[null] = replace(config, division_seed=derive_seed(seed, "division") % 2**32)
                continue
            drawn = patterns if null == IMAGES else derive_seed(seed, "other patterns")
            folder = write_images(home / null, others, drawn)
            truths[null] = replace(config, data_dir=str(folder))
        return {null: _claims(ground, home, null, truth, seed) for null, truth in truths.items()}


def _claims(ground: Ground, home: Path, null: str, truth: RunConfig, seed: int) -> bool:
    """True if a page claims that the attack finds in the uploads of the run what clients hold by another configuration."""
    import torch

    from fedpriv.experiment.asked import plan_of
    from fedpriv.scoring.judgement import judge
    from fedpriv.scoring.redaction import OMIT

    made, folder = ground.attack, home / f"attack, {null}"
    card = parse_card(ground.knowledge, images_aside=sets_images_aside(truth))
    chosen, _ = granted({made.name: made}, [made.name], ground.kind, card, None)
    wanted = {"targets": ground.targets * ground.clients}
    plan = plan_of(ground.kind, chosen, card, (), wanted, seed=seed)
    plan = replace(plan, device="cpu", redact=OMIT)  # nobody looks at pictures
    opened = open_ground(home / "run", plan)
    exchanged = prepare(truth, torch.device("cpu"))
    if null == CLASSES:
        return bool(judge(_inferred(folder, opened, exchanged, plan)).claims)
    opened = replace(opened, federation=exchanged)
    records = [*attack_all(folder, opened, plan, command="").values()]
    scores = [*measure_all(folder, opened, plan, command="", named=[made.name]).values()]
    if not records and not scores:
        raise UserError(f"{made.name!r} found nothing to do on {ground.kind} uploads of {ground.method}")
    return any(judge(found).claims for found in (*records, *scores))


def _inferred(folder: Path, opened: AttackContext, exchanged: Federation, plan: AttackPlan) -> InferenceResult:
    """Return the record of a question about classes on the run, answered by who holds what in another federation."""
    from fedpriv.evidence.held import held_in_run

    (name, inference), *_ = plan.inferences.items()
    case = replace(case_of(opened, plan, inference, None), truth=held_in_run(exchanged))
    about = described((opened.run, opened.federation), plan, name, inference, plan.card, (None, None), command="")
    record = measure(folder, inference, case, about, strict=True, listener=SILENT)
    assert record is not None  # strict
    return record
