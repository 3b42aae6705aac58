"""One budget of seconds for a suite: its searches share it, each in iterations of its own that a trial has timed.

Seconds differ from machine to machine and from hour to hour, so what they come to is decided once, told, and kept in the
folder of the results: an interrupted suite goes on with the same iterations, and anybody can ask for them by name.

What a search takes however few its iterations (training networks of the attacker's own, solving for vectors) comes out of
the budget first; iterations are given what it leaves, at least one each.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from fedpriv.experiment.probe import timed
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.util.files import read_json, write_json

if TYPE_CHECKING:
    from fedpriv.experiment.execution import AttackContext
    from fedpriv.experiment.plan import AttackPlan

SPENDING = "spending"
"""Start of the name of a file in the folder of the results: the iterations that each search was given."""

MOST = 4.0
"""Times its usual iterations that a search is given at most; what it leaves goes to the others."""

ENOUGH = 0.5
"""Share of its usual iterations below which a search that finds nothing says little."""


@dataclass(frozen=True)
class Spent:
    """A search's part of the budget.

    Attributes:
        name: of the attack.
        field: its option that counts iterations.
        usual: iterations that it takes where nobody limits its time.
        given: iterations that it is given.
    """

    name: str
    field: str
    usual: int
    given: int

    @property
    def option(self) -> str:
        """The option that asks for just these iterations."""
        return f"{self.name}.{self.field}={self.given}"

    def caveat(self, seconds: float) -> str:
        """Return why its failure says little, where it was given too few iterations for that; else nothing."""
        if self.given >= ENOUGH * self.usual:
            return ""
        return f"a budget of {seconds:g} seconds for all attacks left it {self.given} of its usual {self.usual} {self.field}"


def spend(grounds: Sequence[AttackContext], folder: Path, say: Callable[[str], None]) -> list[AttackContext]:
    """Return grounds whose searches take the seconds of their plans together; as they are where there is no such budget.

    Attacks that do not iterate and inferences take the time that they take, beside the budget. Of several settings of local
    work each has an equal part of it.

    Args:
        grounds: runs with plans of attacks at their usual iterations.
        folder: of the results; holds what an interrupted suite was given.
        say: told what each is given.

    Raises:
        UserError: when no attack of the plans iterates, or none can be timed.
    """
    seconds = grounds[0].plan.budget_seconds
    if seconds is None:
        return list(grounds)
    if not any(_searches(ground.plan) for ground in grounds):
        named = ", ".join(grounds[0].plan.results())
        raise UserError(f"{argument('budget_seconds')}: {named} has no budget; drop the flag")
    searching = sum(bool(_searches(ground.plan)) for ground in grounds)
    return [_spent(seconds / searching, ground, folder, say) for ground in grounds]


def _searches(plan: AttackPlan) -> dict[str, int]:
    """Return the attacks of a plan that have a budget, with their usual iterations."""
    return {name: int(getattr(made, str(made.budget))) for name, made in plan.attacks.items() if made.budget}


def _spent(seconds: float, ground: AttackContext, folder: Path, say: Callable[[str], None]) -> AttackContext:
    plan, usual = ground.plan, _searches(ground.plan)
    if not usual:
        return ground
    kept = folder / f"{SPENDING}{plan.suffix}.json"
    if kept.is_file():
        given = {name: int(number) for name, number in dict(read_json(kept)).items()}
    else:
        costs = _costs(usual, ground, plan)
        least = sum(cost.least for cost in costs.values())
        shares = divide(max(0.0, seconds - least), {name: cost.iterations for name, cost in costs.items()})
        given = {name: max(1, int(usual[name] * shares[name])) for name in usual}
        write_json(kept, given)
        if least > seconds:
            say(
                f"{argument('budget_seconds')}: {seconds:g} seconds are too few: about {least:.3g} go by before the first "
                "iterations (training, solving for vectors), so each search is given one"
            )
    parts = [Spent(name, str(plan.attacks[name].budget), usual[name], given[name]) for name in usual]
    options = " ".join(argument("attack_option", part.option) for part in parts)
    setting = f" at {plan.reach.words}" if plan.reach is not None else ""
    say(f"{argument('budget_seconds')}: {seconds:g} seconds{setting} are {options}")
    made = {part.name: replace(plan.attacks[part.name], **{part.field: part.given}) for part in parts}
    caveats = {part.name: text for part in parts if (text := part.caveat(seconds))}
    return replace(ground, plan=replace(plan, attacks={**plan.attacks, **made}, caveats=caveats))


def divide(seconds: float, costs: Mapping[str, float]) -> dict[str, float]:
    """Return the times that each search may take its usual iterations: equal seconds, but :data:`MOST` times at most.

    Args:
        seconds: for iterations alone.
        costs: seconds of each search's usual iterations.

    >>> divide(30, {"dip": 20.0, "pixels": 10.0, "decoder": 1.0})
    {'decoder': 4.0, 'dip': 0.65, 'pixels': 1.3}
    """
    found: dict[str, float] = {}
    left = dict(costs)
    while left:
        each = seconds / len(left)
        sated = [name for name, cost in left.items() if MOST * cost <= each]
        if not sated:
            return found | {name: each / cost for name, cost in left.items()}
        for name in sated:
            found[name] = MOST
            seconds -= MOST * left.pop(name)
    return found


@dataclass(frozen=True)
class Costs:
    """The seconds of a search, over all stages of training and with its controls.

    Attributes:
        least: whatever its iterations.
        iterations: of its usual iterations, beside that.
    """

    least: float
    iterations: float


def _costs(usual: Mapping[str, int], ground: AttackContext, plan: AttackPlan) -> dict[str, Costs]:
    """Return the seconds of each search; one that cannot be timed is taken for the mean of the others."""
    found: dict[str, Costs] = {}
    jobs = plan.jobs()
    with tempfile.TemporaryDirectory() as scratch:  # trials at other iterations are no part of the result
        for name, number in usual.items():
            own = [job for job in jobs if job.name == name]
            parts = timed(Path(scratch), ground, plan, own[0]) if own else None
            if parts is not None:
                least = parts.training + len(own) * parts.start
                found[name] = Costs(least, len(own) * max(number * parts.step, 1e-3))
    if not found:
        raise UserError(
            f"{argument('budget_seconds')}: no attack could be timed on this machine; pass iterations instead"
        )
    mean = Costs(*(fmean(getattr(one, part) for one in found.values()) for part in ("least", "iterations")))
    return {name: found.get(name, mean) for name in usual}
