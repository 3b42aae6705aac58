"""From a study to its cells: a run's configuration and plans of attack each. Checked as a whole, nothing trained."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from fedpriv.attacks import attacks_for, is_attacked, targets_of
from fedpriv.attacks.contract import Attack
from fedpriv.defenses import build_defenses
from fedpriv.federation.defense import defense_facts
from fedpriv.federation.run_directory import RunConfig
from fedpriv.pipeline import plan as planning
from fedpriv.pipeline.plan import AttackPlan
from fedpriv.reports.run_records import ALONE, same_clients
from fedpriv.sources.run import prepare
from fedpriv.study.grid import (
    UNDEFENDED,
    AttackEntry,
    DefenseEntry,
    MethodEntry,
    Study,
    bounded,
    refuse_twice,
    slug,
    with_values,
)
from fedpriv.study.settings import attacker_by_default, run_config
from fedpriv.study.written import Misplaced, at, read_from, wrong
from fedpriv.util.config import plain

MOST_LETTERS = 90  # of a label in the name of a folder, which holds two labels and may not have more than 255

_STORING = ("capture", "keep", "checkpoint_every", "evaluate_every")
"""Settings that say what is stored of a run or measured, and nothing of its clients."""


@dataclass(frozen=True)
class Cell:
    """One run and the attacks on it."""

    name: str  # unique, and a name of folders
    method: MethodEntry
    defense: DefenseEntry
    seed: int
    run: str  # name of the run's folder
    config: RunConfig
    target: str | None  # kind of upload attacked; None where nothing is uploaded
    plans: tuple[AttackPlan, ...]  # one an attack of the study
    homes: tuple[str, ...]  # for each plan the folder, from the study's, that its results stand in
    named: bool  # whether the study names its attacks

    @property
    def client_steps(self) -> int:
        """Parts of clients in rounds that its run takes."""
        return self.config.rounds * max(1, round(self.config.participation * self.config.clients))

    @property
    def attack_iterations(self) -> int:
        """Iterations that its attacks take at most: of every target and restart, and again for the control."""
        attacks = [(plan, attack) for plan in self.plans for attack in plan.attacks.values()]
        return sum((2 if plan.control else 1) * _steps(plan, attack) for plan, attack in attacks)


def _steps(plan: AttackPlan, attack: Attack) -> int:
    budget = 1 if attack.budget is None else int(getattr(attack, attack.budget))
    return (plan.n_targets or attack.most_targets) * int(getattr(attack, "restarts", 1)) * budget


@dataclass(frozen=True)
class Execution:
    """Circumstances of carrying a study out; none of it changes a result beyond the last digits."""

    device: str = "auto"
    download: bool = False
    chunk_rows: int | None = None
    workers: int = 1
    patience: float = 0.0


def lay_out(study: Study, execution: Execution) -> tuple[tuple[Cell, ...], tuple[str, ...]]:
    """Return a study's cells, in order, and a line for everything that was chosen or left out.

    Data is loaded and divided and every network is built, so that whatever cannot run is refused here.
    """
    seeds, cells = study.settings["seeds"], list[Cell]()
    runs, divided, used = dict[str, str](), set[tuple[str, int]](), set[str]()
    notes, misfits = dict.fromkeys(study.notes), list[Misplaced]()
    with read_from(study.source):
        for method in (*study.methods, *(_alone(study) if study.settings["local"] else ())):
            kinds: tuple[str, ...] = ()
            with at(method.keys, method.place_of):
                for seed in seeds:
                    config = config_of(study, method, UNDEFENDED, seed)
                    if seed == seeds[0] or (same_clients(config), seed) not in divided:
                        kinds = _sent(config, execution)
                    divided.add((same_clients(config), seed))
            for defense in study.defenses if method.name != ALONE else (UNDEFENDED,):
                try:
                    target, entries, refusals = _attacked(study, method, defense, kinds, execution)
                except Misplaced as error:
                    if not defense.choices:
                        raise
                    misfits.append(error)
                    notes[f"left out: {method.label} under {defense.label}: {error.said}"] = None
                    continue
                notes |= dict.fromkeys(f"left out: {line}" for line in refusals)
                used |= {entry.name for entry in entries}
                for seed in seeds:
                    config = config_of(study, method, defense, seed)
                    if any(entry.attack.needs.every_extractor for entry in entries):
                        config = replace(config, keep=tuple(range(1, config.rounds + 1)))
                    name = f"{_short(method.label)}--{_short(defense.label)}--s{seed}"
                    run = runs.setdefault(json.dumps(plain(config), sort_keys=True), name)
                    plans = tuple(_plan(study, entry, str(target), seed, execution) for entry in entries)
                    parts = (
                        ("attacks", name, *([_short(with_values("", e.varied))] if e.varied else ())) for e in entries
                    )
                    homes, named = tuple(map("/".join, parts)), study.attacks is not None
                    cells.append(Cell(name, method, defense, seed, run, config, target, plans, homes, named))
        targets = sorted({cell.target for cell in cells if cell.target is not None})
        if all(cell.method.name == ALONE for cell in cells):
            text = f"{ALONE} uploads nothing, so nothing would be attacked"
            raise misfits[0] if misfits else wrong(study.methods[0].keys, text)
        for entry in study.attacks or ():
            if entry.name not in used:
                there, kinds_of = ", ".join(targets), " or ".join(targets_of(entry.name))
                text = f"attack {entry.name!r} is on {kinds_of}, but the targets of this study are: {there}"
                raise wrong(entry.keys, text)
    return tuple(cells), tuple(notes)


def _short(label: str) -> str:
    """Return a label as a part of a file's name, which may not be long."""
    name = slug(label)
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 9]}-{digest}"


