"""Expected traffic and time of a study's cells, from a rehearsal: two clients, few rounds, few iterations.

Of each method under each defense two clients of middling size train for two rounds (or until they have sent as many uploads
as an attack needs) in a temporary folder; of each method each attack runs on what they sent, with two small budgets. Then

- training is the fastest round's local work in proportion to images, its server step in proportion to uploads, and its
  evaluation, times the rounds;
- an attack is the line through its two small budgets, at its full budget, in proportion to targets; twice with the control.
  Attacks work on many targets together, so this is rather too long than too short;
- scalars are what the rehearsed clients sent a round, in proportion to clients.

An attack that cannot be rehearsed is named with its reason, and left out of the sum.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.experiment.plan import AttackPlan, rounds_to_read
from fedpriv.experiment.study.cells import Cell
from fedpriv.util.config import plain
from fedpriv.util.errors import UserError

if TYPE_CHECKING:
    from fedpriv.federation.prepared import Federation

SMALL_BUDGETS = (2, 10)
REHEARSED_CLIENTS = 2
"""One would do for time, but some attacks learn from the uploads of others."""
REHEARSED_TARGETS = 8


@dataclass(frozen=True)
class Estimate:
    """Expected traffic and time of one cell.

    Attributes:
        cell: its name.
        method, defense: their labels.
        seed: of everything.
        target: kind of upload attacked; None where nothing is uploaded.
        upload: of a round, all clients: ``paper_scalars``, ``full_scalars``, ``paper_bytes``, ``full_bytes``; empty where
            it is not known.
        train: seconds, or None.
        attacks: folder of the result -> seconds, or None.
        reasons: why something is not known, a line each; empty where everything is.
    """

    cell: str
    method: str
    defense: str
    seed: int
    target: str | None
    upload: Mapping[str, float]
    train: float | None
    attacks: Mapping[str, float | None]
    reasons: tuple[str, ...] = ()

    @property
    def attack(self) -> float | None:
        """Seconds of the attacks that are known, together; None where none of them is."""
        known = [seconds for seconds in self.attacks.values() if seconds is not None]
        return sum(known) if known or not self.attacks else None

    @property
    def complete(self) -> bool:
        """True where the times of training and of all attacks are known."""
        return self.train is not None and None not in self.attacks.values()


@dataclass(frozen=True)
class _Rehearsal:
    run: Path
    sent: Mapping[str, float]
    train: float
    clients: int


Times = tuple[Mapping[str, float | None], tuple[str, ...]]
"""Folder of a result -> seconds, and why some are not known."""


def estimate(cells: Sequence[Cell], *, download: bool, say: Callable[[str], None]) -> list[Estimate]:
    """Return an estimate of every cell. Nothing is kept.

    Args:
        cells: of a study.
        download: fetch data sets that are missing.
        say: told what is being rehearsed.
    """
    trained: dict[str, _Rehearsal | str] = {}
    attacked: dict[tuple[str, str | None], Times] = {}
    found: list[Estimate] = []
    with tempfile.TemporaryDirectory(prefix="fedpriv-rehearsal-") as name:
        folder = Path(name)

        def rehearsed(cell: Cell) -> _Rehearsal | str:
            key = json.dumps([cell.method.label, plain(cell.config.defenses)])
            if key not in trained:
                under = " under " + cell.defense.label if cell.config.defenses else ""
                say(f"rehearsing {cell.method.label}{under}")
                try:
                    trained[key] = _train(cell, folder / f"run-{len(trained)}", download)
                except UserError as error:
                    trained[key] = str(error)
            return trained[key]

        with contextlib.suppress(UserError):  # what a process does for the first time takes longer
            _train(cells[0], folder / "warm", download)
        for cell in cells:
            run, labels = rehearsed(cell), (cell.name, cell.method.label, cell.defense.label, cell.seed, cell.target)
            if isinstance(run, str):
                unknown = dict.fromkeys(name for number in range(len(cell.plans)) for name in _names(cell, number))
                found.append(Estimate(*labels, {}, None, unknown, (run,)))
                continue
            key = (cell.method.label, cell.target)
            if key not in attacked and cell.plans:
                say(f"rehearsing attacks on {cell.method.label}, {cell.target}")
                attacked[key] = _attacks(cell, run, folder / f"attacks-{len(attacked)}")
            found.append(Estimate(*labels, run.sent, run.train, *attacked.get(key, ({}, ()))))
    return found


def _train(cell: Cell, path: Path, download: bool) -> _Rehearsal:
    import torch

    from fedpriv.defenses import build_defenses
    from fedpriv.experiment.federation import prepare
    from fedpriv.federation.defense import DefensePipeline
    from fedpriv.federation.engines.local import run_clients
    from fedpriv.federation.footprint import refuse_training
    from fedpriv.federation.rounds import run
    from fedpriv.federation.run_directory import RunDirectory
    from fedpriv.wire.ledger import count

    defenses = build_defenses(cell.config.defenses)
    period = DefensePipeline(defenses).period()
    uploads = max([1, *(made.needs.min_rounds for plan in cell.plans for made in plan.attacks.values())])
    rounds = min(cell.config.rounds, max(2, period * uploads))
    kept = rounds_to_read((made for plan in cell.plans for made in plan.attacks.values()), rounds)
    config = replace(cell.config, rounds=rounds, keep=kept, capture="all")
    torch.set_num_threads(1)
    federation = prepare(config, torch.device("cpu"), download=download)
    refuse_training(federation.clients, federation.tests, federation.server.device)
    few = _with_few_clients(federation)
    directory = RunDirectory.create(path, config)
    run(few, directory, run_clients)
    times = [line["seconds"] for line in directory.lines("timings")]
    sizes = [len(setup.train) for setup in federation.clients]
    chosen = few.participants(1)
    share = sum(sizes) / sum(sizes[client] for client in chosen)
    taking_part = len(federation.participants(1))
    served = [line["server"] for line in times]
    seconds = (
        min(line["clients"] for line in times) * share * taking_part / config.clients
        # Where uploads are rare the server has work in the rounds that have any.
        + (min(served) if period == 1 else max(served) / period) * taking_part / len(chosen)
        + max(line["evaluate"] for line in times)
    )
    sent: dict[str, float] = {}
    for kind, total in count(directory.ledger()).items():
        share = taking_part / len(chosen) / rounds
        sent |= {f"{kind}_scalars": total.upload_scalars * share, f"{kind}_bytes": total.upload_bytes * share}
    return _Rehearsal(path, sent, seconds * cell.config.rounds, len(chosen))


def _with_few_clients(federation: Federation) -> Federation:
    """Return a federation of which only the clients nearest the median size ever take part."""
    from fedpriv.federation.prepared import Federation

    sizes = [len(setup.train) for setup in federation.clients]
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    first = max(0, len(order) // 2 - REHEARSED_CLIENTS // 2)
    middle = tuple(sorted(order[first : first + REHEARSED_CLIENTS]))

    class FewClients(Federation):
        def participants(self, round_: int) -> tuple[int, ...]:
            return middle

    return FewClients(**{spec.name: getattr(federation, spec.name) for spec in fields(Federation)})


def _attacks(cell: Cell, run: _Rehearsal, folder: Path) -> Times:
    found: dict[str, float | None] = {}
    reasons: dict[str, None] = {}
    for number, plan in enumerate(cell.plans):
        names = _names(cell, number)
        try:
            times = _attack(cell, plan, run, folder / str(number))
            found |= {name: times[name.rpartition("/")[2]] for name in names}
        except UserError as error:
            found |= dict.fromkeys(names)
            reasons[f"{', '.join(names)} on {cell.method.label}: {error}"] = None
    return found, tuple(reasons)


def _names(cell: Cell, number: int) -> list[str]:
    """Return the folders of a plan's results, from the cell's: ``dip``, ``iterations=5/dip``."""
    home = cell.homes[number].removeprefix(f"attacks/{cell.name}").lstrip("/")
    return ["/".join(filter(None, (home, name))) for name in cell.plans[number].results()]


def _attack(cell: Cell, plan: AttackPlan, run: _Rehearsal, folder: Path) -> dict[str, float]:
    from fedpriv.experiment.execution import prepare_ground
    from fedpriv.experiment.inference import measure_all

    fits = [one.most_targets for one in (*plan.attacks.values(), *plan.inferences.values())]
    asked = plan.n_targets or max(fits)
    few = min(asked, REHEARSED_TARGETS)
    small = replace(plan, n_targets=few, stages={}, budgets=(), rounds_seen=None, control=False, device="cpu")
    if not plan.attacks:
        ground = prepare_ground(run.run, small)
        took = _timed(lambda: measure_all(folder, ground, small, command=""))
        return dict.fromkeys(plan.results(), took * cell.config.clients / run.clients)
    ((name, made),) = plan.attacks.items()
    least = replace(made, **{made.budget: SMALL_BUDGETS[0]}) if made.budget else made
    first, targets = _trial(run, replace(small, attacks={name: least}), folder / f"{name}-first")
    slope = 0.0
    if made.budget:
        more = replace(made, **{made.budget: SMALL_BUDGETS[1]})
        second, _ = _trial(run, replace(small, attacks={name: more}), folder / f"{name}-second")
        slope = max(0.0, (second - first) / (SMALL_BUDGETS[1] - SMALL_BUDGETS[0]))
    start = max(0.0, first - SMALL_BUDGETS[0] * slope)
    # Clients that have fewer targets than were asked for stand for all of them.
    there = targets * cell.config.clients / run.clients if targets < few else asked
    times = min(asked, there) / targets
    found = {}
    for job in plan.jobs():
        budget = getattr(job.attack, job.attack.budget) if job.attack.budget else 0
        found[job.folder] = times * (start + slope * budget) * (2 if job.control else 1)
    return found


def _trial(run: _Rehearsal, plan: AttackPlan, folder: Path) -> tuple[float, int]:
    """Return the seconds of an attack with its scoring, and its number of targets."""
    from fedpriv.experiment.execution import attack_all, prepare_ground

    ground = prepare_ground(run.run, plan)
    (evidence,) = ground.evidence.values()
    return _timed(lambda: attack_all(folder, ground, plan, command="")), max(1, len(evidence.targets))


def _timed(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began
