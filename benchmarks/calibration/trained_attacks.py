r"""Every attack on trained federations: how often a page claims what it cannot know, and how often what is there.

    OMP_NUM_THREADS=1 python benchmarks/calibration/trained_attacks.py --pages 20 --seed 0 --workers 2 --out FOLDER

An attack of your own, written as in a study, on a kind of upload that it is for:

    python benchmarks/calibration/trained_attacks.py --attack my_package.attacks:MyAttack:iterations=100 --kind prototype \
        --setting rounds=4 --setting clients=16 --knowledge extractor=none --pages 10 --out FOLDER

A page is a federation of eight clients on drawn images of 12 x 12 pixels that is trained, attacked as it is, and attacked
with its private images exchanged for others of the same classes, or of another data set (or, asked for classes, its division
for another), while the server sees what it saw: a claim on these is false. One line of JSON a page goes to
``FOLDER/pages.jsonl``; a second start goes on with those that are missing.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from fedpriv.eval.judgement import judge
from PIL import Image
from rates import counted, parser, table
from worlds import smooth

from fedpriv.api.attacking import quick_settings
from fedpriv.api.named_code import named_code
from fedpriv.attacks import ATTACKS
from fedpriv.attacks.features.base import AllRoundsInversion
from fedpriv.attacks.features.closed_form import AngleUpdate, HeadUpdate
from fedpriv.attacks.features.posterior import UnmixedInversion
from fedpriv.attacks.features.transformation import TransformationSearch
from fedpriv.attacks.gradients.dlg import DeepLeakage, MixtureSeparation
from fedpriv.attacks.gradients.inverting import GradientDip, InvertingGradients
from fedpriv.attacks.gradients.linear_layer import LinearLayer
from fedpriv.attacks.gradients.secure_sum import PooledBatch
from fedpriv.attacks.inference.membership import MembershipInference
from fedpriv.attacks.inference.property import PropertyInference
from fedpriv.attacks.inversion.decoder import DecoderInversion
from fedpriv.attacks.inversion.learned import LearnedInversion
from fedpriv.attacks.inversion.vector import ClassInversion, DipInversion, JointInversion, PixelInversion
from fedpriv.attacks.priors.pixels import DenoiserTraining
from fedpriv.eval import inference as scoring
from fedpriv.federation.run_directory import RunConfig
from fedpriv.methods import default_method
from fedpriv.pipeline.execute import case_of, described, open_run, run_plan
from fedpriv.pipeline.plan import granted, plan_of
from fedpriv.sources.run import RunSource, prepare
from fedpriv.sources.source import read_card
from fedpriv.study.settings import attacker_by_default, named_config
from fedpriv.study.training import train_run
from fedpriv.study.written import parse_entry
from fedpriv.util.code import allowing
from fedpriv.util.config import parse
from fedpriv.util.errors import UserError
from fedpriv.util.foreign import inline_value
from fedpriv.util.seeds import derive_seed

RAW = "the upload itself"

IMAGES, DATA_SET, CLASSES = "another client's", "another data set's", "another division's classes"
"""Nulls: private images exchanged for others of the same classes, or of another data set; and, of a question about classes,
which other images leave as they are, what clients hold in another division."""

CLIENTS, PUBLIC, AUXILIARY = 8, 60, 0.4
"""Clients; images on which they say what they make of them, where a method has such; share of every class that no client
holds, half of it the attacker's."""

SIDE, COARSE = 12, 4
"""Of images, in pixels: the least that the networks here make something of; and those of which they are smoothed."""

LABELS, EACH = 4, 100
"""Classes, and images of each."""