def _alone(study: Study) -> list[MethodEntry]:
    """Return the same clients without any exchange, for every setting of theirs that has no such run yet."""
    results = []
    keys = [same_clients(config_of(study, method, UNDEFENDED, study.settings["seeds"][0])) for method in study.methods]
    known = {key for key, method in zip(keys, study.methods, strict=True) if method.name == ALONE}
    for key, method in zip(keys, study.methods, strict=True):
        if key in known:
            continue
        known.add(key)
        settings = {name: value for name, value in method.federation.items() if name not in _STORING}
        measured = {name: value for name, value in method.federation.items() if name == "evaluate_every"}
        federation = {**measured, **settings, "capture": "none", "keep": ()}
        axes = {axis: value for axis, value in method.varied.items() if settings.get(axis) == value}
        label = with_values(ALONE, settings)
        results.append(MethodEntry(label, ALONE, {}, federation, varied=axes, keys=method.keys))
    refuse_twice([*results, *study.methods], "method")
    return results


def config_of(study: Study, method: MethodEntry, defense: DefenseEntry, seed: int) -> RunConfig:
    """Return the configuration of a run of a study."""
    with at(method.keys, method.place_of):
        config = run_config(method.name, {**study.federation, **method.federation}, seed)
    return replace(config, options=method.options, defenses=defense.choices)


def _sent(config: RunConfig, execution: Execution) -> tuple[str, ...]:
    """Return the kinds of payload that leave a run's clients; refuse a run that cannot be trained."""
    return prepare(config, torch.device("cpu"), download=execution.download).uploads


def _attacked(
    study: Study, method: MethodEntry, defense: DefenseEntry, kinds: tuple[str, ...], execution: Execution
) -> tuple[str | None, tuple[AttackEntry, ...], Sequence[str]]:
    """Return the kind of upload of a method under a defense, the attacks on it, and a line for each that is left out.

    ``kinds`` leave its clients where there is no defense.
    """
    config = config_of(study, method, defense, study.settings["seeds"][0])
    if defense.choices:
        with at(defense.keys):
            kinds = _sent(config, execution)
    if method.name == ALONE or study.attacks == ():
        return None, (), ()
    target = _target(method, defense, kinds)
    entries, refusals = _fitting(study, method, target, defense, config.rounds)
    _refuse_attacks(study, method, config, entries)
    return target, entries, refusals


