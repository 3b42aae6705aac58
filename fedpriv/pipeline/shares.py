"""A suite of attacks in parts that processes carry out side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from fedpriv.attacks.contract import Attack
from fedpriv.attacks.inference.base import Inference
from fedpriv.pipeline.execute import AttackContext, open_run, run_plan
from fedpriv.pipeline.plan import AttackPlan
from fedpriv.pipeline.result_folders import is_result
from fedpriv.sources.run import RunSource
from fedpriv.util.parallel import Listener, Pool, Relay, number_of_workers, patience_for


@dataclass(frozen=True)
class Part:
    """Some attacks on a run, as whoever carries them out must know them."""

    run: Path
    folder: Path
    plan: AttackPlan
    named: tuple[str, ...]
    command: str

    @property
    def rank(self) -> int:
        """Place in the order: long searches first, lest one be the last."""
        if any(made.most_targets < Attack.most_targets for made in self.plan.attacks.values()):
            return 0
        if any("shadow" in option.name for made in self.plan.inferences.values() for option in fields(made)):
            return 1
        return 2 if self.plan.attacks else 3


_LONG = 10.0
"""Seconds that a long search takes at least, or the training of shadow clients."""

_OPEN: dict[Path, AttackContext] = {}
"""Runs that this process has opened."""


def work_off(
    grounds: Sequence[AttackContext],
    folder: Path,
    named: tuple[str, ...],
    command: str,
    workers: int | str,
    listener: Listener,
) -> None:
    """Carry out what is not saved of suites by several processes; with one there is nothing to do here."""
    parts = []
    for ground in grounds:
        assert isinstance(ground.source, RunSource)
        run = ground.source.run.path
        _OPEN[run] = ground
        todo = [plan for plan in parts_of(ground.plan) if not all(is_result(folder / name) for name in plan.results())]
        parts += [Part(run, folder, plan, named, command) for plan in todo]
    number = number_of_workers(workers, grounds[0].plan.device, len(parts))
    try:
        if number > 1:
            expected = _LONG * sum(part.rank < 2 for part in parts)
            pool = Pool(number, patience_for(workers, expected), listener=listener)
            with pool, listener.progress("attacks") as report:
                for done, _ in enumerate(pool.map(perform, sorted(parts, key=lambda part: part.rank)), start=1):
                    report(done, len(parts), "")
    finally:
        _OPEN.clear()


def perform(part: Part, listener: Relay) -> None:
    """Carry out a part of a suite; what is saved already is passed over."""
    if part.run not in _OPEN:
        _OPEN[part.run], _ = open_run(part.run, part.plan)
    ground = replace(_OPEN[part.run], plan=part.plan)
    run_plan(part.folder, ground, command=part.command, named=part.named, listener=listener)


def parts_of(plan: AttackPlan) -> list[AttackPlan]:
    """Return the parts of a plan: attacks that train the same network stay together."""
    groups: dict[str, list[str]] = {}
    for name, made in [*plan.inferences.items(), *plan.attacks.items()]:
        shadows = plan.card.extractor == "shadow"
        if shadows and isinstance(made, Inference):
            shadows = made.takes_extractor(plan.target, plan.card)
        groups.setdefault(("shadow" if shadows else made.trains(plan.card)) or f"alone {name}", []).append(name)
    return [
        replace(
            plan,
            attacks={name: made for name, made in plan.attacks.items() if name in names},
            inferences={name: made for name, made in plan.inferences.items() if name in names},
        )
        for names in groups.values()
    ]