def write_images(folder: Path, images: int, patterns: int) -> Path:
    """Write a data set of grey images as a folder with one folder a class, and return it.

    An image is grey 0.5, the pattern of its class and what is its own, each of standard deviation 0.18. Numbers and order
    of labels are always the same, so that whatever depends on labels and a seed, such as who holds which image, is the same
    for any two of these folders. Seeds: ``images`` of what is an image's own, ``patterns`` of what a class has in common.
    """
    common = smooth(LABELS, SIDE, COARSE, patterns, "patterns")
    for label in range(LABELS):
        place = folder / f"class{label}"
        place.mkdir(parents=True)
        drawn = 0.5 + 0.13 * (common[label] + smooth(EACH, SIDE, COARSE, images, "images", label))
        for number, image in enumerate((drawn.clamp(0, 1) * 255).round().to(torch.uint8)):
            Image.fromarray(image[0].numpy()).save(place / f"{number:03}.png")
    return folder


@dataclass(frozen=True)
class Line:
    """An attack, and the federations that it is calibrated on.

    Attributes:
        attack: with its options.
        kind: of upload.
        settings: of the federations, and ``method`` where it is not the usual one; the images are drawn.
        knowledge: changes to the threat model.
        note: what sets it apart from another line of the same attack and kind.
        targets: of each client, of an attack that returns images.
        clients: of a federation; at least five, since fewer support no claim.
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

    def config(self, data: Path, seed: int) -> RunConfig:
        """Return the configuration of a federation on a folder of images.

        Raises:
            UserError: when a setting is unknown or out of range.
        """
        chosen = quick_settings(self.kind) | {"auxiliary": AUXILIARY, "clients": self.clients, "capture": "all"}
        chosen |= {"public": PUBLIC} if "public" in chosen else {}
        chosen |= {"keep": "all"} if self.attack.needs.every_extractor else {}
        chosen |= dict(self.settings) | {"dataset": "folder", "data_dir": data}
        method = chosen.pop("method", None) or default_method(self.kind)
        if method is None:
            raise UserError(f"no method here uploads {self.kind}: pass --setting method=NAME")
        return named_config(method, chosen, seed)


QUICK = DenoiserTraining(iterations=60, width=8)
ROUNDS = {"rounds": 4}
ONE_IMAGE = {"models": "lenet-sigmoid"}
SUMMED = ONE_IMAGE | {"defense": ("secure-aggregation",)}
FEW = {"auxiliary": 0.8, "alpha": 10.0}
FEWEST = FEW | {"auxiliary": 0.9}
ONE_CLASS, ONE_IMAGE_EACH = {"option": ("mechanism=RSP",)}, {"option": ("mechanism=RSR",)}
SETTLED = {"rounds": 30, "lr": 0.001}
IMAGES_OF_VECTORS = (
    Line(DipInversion(iterations=100), "representation", ROUNDS),
    Line(PixelInversion(iterations=200), "representation", ROUNDS),
    Line(DecoderInversion(iterations=200, refine_steps=100), "representation", ROUNDS),
    Line(LearnedInversion(iterations=60, denoiser=QUICK), "representation", ROUNDS),
    Line(AllRoundsInversion(iterations=100, rounds=3), "representation", ROUNDS),
    Line(DipInversion(iterations=100), "prototype", FEW | ROUNDS, targets=4),
    Line(JointInversion(iterations=40), "prototype", FEW | ROUNDS, targets=4),
    Line(PixelInversion(iterations=200), "prototype", FEW | ROUNDS, targets=4),
    Line(DecoderInversion(iterations=200, refine_steps=100), "prototype", FEW | ROUNDS),
    Line(LearnedInversion(iterations=20, denoiser=QUICK), "prototype", FEW | ROUNDS),
    Line(AllRoundsInversion(iterations=100, rounds=3), "prototype", FEW | ROUNDS),
    Line(DipInversion(iterations=100), "entangled", FEW | ROUNDS),
    Line(PixelInversion(iterations=200), "entangled", FEW | ROUNDS),
    Line(DipInversion(iterations=100), "entangled", FEW | ROUNDS | ONE_IMAGE_EACH, note="one image"),
    Line(PixelInversion(iterations=400), "entangled", FEW | ROUNDS | ONE_IMAGE_EACH, note="one image"),
    Line(UnmixedInversion(), "entangled", FEW | SETTLED, targets=4),
)
BATCHES = (
    Line(DeepLeakage(outer_steps=20), "model"),
    Line(InvertingGradients(iterations=150), "model"),
    Line(InvertingGradients(iterations=150), "model", {"models": "small-cnn", "batch_size": 4}, note="four images"),
    Line(GradientDip(iterations=100), "model"),
    Line(
        InvertingGradients(iterations=100, denoiser=QUICK, prior="learned"),
        "model",
        {"models": "small-cnn"},
        note="learned",
    ),
    Line(LinearLayer(iterations=100, restarts=1), "model", {"models": "small-mlp"}),
    Line(DeepLeakage(outer_steps=20), "small-model"),
    Line(InvertingGradients(iterations=150), "small-model"),
    Line(LinearLayer(iterations=100, restarts=1), "small-model"),
    Line(InvertingGradients(iterations=150), "extractor"),
    Line(DeepLeakage(outer_steps=20), "extractor"),
    Line(InvertingGradients(iterations=150), "low-rank-model"),
    Line(LinearLayer(iterations=100, restarts=1), "low-rank-model"),
    Line(MixtureSeparation(outer_steps=20), "model", ONE_IMAGE | {"batch_size": 3, "defense": ("mixup:images=3",)}),
    Line(TransformationSearch(search="dlg", iterations=300), "model", ONE_IMAGE | {"defense": ("transform",)}),
    Line(PooledBatch(search="dlg", iterations=200), "model", SUMMED),
    Line(HeadUpdate(iterations=100), "classifier"),
    Line(HeadUpdate(iterations=100), "classifier", {"batch_size": 4}, note="four images"),
    Line(AngleUpdate(iterations=100), "angle-matrix"),
    Line(ClassInversion(iterations=300), "logits", FEWEST | {"rounds": 10}, targets=4),
)
SHOWN = ("representation", "prototype", "entangled", "logits", "public-logits", "kernel")
WEIGHTS = ("model", "small-model", "extractor", "low-rank-model", "classifier", "angle-matrix")
LONG = FEW | {"batch_size": 5, "epochs": 40, "rounds": 4, "lr": 0.1}
CLIPPED = {"defense": ("clip:bound=1",)}
QUANTISED = {"defense": ("quantise",)}
ROUND_BY_ROUND = LONG | {"epochs": 5, "rounds": 12, "keep": "all"}
TRAINED = LONG | {"local_steps": None, "rounds": 3, "keep": "all"}
EPOCHS = {"batch_size": 5, "epochs": 3, "local_steps": None, "rounds": 3, "lr": 0.1, "keep": "all"}
SPREAD = ROUNDS | {"alpha": 1.0, "auxiliary": 0.3}
ASKED = PropertyInference(shadow_clients=16, steps=100)
MEMBERS = MembershipInference(candidates=20)
QUESTIONS = (
    *(Line(MEMBERS, kind, LONG) for kind in SHOWN),
    Line(MEMBERS, "entangled", LONG | ONE_CLASS, note="one class", clients=16),
    Line(MEMBERS, "prototype", LONG | CLIPPED, note="clip"),
    Line(MEMBERS, "logits", LONG | QUANTISED, note="quantised"),
    *(Line(MEMBERS, kind, ROUND_BY_ROUND, note="rounds") for kind in ("prototype", "entangled")),
    *(Line(MEMBERS, kind, TRAINED, note="epochs") for kind in WEIGHTS),
    Line(MEMBERS, "entangled", ROUND_BY_ROUND | CLIPPED, note="clip, rounds"),
    Line(ASKED, "representation", ROUNDS),
    *(Line(ASKED, kind, SPREAD, clients=16) for kind in ("prototype", "entangled", "logits", "kernel")),
    Line(ASKED, "prototype", SPREAD | CLIPPED, note="clip", clients=16),
    Line(ASKED, "entangled", SPREAD | {"rounds": 12, "keep": "all"}, note="rounds", clients=16),
    Line(ASKED, "entangled", SPREAD | CLIPPED | {"rounds": 12, "keep": "all"}, note="clip, rounds", clients=16),
    Line(ASKED, "public-logits", ROUNDS),
    *(Line(ASKED, kind, EPOCHS) for kind in WEIGHTS),
)
LINES = (*IMAGES_OF_VECTORS, *BATCHES, *QUESTIONS)


def claims_of_page(line: Line, seed: int) -> dict[str, bool]:
    """Train one federation, attack it as it is and with its secrets exchanged, and return of which a page claims a leak.

    Everything that the server sees is of the one federation that was trained. In the exchanged ones the private images, and
    those of the attacker and the auxiliary ones, are others of the same labels, or clients hold other classes: what it
    finds of these it does not know from any upload. Attack, control, guesses and wording are those of ``fedpriv attack``.

    Returns:
        By null, and for the upload as it is under :data:`RAW`.

    Raises:
        UserError: when the attack does not fit the federation.
    """
    seed %= 2**32  # data sets are divided by a generator that takes no more
    patterns, others = derive_seed(seed, "patterns"), derive_seed(seed, "other images")
    with tempfile.TemporaryDirectory(prefix="fedpriv-") as name:
        home = Path(name)
        config = line.config(write_images(home / "own", derive_seed(seed, "images"), patterns), seed)
        train_run(home / "run", config, device="cpu")
        truths = {RAW: config}
        if line.attack.result == "scores" and line.attack.asks == "classes":
            truths[CLASSES] = replace(config, division_seed=derive_seed(seed, "division") % 2**32)
        else:
            for null, drawn in ((IMAGES, patterns), (DATA_SET, derive_seed(seed, "other patterns"))):
                truths[null] = replace(config, data_dir=str(write_images(home / null, others, drawn)))
        return {null: _claims(line, home, null, truth, seed) for null, truth in truths.items()}


def _claims(line: Line, home: Path, null: str, truth: RunConfig, seed: int) -> bool:
    """True if a page claims that the attack finds in the uploads of the run what clients hold by another configuration."""
    made, folder = line.attack, home / f"attack, {null}"
    card = read_card(line.knowledge, attacker_by_default(truth))
    chosen, _ = granted({made.name: made}, [made.name], line.kind, card, None)
    wanted = {"targets": line.targets * line.clients}
    plan = plan_of(line.kind, chosen, card, wanted, seed=seed)
    plan = replace(plan, device="cpu", redact="omit")  # nobody looks at pictures
    opened, _ = open_run(home / "run", plan)
    exchanged = prepare(truth, torch.device("cpu"))
    if null == CLASSES:
        (inference,) = plan.inferences.values()
        truth_of = RunSource(opened.source.run, exchanged, line.kind).holdings((), ())
        case = replace(case_of(opened, plan, inference), truth=truth_of)
        about = described(opened, made.name, inference, card, "")
        records = [scoring.evaluate(inference, case, about)]
    else:
        opened = replace(opened, source=RunSource(opened.source.run, exchanged, line.kind))
        attacked, measured = run_plan(folder, opened, command="", named=[made.name])
        records = [*attacked.values(), *measured.values()]
    if not records:
        raise UserError(f"{made.name!r} found nothing to do on {line.kind} uploads")
    return any(judge(found).claims for found in records)


def own_line(attack: str, kind: str, settings: Sequence[str], knowledge: Sequence[str]) -> Line:
    """Return the line of an attack that is written as in a study, with ``KEY=VALUE`` of federations and the threat model.

    Raises:
        UserError: when the attack is unknown, or is not on this kind of upload.
    """
    options = parse_entry(attack)
    with allowing(named_code({"attack": attack})):
        made = parse(ATTACKS.load(options.pop("name")), options, attack)
    if kind not in made.targets:
        raise UserError(f"--kind {kind}: {made.name!r} is not on {kind} uploads; expected {', '.join(made.targets)}")
    federation, card = (
        {key: inline_value(value) for key, _, value in (one.partition("=") for one in pairs)}
        for pairs in (settings, knowledge)
    )
    return Line(made, kind, federation, card, clients=federation.pop("clients", CLIENTS))


def page_of(line: Line, seed: int, page: int) -> dict[str, Any]:
    """Return one page of a line as it is kept: what was claimed, or why nothing could be, and the CPU seconds."""
    torch.set_num_threads(1)
    began, about = time.process_time(), {"line": line.name, "seed": seed, "page": page}
    try:
        with allowing(named_code({"attack": line.attack, **line.settings})):
            claimed: dict[str, Any] = {"claims": claims_of_page(line, derive_seed(seed, "trained", page))}
    except UserError as error:
        claimed = {"refused": str(error)}
    return about | claimed | {"seconds": round(time.process_time() - began, 1)}


def rates(lines: Sequence[Line], pages: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of the pages that claim a leak, by line and null, and the rate over all nulls."""
    rows, false = [], []
    for line in lines:
        made = [page["claims"] for page in pages if page["line"] == line.name and "claims" in page]
        false += [hit for claims in made for null, hit in claims.items() if null != RAW]
        shown = {
            null: f"{sum(claims[null] for claims in made)} of {len(made)}" if made and null in made[0] else ""
            for null in (IMAGES, DATA_SET, CLASSES, RAW)
        }
        rows.append({"attack": line.attack.name, "upload": line.kind + (f", {line.note}" if line.note else "")} | shown)
    refused = [str(page["refused"]) for page in pages if "refused" in page]
    said = f"Of {len(false):,} nulls {counted(false)} % claim a leak; " if false else ""
    return "\n".join([table(rows), f"{said}{len(refused)} pages were refused.", *dict.fromkeys(refused)])