def _target(method: MethodEntry, defense: DefenseEntry, uploads: tuple[str, ...]) -> str:
    kinds = [kind for kind in uploads if is_attacked(kind)]
    if method.target in kinds or (method.target is None and kinds):
        return method.target or kinds[0]
    under, sent = f" under {defense.label}" if defense.choices else "", ", ".join(uploads) or "nothing"
    if method.target is None:
        text = f"{method.name} uploads {sent}{under}, and no attack here is on that; see: fedpriv list targets"
        raise wrong(method.keys, text)
    known = method.target in uploads
    text = f"clients of {method.name!r} upload no {method.target!r}{under}; they upload: {sent}"
    raise wrong((*method.keys, "target"), f"no attack here is on {method.target!r}" if known else text)


def _fitting(
    study: Study, method: MethodEntry, target: str, defense: DefenseEntry, rounds: int
) -> tuple[tuple[AttackEntry, ...], Sequence[str]]:
    """Return the attacks on a method's target that the card allows, and a line for each that it leaves out."""
    seen, iterations = study.settings["rounds_seen"], study.settings["iterations"]
    if study.attacks is None:
        facts = [defense_facts(made) for made in build_defenses(defense.choices)]
        suite = planning.adapted_suite(target, planning.attack_names(target, ()), facts, rounds)
        kinds = planning.build_attacks(suite.names, {})
        options = {name: {**suite.options.get(name, {}), **bounded(kind, iterations)} for name, kind in kinds.items()}
        with at(("knowledge",)):
            kept, refusals = planning.granted(
                planning.build_attacks(suite.names, options), [], target, study.card, seen
            )
        return tuple(AttackEntry(name, current) for name, current in kept.items()), refusals
    entries = tuple(entry for entry in study.attacks if target in targets_of(entry.name))
    if not entries:
        first = study.attacks[0]
        raise wrong(
            first.keys,
            f"attack {first.name!r} is on {' or '.join(targets_of(first.name))}, but the target of "
            f"{method.label!r} is {target!r}; for it there are: {', '.join(attacks_for(target))}",
        )
    for entry in entries:
        with at(("knowledge",) if study.written.get("knowledge") else entry.keys):
            planning.granted({entry.name: entry.attack}, [entry.name], target, study.card, seen)
    return entries, ()


def _refuse_attacks(study: Study, method: MethodEntry, config: RunConfig, entries: Sequence[AttackEntry]) -> None:
    """Check that there will be the images that the attacker is granted, and the rounds that attacks use."""
    if study.card.attacker_data != "none" and not attacker_by_default(config):
        text = f"no images are set aside for the attacker of {method.label}; set auxiliary images in the federation"
        raise wrong(("knowledge",), f"attacker_data={study.card.attacker_data}: {text}")
    rounds, capture = method.place_of(("rounds",)), method.place_of(("capture",))
    if config.capture == "none":
        raise wrong(capture, "none: no upload would be stored, so none could be attacked")
    for entry in entries:
        least = entry.attack.needs.min_rounds
        wanted = max(least, study.settings["rounds_seen"] or 1) if least > 1 else 1
        if wanted > config.rounds:
            raise wrong(rounds, f"{config.rounds}: attack {entry.name!r} uses {wanted} rounds of uploads")
        if least > 1 and config.capture == "last":
            raise wrong(capture, f"last: attack {entry.name!r} needs {least} rounds; use auto or all")


def _plan(study: Study, entry: AttackEntry, target: str, seed: int, execution: Execution) -> AttackPlan:
    settings = {**study.settings, "chunk_rows": execution.chunk_rows}
    settings["rounds_seen"] = settings["rounds_seen"] if entry.attack.needs.min_rounds > 1 else None
    return planning.plan_of(
        target,
        {entry.name: entry.attack},
        study.card,
        settings,
        seed=seed,
        device=execution.device,
        download=execution.download,
    )
