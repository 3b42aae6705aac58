r"""An attack on trained federations: how often a page claims what it cannot know, and how often what is there.

    python benchmarks/calibration/trained_attacks.py --attack my_package.attacks:MyAttack:iterations=100 --kind prototype \
        --setting rounds=4 --setting clients=16 --knowledge extractor=none --pages 10 --out FOLDER

A page is a federation of eight clients on drawn images of 12 x 12 pixels that is trained, attacked as it is, and attacked
with its private images exchanged for others of the same classes, or of another data set (or, asked for classes, its division
for another), while the server sees what it saw: a claim on these is false.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from rates import counted, kept, parser, table
from torch.nn.functional import interpolate

from fedpriv.api.attacking import quick_settings
from fedpriv.api.named_code import named_code
from fedpriv.attacks import ATTACKS
from fedpriv.eval import inference as scoring
from fedpriv.eval.answers import page_answers
from fedpriv.methods import default_method
from fedpriv.pipeline.execute import case_of, described, open_run, run_plan
from fedpriv.pipeline.plan import granted, plan_of
from fedpriv.sources.run import RunSource, prepare
from fedpriv.sources.source import read_card
from fedpriv.study.settings import attacker_by_default, named_config
from fedpriv.study.training import train_run
from fedpriv.study.written import parse_entry
from fedpriv.util.config import parse
from fedpriv.util.errors import UserError
from fedpriv.util.foreign import inline_value
from fedpriv.util.registry import allowing
from fedpriv.util.seeds import derive_seed, generator

RAW = "the upload itself"
IMAGES, DATA_SET, CLASSES = "another client's", "another data set's", "another division's classes"
"""Nulls: private images exchanged for others of the same classes, or of another data set; and, of a question about classes,
what clients hold in another division."""

CLIENTS, SIDE, COARSE, LABELS, EACH = 8, 12, 4, 4, 100
"""Clients; of images their pixels a side, and those of which they are smoothed; classes, and images of each."""

SETTINGS = {"auxiliary": 0.4, "capture": "all", "keep": "all", "clients": CLIENTS}


@dataclass(frozen=True)
class Line:
    """An attack with its options, the kind of upload, settings of the federations, and changes to the threat model."""

    attack: Any
    kind: str
    settings: Mapping[str, Any]
    knowledge: Mapping[str, Any]

    @classmethod
    def of(cls, attack: str, kind: str, settings: Mapping[str, Any], knowledge: Mapping[str, Any]) -> Line:
        """Read an attack as in a study; raises UserError where it is unknown, or not on this kind of upload."""
        options = parse_entry(attack)
        with allowing(named_code({"attack": attack})):
            made = parse(ATTACKS.load(options.pop("name")), options, attack)
        if kind not in made.targets:
            raise UserError(
                f"--kind {kind}: {made.name!r} is not on {kind} uploads; expected {', '.join(made.targets)}"
            )
        return cls(made, kind, settings, knowledge)


def write_images(folder: Path, images: int, patterns: int) -> str:
    """Write a data set of grey images as a folder with one folder a class, and return its path.

    Numbers and order of labels are always the same, so that whoever holds which image is the same for any two of these
    folders. Seeds: ``images`` of what is an image's own, ``patterns`` of what a class has in common.
    """

    def smooth(number: int, *seed: int | str) -> torch.Tensor:
        drawn = torch.randn(number, 1, COARSE, COARSE, generator=generator(*seed))
        return 1.4 * interpolate(drawn, size=(SIDE, SIDE), mode="bilinear", align_corners=False)

    common = smooth(LABELS, patterns, "patterns")
    for label in range(LABELS):
        place = folder / f"class{label}"
        place.mkdir(parents=True)
        drawn = 0.5 + 0.13 * (common[label] + smooth(EACH, images, "images", label))
        for number, image in enumerate((drawn.clamp(0, 1) * 255).round().to(torch.uint8)):
            Image.fromarray(image[0].numpy()).save(place / f"{number:03}.png")
    return str(folder)


def claims_of_page(line: Line, seed: int) -> dict[str, bool]:
    """Train one federation, attack it as it is and with its secrets exchanged, and return of which a page claims a leak."""
    seed %= 2**32  # data sets are divided by a generator that takes no more
    patterns, others = derive_seed(seed, "patterns"), derive_seed(seed, "other images")
    settings = quick_settings(line.kind) | SETTINGS | dict(line.settings)
    method = settings.pop("method", None) or default_method(line.kind)
    with tempfile.TemporaryDirectory(prefix="fedpriv-") as name:
        home = Path(name)
        settings |= {"dataset": "folder", "data_dir": write_images(home / "own", derive_seed(seed, "images"), patterns)}
        config = named_config(method, settings, seed)
        train_run(home / "run", config, device="cpu")
        truths = {RAW: config}
        if line.attack.result == "scores" and line.attack.asks == "classes":
            truths[CLASSES] = replace(config, division_seed=derive_seed(seed, "division") % 2**32)
        else:
            for null, drawn in ((IMAGES, patterns), (DATA_SET, derive_seed(seed, "other patterns"))):
                truths[null] = replace(config, data_dir=write_images(home / null, others, drawn))
        return {null: _claims(line, home, null, truth, seed) for null, truth in truths.items()}


def _claims(line: Line, home: Path, null: str, truth: Any, seed: int) -> bool:
    """True if a page claims that the attack finds in the uploads of the run what clients hold by another configuration."""
    made, folder = line.attack, home / f"attack, {null}"
    card = read_card(line.knowledge, attacker_by_default(truth))
    chosen, _ = granted({made.name: made}, [made.name], line.kind, card, None)
    plan = plan_of(line.kind, chosen, card, {"targets": 2 * truth.clients}, seed=seed)
    plan = replace(plan, device="cpu", redact="omit")  # nobody looks at pictures
    opened, _ = open_run(home / "run", plan, named=[made.name])
    exchanged = RunSource(opened.source.run, prepare(truth, torch.device("cpu")), line.kind)
    if null == CLASSES:
        (inference,) = plan.inferences.values()
        case = replace(case_of(opened, inference), truth=exchanged.holdings((), ()))
        records: dict[Any, Any] = {
            null: scoring.evaluate(inference, case, described(opened, made.name, inference, card))
        }
    else:
        attacked, measured = run_plan(folder, replace(opened, source=exchanged))
        records = {**attacked, **measured}
    if not records:
        raise UserError(f"{made.name!r} found nothing to do on {line.kind} uploads")
    return any(one.verdict == "leak" and (one.named is None or null == RAW) for one in page_answers(records))


def page_of(line: Line, name: str, seed: int, number: int) -> dict[str, Any]:
    """Return what is claimed on one page, or why nothing could be."""
    torch.set_num_threads(1)
    try:
        with allowing(named_code({"attack": line.attack, **line.settings})):
            return {"claims": claims_of_page(line, derive_seed(seed, "trained", number))}
    except UserError as error:
        return {"refused": str(error)}


def main() -> None:
    """Attack what is missing, and print of how many pages each null and the upload itself are claimed to leak."""
    given = parser(__doc__, pages=20, seed=0, workers=2)
    given.add_argument("--attack", required=True, help="NAME or package.module:NAME, with :OPTION=VALUE,...")
    given.add_argument("--kind", default="representation", help="of upload")
    given.add_argument("--setting", action="append", default=[], metavar="KEY=VALUE", help="of the federations")
    given.add_argument("--knowledge", action="append", default=[], metavar="KEY=VALUE", help="of the threat model")
    given.add_argument("--out", type=Path, required=True)
    chosen = given.parse_args()
    settings, card = (
        {key: inline_value(value) for key, _, value in (one.partition("=") for one in pairs)}
        for pairs in (chosen.setting, chosen.knowledge)
    )
    name = f"{chosen.attack} on {chosen.kind}"
    line = Line.of(chosen.attack, chosen.kind, settings, card)
    pages = kept(chosen.out, partial(page_of, line), [name], chosen)[name]
    made = [page["claims"] for page in pages if "claims" in page]
    nulls = dict.fromkeys(null for claims in made for null in claims)
    print(table([{"attack": name} | {null: f"{counted(one[null] for one in made)}" for null in nulls}]), end="")
    for refused in dict.fromkeys(page["refused"] for page in pages if "refused" in page):
        print(refused)


if __name__ == "__main__":
    main()