def main() -> None:
    """Attack what is missing, and print the table."""
    given = parser(__doc__, pages=20, seed=0, workers=2)
    given.add_argument("--lines", nargs="*", help="names of some of the lines")
    given.add_argument("--attack", help="NAME or package.module:NAME, with :OPTION=VALUE,..., in place of the lines")
    given.add_argument("--kind", default="representation", help="of upload, for --attack")
    given.add_argument("--setting", action="append", default=[], metavar="KEY=VALUE", help="of the federations")
    given.add_argument("--knowledge", action="append", default=[], metavar="KEY=VALUE", help="of the threat model")
    given.add_argument("--out", type=Path, required=True)
    chosen = given.parse_args()
    if unknown := set(chosen.lines or ()) - {line.name for line in LINES}:
        given.error(f"--lines: unknown: {', '.join(sorted(unknown))}; there are: {[line.name for line in LINES]}")
    lines = [line for line in LINES if chosen.lines is None or line.name in chosen.lines]
    if chosen.attack:
        lines = [own_line(chosen.attack, chosen.kind, chosen.setting, chosen.knowledge)]
    chosen.out.mkdir(parents=True, exist_ok=True)
    kept = chosen.out / "pages.jsonl"
    pages = [json.loads(text) for text in kept.read_text(encoding="utf-8").splitlines()] if kept.is_file() else []
    there = {(page["line"], page["seed"], page["page"]) for page in pages}
    wanted = [(line, chosen.seed, page) for page in range(chosen.pages) for line in lines]
    missing = [key for key in wanted if (key[0].name, *key[1:]) not in there]
    with ProcessPoolExecutor(chosen.workers) as pool, kept.open("a", encoding="utf-8") as file:
        futures = [pool.submit(page_of, *key) for key in missing]
        for done, future in enumerate(as_completed(futures), 1):
            if future.exception() is not None:
                pool.shutdown(cancel_futures=True)
            pages.append(future.result())
            print(json.dumps(pages[-1]), file=file, flush=True)
            print(f"{done} of {len(missing)}: {pages[-1]['line']}, {pages[-1]['seconds']} s", file=sys.stderr)
    print(rates(lines, [page for page in pages if page["seed"] == chosen.seed and page["page"] < chosen.pages]))


if __name__ == "__main__":
    main()
