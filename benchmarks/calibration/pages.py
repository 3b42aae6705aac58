"""Simulated pages, answered as every page is: how often what they say is false, and how often they decide.

    OMP_NUM_THREADS=1 python benchmarks/calibration/pages.py --pages 1000 --seed 0 --workers 2 --out FOLDER

A page follows from scenario, seed and its number alone. Each is kept in ``FOLDER/pages.jsonl`` when it is done; a second
start goes on with those that are missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rates import counted, parser, table
from simulated import NULLS, QUESTIONS, inferred, inverted
from worlds import World

from fedpriv.attacks.observation import ThreatModel
from fedpriv.eval.answers import clients_needed, page_answers
from fedpriv.eval.endpoints import MEASURES
from fedpriv.eval.records import AUC, DECIBELS, InferenceResult, ReconstructionRecord
from fedpriv.util.seeds import derive_seed

CARDS = (ThreatModel(extractor="none"), ThreatModel(extractor="white_box"))
PRIMARIES = (*QUESTIONS, "decoder")
PILOTS, PILOT_CLIENTS = 100, 12
"""Pages, and clients of each, whose mean estimate and spread are asked how many clients would decide."""


@dataclass(frozen=True)
class Scenario:
    """What is simulated.

    Attributes:
        world: settings of the federation.
        size: true advantage of every primary, in least effects.
        primaries: which attacks there are, and under how many threat models.
        leaking: so many clients have a large leak besides.
        knowing: how much scores hang on what needs no upload.
        images: whether inversions are those that know nothing, in turn.
        exploratory: attacks beside the primaries.
        advised: whether there are as many clients as the answer of a smaller page advises.
    """

    world: Mapping[str, Any] = field(default_factory=dict)
    size: float = 0.0
    primaries: tuple[str, ...] = PRIMARIES
    threats: int = 2
    leaking: int = 0
    knowing: float = 0.0
    images: bool = False
    exploratory: int = 0
    advised: bool = False


ONE = {"threats": 1, "advised": True}
SCENARIOS = {
    "nothing leaks, 20 clients": Scenario(images=True, knowing=1.0),
    "nothing leaks, 10 clients": Scenario({"number": 10}, images=True, knowing=1.0),
    "nothing leaks, 5 clients": Scenario({"number": 5}, images=True, knowing=1.0),
    "nothing leaks, looks differ": Scenario({"look": 0.1}, images=True, knowing=30.0),
    "nothing leaks, sizes differ": Scenario({"long_tail": True}, images=True, knowing=1.0),
    "nothing leaks, class mixes differ": Scenario({"mixed": True}, images=True, knowing=5.0),
    "least effect, 20 clients": Scenario(size=1.0),
    "least effect, 10 clients": Scenario({"number": 10}, size=1.0),
    "least effect, 5 clients": Scenario({"number": 5}, size=1.0),
    "one client of 20 leaks": Scenario(leaking=1),
    "advised number, membership leaks": Scenario(size=1.8, primaries=("membership",), **ONE),
    "advised number, no membership": Scenario(primaries=("membership",), **ONE),
    "advised number, images leak": Scenario(size=1.6, primaries=("decoder",), **ONE),
    "advised number, no images": Scenario(size=0.4, primaries=("decoder",), **ONE),
    "20 exploratory attacks": Scenario(size=1.5, exploratory=20),
}


class Said(NamedTuple):
    """What a page says of an endpoint, and the primary's interval and bound."""

    endpoint: str
    verdict: str
    mean: float
    low: float
    high: float
    bound: float
    least: float


