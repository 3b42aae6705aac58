"""Every attack on trained federations: how often a page claims what it cannot know, and how often what is there.

    OMP_NUM_THREADS=1 python benchmarks/calibration_of_attacks.py --pages 20 --seed 0 --workers 2 --out FOLDER

Federations of eight clients, or 16, on drawn images of 12 x 12 pixels, as of ``fedpriv.calibrate`` with settings: a page is
a federation that is trained, attacked as it is, and attacked with its private images exchanged for others of the same
classes, or of another data set (or, asked for classes, its division for another), while the server sees what it saw. One
line of JSON a page goes to ``FOLDER/pages.jsonl``; a second start goes on with those that are missing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedpriv.attacks.gradients.dlg import DeepLeakage
from fedpriv.attacks.gradients.inverting_gradients import GradientDip, InvertingGradients, LearnedGradients
from fedpriv.attacks.gradients.linear_layer import LinearLayer
from fedpriv.attacks.gradients.mixup import MixtureSeparation
from fedpriv.attacks.gradients.pooled import PooledBatch
from fedpriv.attacks.infer.likelihood_ratio import LikelihoodRatio
from fedpriv.attacks.infer.membership import MembershipInference
from fedpriv.attacks.infer.property import PropertyInference
from fedpriv.attacks.invert.class_inversion import ClassInversion
from fedpriv.attacks.invert.decoder import DecoderInversion
from fedpriv.attacks.invert.generated import GeneratorInversion
from fedpriv.attacks.invert.inversion import DipInversion, PixelInversion
from fedpriv.attacks.invert.joint import JointInversion
from fedpriv.attacks.invert.learned import LearnedInversion
from fedpriv.attacks.invert.paired_logits import PairedLogits
from fedpriv.attacks.invert.simulated import SimulatedInversion
from fedpriv.attacks.priors.denoiser import DenoiserTraining
from fedpriv.attacks.recover.all_rounds import AllRoundsInversion
from fedpriv.attacks.recover.angle_update import AngleUpdate
from fedpriv.attacks.recover.averaging import AveragedInversion
from fedpriv.attacks.recover.disaggregation import Disaggregation, LayerDisaggregation
from fedpriv.attacks.recover.head_update import HeadUpdate
from fedpriv.attacks.recover.transformation import TransformationSearch
from fedpriv.attacks.recover.unmixing import UnmixedInversion
from fedpriv.attacks.recover.unmixing_once import PriorUnmixing
from fedpriv.calibration.drawn_images import SIDE
from fedpriv.calibration.own import RAW
from fedpriv.calibration.rates import counted, table
from fedpriv.experiment.calibrated import CLASSES, DATA_SET, IMAGES, Ground, claims_of_page
from fedpriv.methods import default_method
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed

CLIENTS = 8


class Smooth(nn.Module):
    """A generator of smooth grey images, as those are that are drawn: codes ``(n, 16)`` on a coarse grid."""

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """Return images ``(n, 1, 12, 12)`` in [0, 1]."""
        coarse = codes.view(-1, 1, 4, 4)
        return (
            0.5 + 0.25 * nn.functional.interpolate(coarse, size=(SIDE, SIDE), mode="bilinear", align_corners=False)
        ).clamp(0, 1)


@dataclass(frozen=True)
class Line:
    """An attack on a kind of upload.

    Attributes:
        attack: with few steps.
        kind: of upload.
        settings: of the federations, and ``method`` where it is not the usual one.
        knowledge: changes to the knowledge card.
        note: what sets it apart from another line of the same attack and kind.
        targets: of each client, of an attack that returns images.
        clients: of a federation.
    """

    attack: Any
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    knowledge: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    targets: int = 1
    clients: int = CLIENTS

    @property
    def name(self) -> str:
        """Unique."""
        return f"{self.attack.name} on {self.kind}" + (f", {self.note}" if self.note else "")

    def ground(self) -> Ground:
        """Return what it is calibrated on."""
        own = dict(self.settings)
        method = own.pop("method", None) or default_method(self.kind)
        assert method is not None
        return Ground(self.attack, self.kind, method, self.clients, self.targets, self.knowledge, own)


QUICK = DenoiserTraining(iterations=60, width=8)
ROUNDS = {"rounds": 4}
ONE_IMAGE = {"models": "lenet-sigmoid"}
SUMMED = ONE_IMAGE | {"defense": ("secure-aggregation",)}
FEW = {"strangers": 0.8, "alpha": 10.0}
FEWEST = FEW | {"strangers": 0.9}
ONE_CLASS, ONE_IMAGE_EACH = {"option": ("mechanism=RSP",)}, {"option": ("mechanism=RSR",)}
IN_TURN = FEW | {"participation": 0.5, "rounds": 24, "batch_size": 100, "local_steps": None, "lr": 0.001, "keep": "all"}
SETTLED = {"rounds": 30, "lr": 0.001}
IMAGES_OF_VECTORS = (
    Line(DipInversion(iterations=100), "representation", ROUNDS),
    Line(PixelInversion(iterations=200), "representation", ROUNDS),
    Line(DecoderInversion(iterations=200, refine_steps=100), "representation", ROUNDS),
    Line(LearnedInversion(iterations=60, denoiser=QUICK), "representation", ROUNDS),
    Line(GeneratorInversion(iterations=100, source=f"{__name__}:Smooth", code=16), "representation", ROUNDS),
    Line(
        SimulatedInversion(iterations=100, simulators=2, batch_size=32), "representation", ROUNDS, {"extractor": "none"}
    ),
    Line(AveragedInversion(iterations=100), "representation", {"rounds": 6, "defense": ("noise:scale=0.3",)}),
    Line(AllRoundsInversion(iterations=100, rounds=3), "representation", ROUNDS),
    Line(DipInversion(iterations=100), "prototype", FEW | ROUNDS, targets=4),
    Line(JointInversion(iterations=40), "prototype", FEW | ROUNDS, targets=4),
    Line(PixelInversion(iterations=200), "prototype", FEW | ROUNDS, targets=4),
    Line(DecoderInversion(iterations=200, refine_steps=100), "prototype", FEW | ROUNDS),
    Line(LearnedInversion(iterations=20, denoiser=QUICK), "prototype", FEW | ROUNDS),
    Line(
        AveragedInversion(iterations=400), "prototype", FEW | {"rounds": 12, "defense": ("noise:scale=0.1",)}, targets=4
    ),
    Line(AllRoundsInversion(iterations=100, rounds=3), "prototype", FEW | ROUNDS),
    Line(DipInversion(iterations=100), "entangled", FEW | ROUNDS),
    Line(PixelInversion(iterations=200), "entangled", FEW | ROUNDS),
    Line(DipInversion(iterations=100), "entangled", FEW | ROUNDS | ONE_IMAGE_EACH, note="one image"),
    Line(PixelInversion(iterations=400), "entangled", FEW | ROUNDS | ONE_IMAGE_EACH, note="one image"),
    Line(UnmixedInversion(), "entangled", FEW | SETTLED, targets=4),
    Line(PriorUnmixing(), "entangled", FEW | SETTLED, targets=4),
    Line(PriorUnmixing(), "entangled", FEW | ROUNDS | ONE_CLASS, note="one class", targets=4),
)
BATCHES = (
    Line(DeepLeakage(outer_steps=20), "model"),
    Line(InvertingGradients(iterations=150), "model"),
    Line(InvertingGradients(iterations=150), "model", {"models": "small-cnn", "batch_size": 4}, note="four images"),
    Line(GradientDip(iterations=100), "model"),
    Line(LearnedGradients(iterations=100, denoiser=QUICK), "model", {"models": "small-cnn"}),
    Line(LinearLayer(iterations=100, restarts=1, draws=2000), "model", {"models": "small-mlp"}),
    Line(DeepLeakage(outer_steps=20), "small-model"),
    Line(InvertingGradients(iterations=150), "small-model"),
    Line(LinearLayer(iterations=100, restarts=1, draws=2000), "small-model"),
    Line(InvertingGradients(iterations=150), "extractor"),
    Line(DeepLeakage(outer_steps=20), "extractor"),
    Line(InvertingGradients(iterations=150), "low-rank-model"),
    Line(LinearLayer(iterations=100, restarts=1, draws=2000), "low-rank-model"),
    Line(MixtureSeparation(outer_steps=20), "model", ONE_IMAGE | {"batch_size": 3, "defense": ("mixup:images=3",)}),
    Line(TransformationSearch(search="dlg", iterations=300), "model", ONE_IMAGE | {"defense": ("transform",)}),
    Line(PooledBatch(search="dlg", iterations=200), "model", SUMMED),
    Line(Disaggregation(iterations=400), "model", IN_TURN | SUMMED, clients=16),
    Line(
        LayerDisaggregation(iterations=300),
        "classifier",
        IN_TURN | {"defense": ("secure-aggregation",)},
        targets=4,
        clients=16,
    ),
    Line(HeadUpdate(iterations=100), "classifier"),
    Line(HeadUpdate(iterations=100), "classifier", {"batch_size": 4}, note="four images"),
    Line(AngleUpdate(iterations=100), "angle-matrix"),
    Line(ClassInversion(iterations=300), "logits", FEWEST | {"rounds": 10}, targets=4),
    Line(PairedLogits(iterations=100), "public-logits", ROUNDS),
)
SHOWN = ("representation", "prototype", "entangled", "logits", "public-logits", "kernel")
WEIGHTS = ("model", "small-model", "extractor", "low-rank-model", "classifier", "angle-matrix")
LONG = FEW | {"batch_size": 5, "epochs": 40, "rounds": 4, "lr": 0.1}
HEART = FEWEST | {"batch_size": 5, "epochs": 100, "rounds": 1, "lr": 0.1, "local_steps": None, "keep": "all"}
CLIPPED = {"defense": ("clip:bound=1",)}
QUANTISED = {"defense": ("quantise",)}
MIXED = {"defense": ("mixup:images=2",)}
ROUND_BY_ROUND = LONG | {"epochs": 5, "rounds": 12, "keep": "all"}
TRAINED = LONG | {"local_steps": None, "rounds": 3, "keep": "all"}
EPOCHS = {"batch_size": 5, "epochs": 3, "local_steps": None, "rounds": 3, "lr": 0.1, "keep": "all"}
SPREAD = ROUNDS | {"alpha": 1.0, "strangers": 0.3}
ASKED = PropertyInference(shadow_clients=16, epochs=10, steps=100)
QUESTIONS = (
    *(Line(MembershipInference(candidates=20), kind, LONG) for kind in SHOWN),
    Line(MembershipInference(candidates=20), "entangled", LONG | ONE_CLASS, note="one class", clients=16),
    Line(MembershipInference(candidates=20), "prototype", LONG | CLIPPED, note="clip"),
    Line(MembershipInference(candidates=20), "logits", LONG | QUANTISED, note="quantised"),
    *(
        Line(MembershipInference(candidates=20), kind, ROUND_BY_ROUND, note="rounds")
        for kind in ("prototype", "entangled")
    ),
    *(Line(MembershipInference(candidates=20), kind, TRAINED, note="epochs") for kind in WEIGHTS),
    Line(MembershipInference(candidates=20), "entangled", ROUND_BY_ROUND | CLIPPED, note="clip, rounds"),
    *(Line(LikelihoodRatio(candidates=20, shadows=16), kind, HEART, note="a hundred epochs") for kind in WEIGHTS),
    Line(LikelihoodRatio(candidates=20, shadows=16), "model", HEART | QUANTISED, note="quantised, a hundred epochs"),
    Line(LikelihoodRatio(candidates=20, shadows=16), "extractor", HEART | MIXED, note="mixed, a hundred epochs"),
    Line(
        LikelihoodRatio(candidates=20, shadows=16),
        "low-rank-model",
        HEART | QUANTISED,
        note="quantised, a hundred epochs",
    ),
    Line(ASKED, "representation", ROUNDS),
    *(Line(ASKED, kind, SPREAD, clients=16) for kind in ("prototype", "entangled", "logits", "kernel")),
    Line(ASKED, "prototype", SPREAD | CLIPPED, note="clip", clients=16),
    Line(ASKED, "entangled", SPREAD | {"rounds": 12, "keep": "all"}, note="rounds", clients=16),
    Line(ASKED, "entangled", SPREAD | CLIPPED | {"rounds": 12, "keep": "all"}, note="clip, rounds", clients=16),
    Line(ASKED, "public-logits", ROUNDS),
    *(Line(ASKED, kind, EPOCHS) for kind in WEIGHTS),
    Line(PropertyInference(by="biases"), "model", EPOCHS, note="biases"),
)
LINES = (*IMAGES_OF_VECTORS, *BATCHES, *QUESTIONS)


def one(name: str, seed: int, page: int) -> dict[str, Any]:
    """Return one page of a line as it is kept: what was claimed, or why nothing could be, and the CPU seconds."""
    torch.set_num_threads(1)
    line, began = next(line for line in LINES if line.name == name), time.process_time()
    about = {"line": name, "seed": seed, "page": page}
    try:
        claimed: dict[str, Any] = {"claims": claims_of_page(line.ground(), derive_seed(seed, "trained", page))}
    except UserError as error:
        claimed = {"refused": str(error)}
    return about | claimed | {"seconds": round(time.process_time() - began, 1)}


def claimed(pages: list[dict[str, Any]]) -> str:
    """Return a table of the pages that claim a leak, by line and null, and the rate over all nulls."""
    rows, false = [], []
    for line in LINES:
        own = [page for page in pages if page["line"] == line.name]
        made = [page["claims"] for page in own if "claims" in page]
        if not own:
            continue
        false += [hit for claims in made for null, hit in claims.items() if null != RAW]
        shown = {
            null: f"{sum(claims[null] for claims in made)} of {len(made)}" if made and null in made[0] else ""
            for null in (IMAGES, DATA_SET, CLASSES, RAW)
        }
        rows.append({"attack": line.attack.name, "upload": line.kind + (f", {line.note}" if line.note else "")} | shown)
    refused = sum("claims" not in page for page in pages)
    return table(rows) + f"\nOf {len(false):,} nulls {counted(false)} % claim a leak; {refused} pages were refused.\n"


def main() -> None:
    """Attack what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=20, help="federations of each line")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--lines", nargs="*", default=[line.name for line in LINES], help="some of the lines")
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    kept = chosen.out / "pages.jsonl"
    pages = [json.loads(text) for text in kept.read_text(encoding="utf-8").splitlines()] if kept.is_file() else []
    there = {(page["line"], page["seed"], page["page"]) for page in pages}
    wanted = [(name, chosen.seed, page) for page in range(chosen.pages) for name in chosen.lines]
    missing = [key for key in wanted if key not in there]
    with ProcessPoolExecutor(chosen.workers) as pool, kept.open("a", encoding="utf-8") as file:
        asked = [pool.submit(one, *key) for key in missing]
        for done, future in enumerate(as_completed(asked), 1):
            if future.exception() is not None:
                pool.shutdown(cancel_futures=True)
            pages.append(future.result())
            print(json.dumps(pages[-1]), file=file, flush=True)
            print(f"{done} of {len(missing)}: {pages[-1]['line']}, {pages[-1]['seconds']} s", file=sys.stderr)
    print(claimed([page for page in pages if page["seed"] == chosen.seed and page["page"] < chosen.pages]), end="")


if __name__ == "__main__":
    main()
