"""Simulated pages, answered as every page is: how often what they say is false, and how often they decide.

    OMP_NUM_THREADS=1 python benchmarks/calibration/pages.py --pages 1000 --seed 0 --workers 2 --out FOLDER

A page follows from scenario, seed and its number alone. Each is kept in ``FOLDER/pages.jsonl`` when it is done; a second
start goes on with those that are missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rates import counted, kept, parser, table
from simulated import NULLS, QUESTIONS, inferred, inverted
from worlds import World

from fedpriv.attacks.observation import ThreatModel
from fedpriv.eval.answers import clients_needed, page_answers
from fedpriv.eval.endpoints import MEASURES
from fedpriv.eval.records import AUC, DECIBELS, InferenceResult, ReconstructionRecord
from fedpriv.util.seeds import derive_seed

CARDS = (ThreatModel(extractor="none"), ThreatModel(extractor="white_box"))
PRIMARIES = (*QUESTIONS, "decoder")
IN_FULL = 20
"""One page in so many has its inversions scored in full, the others comparisons alone, which are the same."""

EXPLORATORY = 4
"""Attacks beside the primaries that differ in more than name."""

PILOTS, PILOT_CLIENTS = 1000, 12
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
        full: whether inferences are scored in full, candidates too; else comparisons alone, on which answers rest.
        seeds: federations whose results are put together.
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
    full: bool = False
    seeds: int = 1
    advised: bool = False


NULL = {"images": True}
FULL = {"images": True, "threats": 1, "full": True}
ONE = {"threats": 1, "advised": True}
SCENARIOS = {
    "nothing leaks, 20 clients": Scenario(**NULL),
    "nothing leaks, 10 clients": Scenario({"number": 10}, **NULL),
    "nothing leaks, 5 clients": Scenario({"number": 5}, **NULL),
    "nothing leaks, looks differ": Scenario({"look": 0.1}, knowing=3.0, **FULL),
    "nothing leaks, sizes differ": Scenario({"long_tail": True}, knowing=1.0, **FULL),
    "nothing leaks, class mixes differ": Scenario({"mixed": True}, knowing=5.0, **FULL),
    "least effect, 20 clients": Scenario(size=1.0),
    "least effect, 10 clients": Scenario({"number": 10}, size=1.0),
    "least effect, 5 clients": Scenario({"number": 5}, size=1.0),
    "least effect, 10 clients, 3 seeds": Scenario({"number": 10}, size=1.0, threats=1, seeds=3),
    "one client of 20 leaks": Scenario(threats=1, leaking=1),
    "advised number, membership leaks": Scenario(size=2.0, primaries=("membership",), **ONE),
    "advised number, no membership": Scenario(primaries=("membership",), **ONE),
    "advised number, images leak": Scenario(size=1.8, primaries=("decoder",), **ONE),
    "advised number, no images": Scenario(size=0.2, primaries=("decoder",), **ONE),
    "20 exploratory attacks": Scenario(threats=1, size=1.5, exploratory=20, full=True),
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
    found: dict[str, ReconstructionRecord | InferenceResult] = {}
    worlds = [World(derive_seed(seed, k) if k else seed, **scenario.world) for k in range(scenario.seeds)]
    for world, (place, card), name in product(worlds, enumerate(CARDS[-scenario.threats :]), scenario.primaries):
        if name in QUESTIONS:
            effect = scenario.size * (AUC - 0.5)
            made: Any = inferred(
                world, card, name, effect, leaking=scenario.leaking, knowing=scenario.knowing, quick=not scenario.full
            )
        else:
            known = NULLS[(seed + place) % len(NULLS)] if scenario.images else scenario.size * DECIBELS
            made = inverted(world, card, known, leaking=scenario.leaking, quick=seed % IN_FULL > 0)
        found[f"{name}, {card.extractor}, {world.seed}"] = made
    world = worlds[0]
    different = range(EXPLORATORY if scenario.exploratory else 0)
    drawn = [inferred(world, CARDS[-1], (*QUESTIONS,)[k % 3], k * (AUC - 0.5), attack=f"x{k}") for k in different]
    for number in range(scenario.exploratory):
        other = f"{'az'[number % 2]}{number}"  # by name before the primary, or after it
        found[other] = drawn[number % EXPLORATORY].model_copy(update={"attack": other})
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
    half = float(np.mean([np.subtract(*c.ci95[::-1]) ** 2 / 4 for c in pilots]) ** 0.5)
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
    found: dict[str, Any] = {"said": said}
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
        number = f"{len(pages):,}"
        rows.append({"scenario": f"{name}: {what}", "pages": number, "allowed": allowed, "measured": str(measured)})

    def by_page(verdict: str) -> str:
        ends = dict.fromkeys(one.endpoint for one in every)
        whole = counted(any(one.verdict == verdict for one in page) for page in said)
        each = {
            end: counted((verdict, end) in {(o.verdict, o.endpoint) for o in page} for page in said) for end in ends
        }
        return "; ".join([str(whole), ", ".join(f"{end} {100 * rate.share:.1f}" for end, rate in each.items())])

    def of_answers(verdict: str) -> str:
        return f"{counted(one.verdict == verdict for one in every)} of answers"

    if scenario.exploratory:
        row("an answer of a primary changes", "0", counted(page["changed"] for page in pages))
    elif scenario.advised:
        verdict = "leak" if scenario.size > 1 else "no leak detected"
        row(f"{verdict} ({pages[0]['clients']} clients)", "75 to 85", of_answers(verdict))
    elif scenario.leaking:
        row("no leak detected", "reported", f"{of_answers('no leak detected')}; leak {of_answers('leak')}")
    elif scenario.size:
        row("page claims a leak", "at most 5", by_page("leak"))
        row("page says no leak detected", "at most 5", by_page("no leak detected"))
    else:
        row("page claims a leak", "at most 5", f"{by_page('leak')}; none {of_answers('no leak detected')}")
    if scenario.size == 1:
        row("a bound holds", "at least 95", counted(one.least <= one.bound for one in every))
        widths = {}
        for unit in ("dB", "AUC"):
            of = [one for one in every if (one.endpoint == "reconstruction") == (unit == "dB")]
            covers = counted(one.low <= one.least <= one.high for one in of)
            widths[unit] = f"{covers}, width {np.mean([one.high - one.low for one in of]):.2f} {unit}"
        row("95 % interval holds", "at least 94", "; ".join(widths.values()))
    return rows


def main() -> None:
    """Make the pages that are missing, and print the table."""
    given = parser(__doc__, pages=1000, seed=0, workers=2)
    given.add_argument("--scenarios", nargs="*", default=list(SCENARIOS), choices=list(SCENARIOS), metavar="NAME")
    given.add_argument("--out", type=Path, required=True)
    chosen = given.parse_args()
    pages = kept(chosen.out, page_of, chosen.scenarios, chosen)
    print(table([row for name, of in pages.items() for row in rows_of(name, of)]), end="")


if __name__ == "__main__":
    main()