def records_of(scenario: Scenario, seed: int) -> dict[str, ReconstructionRecord | InferenceResult]:
    """Return the records of a page by name."""
    world = World(seed, **scenario.world)
    found: dict[str, ReconstructionRecord | InferenceResult] = {}
    more = {"leaking": scenario.leaking}
    for place, card in enumerate(CARDS[-scenario.threats :]):
        for name in scenario.primaries:
            if name in QUESTIONS:
                effect, known = scenario.size * (AUC - 0.5), more | {"knowing": scenario.knowing}
                made: Any = inferred(world, card, name, effect, **known)
            else:
                of_images = NULLS[(seed + place) % len(NULLS)] if scenario.images else scenario.size * DECIBELS
                made = inverted(world, card, of_images, **more)
            found[f"{name}, {card.extractor}"] = made
    for number in range(scenario.exploratory):
        name, card = PRIMARIES[number % len(PRIMARIES)], CARDS[number // 4 % 2]
        other = f"{'az'[number % 2]}{number}"  # some come before the primary by name, some after it
        effect = (number % 3) * (AUC - 0.5)
        found[other] = (
            inferred(world, card, name, effect, attack=other)
            if name in QUESTIONS
            else inverted(world, card, number % 3 * DECIBELS, attack=other)
        )
    return found


@cache
def advised(name: str) -> int:
    """Return how many clients pages of a scenario advise, at the mean estimate and spread of some small ones."""
    scenario = replace(SCENARIOS[name], world={"number": PILOT_CLIENTS})
    measure = MEASURES["reconstruction" if "decoder" in scenario.primaries else "membership"]
    pilots = []
    for number in range(PILOTS):
        (record,) = records_of(scenario, derive_seed(0, "pilot", name, number)).values()
        pilots += [
            c for c in record.comparisons if c.measure == measure and (measure == "membership" or c.stratum != "all")
        ]
    mean = float(np.mean([c.mean for c in pilots]))
    half = float(np.mean([np.subtract(*c.ci95[::-1]) / 2 for c in pilots]))
    usual = pilots[0].model_copy(update={"mean": mean, "ci95": (mean - half, mean + half)})
    return clients_needed(usual, len({c.stratum for c in pilots})) or 0


def page_of(name: str, seed: int, number: int) -> dict[str, Any]:
    """Return what a page says of its primaries, and whether exploratory attacks changed any of it."""
    torch.set_num_threads(1)
    scenario = SCENARIOS[name]
    if scenario.advised:
        scenario = replace(scenario, world={"number": advised(name)})
    records = records_of(scenario, derive_seed(seed, name, number))
    answers = page_answers(records)
    said = [
        Said(one.endpoint, one.verdict, one.advantage, *one.ci95, one.bound, one.least)
        for one in answers
        if one.ci95 is not None and one.advantage is not None and one.bound is not None
    ]
    found: dict[str, Any] = {"scenario": name, "seed": seed, "page": number, "said": said}
    if scenario.exploratory:
        alone = {name: record for name, record in records.items() if record.attack in PRIMARIES}
        found["changed"] = [one.model_dump() for one in page_answers(alone)] != [one.model_dump() for one in answers]
    if scenario.advised:
        found["clients"] = scenario.world["number"]
    return found


def rows_of(name: str, pages: Sequence[Mapping[str, Any]]) -> list[dict[str, object]]:
    """Return the rows of the table on a scenario: what is counted, how many, what is allowed and what was measured."""
    scenario, said = SCENARIOS[name], [[Said(*one) for one in page["said"]] for page in pages]
    every = [one for page in said for one in page]
    rows: list[dict[str, object]] = []

    def row(what: str, allowed: str, measured: object) -> None:
        rows.append(
            {"scenario": f"{name}: {what}", "pages": f"{len(pages):,}", "allowed": allowed, "measured": measured}
        )

    def by_page(verdict: str) -> str:
        ends = list(dict.fromkeys(one.endpoint for one in every))
        whole = counted(any(one.verdict == verdict for one in page) for page in said)
        each = [counted(any(o.verdict == verdict and o.endpoint == end for o in page) for page in said) for end in ends]
        parts = [f"{end} {100 * rate.share:.1f}" for end, rate in zip(ends, each, strict=True)]
        return f"{whole}" + (f"; {', '.join(parts)}" if len(ends) > 1 else "")

    def of_answers(verdict: str) -> str:
        return f"{counted(one.verdict == verdict for one in every)}"

    if scenario.exploratory:
        row("an answer of a primary changes", "0", counted(page["changed"] for page in pages))
    elif scenario.advised:
        verdict = "leak" if scenario.size > 1 else "no leak detected"
        row(f"{verdict} ({pages[0]['clients']} clients)", "75 to 85", of_answers(verdict))
    elif scenario.leaking:
        row("an answer says no leak detected", "reported", of_answers("no leak detected"))
        row("an answer says leak", "reported", of_answers("leak"))
    else:
        row("page claims a leak", "at most 5", by_page("leak"))
        if scenario.size:
            row("page says no leak detected", "at most 5", by_page("no leak detected"))
        else:
            row("an answer says no leak detected", "reported", of_answers("no leak detected"))
    if scenario.size == 1:
        true = [scenario.size * one.least for one in every]
        held = counted(truth <= one.bound + 1e-9 for truth, one in zip(true, every, strict=True))
        row("a bound holds", "at least 95", held)
        widths = {}
        for unit in ("dB", "AUC"):
            of = [one for one in every if (one.endpoint == "reconstruction") == (unit == "dB")]
            covers = counted(one.low <= one.least * scenario.size <= one.high for one in of)
            widths[unit] = f"{covers}, width {np.mean([one.high - one.low for one in of]):.2f} {unit}"
        row("95 % interval holds", "at least 94", "; ".join(widths.values()))
    return rows


def main() -> None:
    """Make the pages that are missing, and print the table."""
    given = parser(__doc__, pages=1000, seed=0, workers=2)
    given.add_argument("--scenarios", nargs="*", default=list(SCENARIOS), choices=list(SCENARIOS), metavar="NAME")
    given.add_argument("--out", type=Path, required=True)
    chosen = given.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    kept = chosen.out / "pages.jsonl"
    pages = [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()] if kept.is_file() else []
    there = {(page["scenario"], page["seed"], page["page"]) for page in pages}
    wanted = [(name, chosen.seed, number) for name in chosen.scenarios for number in range(chosen.pages)]
    missing = [key for key in wanted if key not in there]
    with ProcessPoolExecutor(chosen.workers) as pool, kept.open("a", encoding="utf-8") as file:
        for page in pool.map(page_of, *zip(*missing, strict=True), chunksize=5) if missing else ():
            pages.append(json.loads(json.dumps(page)))
            print(json.dumps(page), file=file, flush=True)
    rows = []
    for name in chosen.scenarios:
        of = [page for page in pages if page["scenario"] == name and page["seed"] == chosen.seed]
        rows += rows_of(name, [page for page in of if page["page"] < chosen.pages])
    print(table(rows), end="")


if __name__ == "__main__":
    main()
