"""A suite of attacks in parts that processes carry out side by side."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.pipeline.plan import AttackPlan
from fedpriv.util.listener import Listener
from fedpriv.util.parallel import Pool, Relay, number_of_workers, patience_for

if TYPE_CHECKING:
    from fedpriv.attacks.contract import Declared
    from fedpriv.pipeline.execute import AttackContext


@dataclass(frozen=True)
class Suite:
    """A suite of attacks on a run, or a part of it, as all who carry out a part must know it."""

    run: Path
    folder: Path
    plan: AttackPlan
    named: tuple[str, ...]
    command: str


_GROUNDS: dict[Path, AttackContext] = {}
"""Runs that this process has opened."""


def work_off(suites: Sequence[Suite], grounds: Sequence[AttackContext], workers: int | str, listener: Listener) -> None:
    """Carry out what is not saved of suites by several processes; with one there is nothing to do here."""
    parts = [
        replace(suite, plan=plan) for suite in suites for plan in parts_of(suite.plan) if not _saved(plan, suite.folder)
    ]
    number = number_of_workers(workers, suites[0].plan.device, len(parts))
    if number == 1:
        return
    _GROUNDS.update((suite.run, ground) for suite, ground in zip(suites, grounds, strict=True))
    try:
        parts.sort(key=lambda part: _rank(part.plan))
        with (
            Pool(number, patience_for(workers, len(suites)), listener=listener) as pool,
            listener.progress("attacks") as report,
        ):
            for done, _ in enumerate(pool.map(perform, parts), start=1):
                report(done, len(parts), "")
    finally:
        _GROUNDS.clear()


def perform(part: Suite, listener: Relay) -> None:
    """Carry out a part of a suite; what is saved already is passed over."""
    from fedpriv.pipeline.execute import attack_all, open_ground
    from fedpriv.pipeline.infer import measure_all

    if part.run not in _GROUNDS:
        _GROUNDS[part.run] = open_ground(part.run, part.plan)
    ground = _GROUNDS[part.run]
    attack_all(part.folder, ground, part.plan, command=part.command, listener=listener)
    measure_all(part.folder, ground, part.plan, command=part.command, named=part.named, listener=listener)


def parts_of(plan: AttackPlan) -> list[AttackPlan]:
    """Return the parts of a plan: attacks that train the same network stay together."""
    everything: dict[str, Declared] = {**plan.inferences, **plan.attacks}
    groups: dict[str, list[str]] = {}
    for name, made in everything.items():
        network = "shadow" if _takes_shadows(plan, made) else made.trains(plan.card)
        groups.setdefault(network or f"alone {name}", []).append(name)
    return [_only(plan, names) for names in groups.values()]


def _only(plan: AttackPlan, names: Collection[str]) -> AttackPlan:
    attacks = {name: made for name, made in plan.attacks.items() if name in names}
    return replace(plan, attacks=attacks, inferences={k: made for k, made in plan.inferences.items() if k in names})


def _takes_shadows(plan: AttackPlan, made: Declared) -> bool:
    from fedpriv.attacks.inference.base import Inference

    if plan.card.extractor != "shadow":
        return False
    return made.takes_extractor(plan.target, plan.card) if isinstance(made, Inference) else True


def _saved(plan: AttackPlan, folder: Path) -> bool:
    from fedpriv.scoring.storage import holds_scores, is_attack_directory

    places = [folder / name for name in plan.results()]
    return all(is_attack_directory(position) or holds_scores(position) for position in places)


def _rank(plan: AttackPlan) -> int:
    """Return the place of a part in the order, so that no long one is the last.

    Long searches, then inferences that learn from clients they make up, other searches, and inferences that do not.
    """
    from fedpriv.attacks.contract import Attack

    if any(made.most_targets < Attack.most_targets for made in plan.attacks.values()):
        return 0
    if any("shadow" in option.name for made in plan.inferences.values() for option in fields(made)):
        return 1
    return 2 if plan.attacks else 3
