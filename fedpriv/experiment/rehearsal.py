"""The time that attacks on a run will take before there is a run: probed on what its clients upload after one step each."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.experiment.probe import Enough, Probed, probed
from fedpriv.util.errors import UserError
from fedpriv.util.listener import SILENT

if TYPE_CHECKING:
    from fedpriv.experiment.plan import AttackPlan
    from fedpriv.federation.prepared import Federation
    from fedpriv.federation.run_directory import RunConfig

MANY = 6000
"""Images of which each client's first step already takes seconds; then fewer clients stand for all."""
FEW = 300
"""Images a class that are kept of so many."""


def rehearsed(
    config: RunConfig,
    plans: Sequence[AttackPlan],
    *,
    download: bool = False,
    over: Callable[[], bool] = lambda: False,
) -> Probed:
    """Return the time that plans will take on a run, from a run of the same clients with one local step a round.

    The iteration of an attack takes as long whatever the weights are. Nothing is kept, and nothing of it reaches the run.

    Args:
        config: of the run.
        plans: what will attack it.
        download: fetch the data set where it is missing.
        over: whether the estimate comes too late; then it is broken off.
    """
    with tempfile.TemporaryDirectory(prefix="fedpriv-rehearsal-") as name:
        try:
            return _together(Path(name), config, [plan for plan in plans if plan.results()], download, over)
        except (UserError, Enough):  # what is wrong, the work itself will say
            return Probed()


def _together(
    folder: Path, config: RunConfig, plans: Sequence[AttackPlan], download: bool, over: Callable[[], bool]
) -> Probed:
    from fedpriv.experiment.execution import collected, open_ground, without_points
    from fedpriv.federation.engines.local import run_clients
    from fedpriv.federation.rounds import run
    from fedpriv.federation.run_directory import RunDirectory

    if not plans:
        return Probed()
    federation = _small(config, plans, download)
    directory = RunDirectory.create(folder / "run", federation.config)

    def report(done: int, planned: int, what: str) -> None:
        if over():
            raise Enough

    run(federation, directory, run_clients, report)
    found, ground = Probed(), None
    for number, plan in enumerate(plans):
        once = replace(plan, stages={}, round=None, rounds_seen=None, device="cpu")
        opened = open_ground(folder / "run", once) if ground is None else replace(ground, plan=once, evidence={})
        ground, _ = without_points(opened)
        own = probed(folder / f"plan-{number}", collected(ground), ground.plan, SILENT.say, over)
        times = len(plan.moments)
        found = Probed(
            found.seconds + times * own.seconds,
            max(found.longest, own.longest),
            found.timed + own.timed,
            found.of + own.of,
            found.spent + own.spent,
        )
    return found


def _small(config: RunConfig, plans: Sequence[AttackPlan], download: bool) -> Federation:
    import torch

    from fedpriv.experiment.federation import prepare
    from fedpriv.experiment.plan import rounds_to_read

    rounds = max([1, *(made.needs.min_rounds for plan in plans for made in plan.attacks.values())])
    # What a setting of a reach takes depends on its local work.
    own_work = any(plan.reach is not None for plan in plans)
    training = config.training if own_work else replace(config.training, max_steps=1)
    rounds = min(rounds, config.rounds)
    kept = rounds_to_read((made for plan in plans for made in plan.attacks.values()), rounds)
    short = replace(config, rounds=rounds, training=training, keep=kept, capture="all", convergence=0)
    federation = prepare(short, torch.device("cpu"), download=download)
    if sum(len(setup.train) for setup in federation.clients) > MANY:
        federation = prepare(replace(short, per_class=FEW), torch.device("cpu"), download=download)
    return federation
