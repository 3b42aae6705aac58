"""Simulated pages, judged as every page is: how often each verdict stands where nothing leaks, and where something does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedpriv.calibration.rates import counted, table
from fedpriv.calibration.simulated import (
    GRADES,
    INVERSIONS,
    SOME,
    SimulatedMembership,
    SimulatedProperty,
    inferred,
    inverted,
)
from fedpriv.calibration.world import Kind, World, raw
from fedpriv.scoring.judgement import judge, judge_page
from fedpriv.scoring.records import Comparison, InferenceResult, ReconstructionRecord
from fedpriv.util.seeds import derive_seed

CLIENTS, EACH = 10, 2
"""Clients of a simulated page, and targets of each."""

POSITIVE_EVERY = 5
"""One page in so many is judged again with leaks beside its nulls."""

LEAKS = {"members, one standard deviation": 1.0, "members, two": 2.0, "members, three": 3.0}
"""Leaks of membership by how far members score above others."""

PROPERTY = 8.0
"""Distance by which a yes scores above a no where a property leaks: it is told with certainty."""

ASKED = 20
"""Clients of whom that is asked: each has but four classes."""

PAGE = "whole page"

DRAWN_ALIKE = ", drawn alike"
"""Said of uploads in worlds whose clients have no look of their own."""


@dataclass(frozen=True)
class Outcome:
    """The statement of a page on one attack.

    Attributes:
        attack: what it was, or :data:`PAGE`.
        unit: kind of upload, and whether the world's images are drawn alike.
        leak: whether there was something to find.
        alone: kind of its verdict where it stands alone on a page.
        together: kind of its verdict on the whole page; of the page, the gravest of its nulls.
        claims: measures claimed on the whole page, with those by design by themselves.
        found: measures whose own p-value is at most 5 %, unadjusted, and those compared.
    """

    attack: str
    unit: str
    leak: bool
    alone: str
    together: str
    claims: tuple[str, ...]
    found: tuple[tuple[str, bool], ...]


def page_of(seed: int, number: int) -> list[Outcome]:
    """One page: two inversions and four inferences that know nothing; one page in five again with leaks beside them.

    Pages of even number attack representations, those of odd number prototypes; two of them in turn hold one half of the
    inversions, and the next two the other. In four pages clients have a look of their own, in the next four they have none.

    Args:
        seed: of the whole calibration.
        number: of the page.
    """
    kind: Kind = "representation" if number % 2 == 0 else "prototype"
    alike = number // 4 % 2 == 1
    unit = kind + (DRAWN_ALIKE if alike else "")
    world = World(derive_seed(seed, "page", number), (EACH,) * CLIENTS, kind, alike)
    seen = raw(world)
    nulls: dict[str, ReconstructionRecord | InferenceResult] = {
        name: inverted(world, name) for name in INVERSIONS[number // 2 % 2 :: 2]
    }
    for by_class, what in ((0.0, "noise"), (1.5, "the class alone")):
        nulls[f"membership: {what}"] = inferred(
            world, SimulatedMembership(world=world, by_class=by_class), seen, "membership"
        )
        nulls[f"property: {what}"] = inferred(
            world, SimulatedProperty(world=world, by_class=by_class), seen, "property"
        )
    found = _judged(nulls, {}, unit)
    if number // 4 % POSITIVE_EVERY == 0:
        leaks: dict[str, ReconstructionRecord | InferenceResult] = {
            name: inverted(world, name) for name in (*GRADES, SOME)
        }
        for name, shift in LEAKS.items():
            leaks[name] = inferred(world, SimulatedMembership(world=world, shift=shift), seen, "membership")
        many = World(world.seed, (EACH,) * ASKED, kind, alike)
        leaks["property"] = inferred(many, SimulatedProperty(world=many, shift=PROPERTY), raw(many), "property")
        found += [one for one in _judged(nulls, leaks, unit) if one.leak]
    return found


def _judged(
    nulls: dict[str, ReconstructionRecord | InferenceResult],
    leaks: dict[str, ReconstructionRecord | InferenceResult],
    unit: str,
) -> list[Outcome]:
    verdicts = judge_page(nulls | leaks)
    found = []
    for name, record in (nulls | leaks).items():
        own = tuple((_name(one), one.p_value is not None and one.p_value <= 0.05) for one in record.comparisons)
        claims = tuple(sorted({_name(one) for one in verdicts[name].claims}))
        alone = judge(record).kind
        found.append(Outcome(name, unit, name in leaks, alone, verdicts[name].kind, claims, own))
    false = tuple(sorted({measure for one in found if not one.leak for measure in one.claims}))
    return [*found, Outcome(PAGE, unit, False, "", "claims" if false else "none", false, ())]


def _name(one: Comparison) -> str:
    return one.measure if one.by_design is None else f"{one.measure} by design"


def false_claims(outcomes: Sequence[Outcome]) -> str:
    """A table of how often nulls are said to leak: alone, on a page, and anywhere on a page."""
    rows = []
    for name in dict.fromkeys(one.attack for one in outcomes if not one.leak):
        for unit in dict.fromkeys(one.unit for one in outcomes):
            own = [one for one in outcomes if (one.attack, one.unit, one.leak) == (name, unit, False)]
            if not own:
                continue
            rows.append(
                {
                    "null": name,
                    "upload": unit,
                    "pages": len(own),
                    "claims a leak, alone (%)": "" if name == PAGE else counted(map(_leaks_alone, own)),
                    "on the page (%)": counted(bool(one.claims) for one in own),
                    "claimed": ", ".join(sorted({measure for one in own for measure in one.claims})) or "nothing",
                }
            )
    both = [one for one in outcomes if one.attack == PAGE and not one.leak]
    rows.append(
        {
            "null": "any of them",
            "upload": "all",
            "pages": len(both),
            "claims a leak, alone (%)": "",
            "on the page (%)": counted(bool(one.claims) for one in both),
            "claimed": "",
        }
    )
    return table(rows)


def _leaks_alone(one: Outcome) -> bool:
    return one.alone not in ("none", "untested")


def by_measure(outcomes: Sequence[Outcome]) -> str:
    """A table of how often the p-value of a comparison, by itself, is at most 5 % where nothing leaks."""
    found: dict[str, list[bool]] = {}
    for one in outcomes:
        if not one.leak:
            for measure, hit in one.found:
                found.setdefault(measure, []).append(hit)
    rows = [
        {"measure": name, "comparisons": len(hits), "p <= 0.05, unadjusted (%)": f"{100 * sum(hits) / len(hits):.1f}"}
        for name, hits in found.items()
    ]
    return table(rows)


def verdicts(outcomes: Sequence[Outcome]) -> str:
    """A table of the rate of every verdict on pages of nulls, over all of them."""
    rows = []
    for name in dict.fromkeys(one.attack for one in outcomes if not one.leak and one.attack != PAGE):
        own = [one.together for one in outcomes if one.attack == name and not one.leak]
        said = {kind: counted(one == kind for one in own) for kind in dict.fromkeys(own)}
        rows.append({"null": name, "verdicts (%)": "; ".join(f"{kind} {rate}" for kind, rate in said.items())})
    return table(rows)


def power(outcomes: Sequence[Outcome]) -> str:
    """A table of how often leaks are found on a page that holds every null beside them, and how often called none at all."""
    rows = []
    for name in dict.fromkeys(one.attack for one in outcomes if one.leak):
        for unit in dict.fromkeys(one.unit for one in outcomes):
            own = [one for one in outcomes if one.leak and (one.attack, one.unit) == (name, unit)]
            if own:
                measures = sorted({measure for one in own for measure, _ in one.found})
                each = [f"{m} {100 * sum(m in one.claims for one in own) / len(own):.0f}" for m in measures]
                rows.append(
                    {
                        "leak": name,
                        "upload": unit,
                        "pages": len(own),
                        "found on the page (%)": counted(bool(one.claims) for one in own),
                        "said to be none (%)": counted(one.together == "none" for one in own),
                        "by measure (%)": ", ".join(each),
                    }
                )
    return table(rows)
