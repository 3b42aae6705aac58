"""Simulated pages, judged as every page is: how often a leak is claimed where nothing leaks, and where something does.

    python benchmarks/calibration/simulated_pages.py --pages 1000 --seed 0 --workers 2

A page follows from the seed and its number alone, so several processes change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

import torch
from fedpriv.eval.judgement import judge, judge_page
from rates import counted, parser, table
from simulated import GRADES, INVERSIONS, SOME, Simulated, inferred, inverted
from worlds import World

from fedpriv.eval.records import InferenceResult, ReconstructionRecord
from fedpriv.util.seeds import derive_seed

CLIENTS, EACH = 10, 2
"""Clients of a simulated page, and targets of each."""

POSITIVE_EVERY = 5
"""One page in so many is judged again with leaks beside its nulls."""

LEAKS = {"members, one standard deviation": 1.0, "members, two": 2.0, "members, three": 3.0}
"""Leaks of membership by how far members score above others."""

PROPERTY = 8.0
"""Distance by which a yes scores above a no where a property leaks: it is told with certainty."""

MANY = 20
"""Clients of a page on which a property leaks: each has but four classes."""

PAGE = "whole page"


class Outcome(NamedTuple):
    """The statement of a page on one attack: its verdict alone, on the whole page, and the measures claimed there."""

    attack: str
    unit: str
    leak: bool
    alone: str
    together: str
    claims: tuple[str, ...]


def page_of(seed: int, number: int) -> list[Outcome]:
    """One page: two inversions and four inferences that know nothing; one page in five again with leaks beside them.

    Pages of even number attack representations, those of odd number prototypes; two of them in turn hold one half of the
    inversions, and the next two the other. In four pages clients have a look of their own, in the next four they have none.
    """
    torch.set_num_threads(1)
    alike = number // 4 % 2 == 1
    kind = ("representation", "prototype")[number % 2]
    world = World(derive_seed(seed, "page", number), (EACH,) * CLIENTS, kind, alike)
    unit = world.kind + (", drawn alike" if alike else "")
    nulls: dict[str, ReconstructionRecord | InferenceResult] = {
        name: inverted(world, name) for name in INVERSIONS[number // 2 % 2 :: 2]
    }
    for by_class, what in ((0.0, "noise"), (1.5, "the class alone")):
        for name, asks in (("membership", "images"), ("property", "classes")):
            nulls[f"{name}: {what}"] = inferred(world, Simulated(world=world, asks=asks, by_class=by_class), name)
    found = _judged(nulls, {}, unit)
    if number // 4 % POSITIVE_EVERY == 0:
        leaks = {name: inverted(world, name) for name in (*GRADES, SOME)}
        for name, shift in LEAKS.items():
            leaks[name] = inferred(world, Simulated(world=world, shift=shift), "membership")
        many = World(world.seed, (EACH,) * MANY, world.kind, alike)
        leaks["property"] = inferred(many, Simulated(world=many, asks="classes", shift=PROPERTY), "property")
        found += [one for one in _judged(nulls, leaks, unit) if one.leak]
    return found


def _judged(nulls: Mapping[str, object], leaks: Mapping[str, object], unit: str) -> list[Outcome]:
    records = {**nulls, **leaks}
    verdicts = judge_page(records)
    found = []
    for name, record in records.items():
        measures = (one.measure + ("" if one.by_design is None else " by design") for one in verdicts[name].claims)
        claims = tuple(sorted(set(measures)))
        found.append(Outcome(name, unit, name in leaks, judge(record).kind, verdicts[name].kind, claims))
    false = tuple(sorted({measure for one in found if not one.leak for measure in one.claims}))
    return [*found, Outcome(PAGE, unit, False, "", "claims" if false else "none", false)]


def _groups(outcomes: Sequence[Outcome], *, leak: bool) -> list[tuple[str, str, list[Outcome]]]:
    """Return (attack, unit, outcomes) of every row of a table."""
    chosen = [one for one in outcomes if one.leak == leak]
    keys = dict.fromkeys((one.attack, one.unit) for one in chosen)
    return [(*key, [one for one in chosen if (one.attack, one.unit) == key]) for key in sorted(keys)]


def false_claims(outcomes: Sequence[Outcome]) -> str:
    """A table of how often nulls are said to leak: alone, on a page, and anywhere on a page."""
    groups = _groups(outcomes, leak=False)
    every = [one for name, _, several in groups for one in several if name == PAGE]
    return table(
        [
            {
                "null": name,
                "upload": unit,
                "pages": len(several),
                "claims a leak, alone (%)": ""
                if name == PAGE
                else counted(one.alone not in ("none", "untested") for one in several),
                "on the page (%)": counted(bool(one.claims) for one in several),
                "claimed": ", ".join(sorted({measure for one in several for measure in one.claims})) or "nothing",
            }
            for name, unit, several in [*groups, (PAGE, "all", every)]
        ]
    )


def power(outcomes: Sequence[Outcome]) -> str:
    """A table of how often leaks are found on a page that holds every null beside them, and how often called none at all."""
    return table(
        [
            {
                "leak": name,
                "upload": unit,
                "pages": len(several),
                "found on the page (%)": counted(bool(one.claims) for one in several),
                "said to be none (%)": counted(one.together == "none" for one in several),
            }
            for name, unit, several in _groups(outcomes, leak=True)
        ]
    )


def main() -> None:
    """Judge the pages, and print both tables."""
    chosen = parser(__doc__, pages=1000, seed=0, workers=2).parse_args()
    with ProcessPoolExecutor(chosen.workers) as pool:
        pages = pool.map(partial(page_of, chosen.seed), range(chosen.pages), chunksize=10)
        outcomes = [one for page in pages for one in page]
    print(false_claims(outcomes))
    print(power(outcomes), end="")


if __name__ == "__main__":
    main()
