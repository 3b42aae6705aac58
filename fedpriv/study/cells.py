"""From a study to its cells: a run's configuration and plans of attack each. Checked against the data, nothing trained."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedpriv.attacks import attacks_for, is_attacked, targets_of
from fedpriv.defenses import build_defenses
from fedpriv.federation.defense import defense_facts
from fedpriv.federation.prepared import Federation
from fedpriv.federation.run_directory import RunConfig
from fedpriv.pipeline.plan import (
    AttackPlan,
    adapted_suite,
    attack_names,
    build_attacks,
    granted,
    plan_of,
    rounds_to_read,
)
from fedpriv.reports.run_records import ALONE, same_clients
from fedpriv.sources.run import prepare
from fedpriv.study.grid import (
    UNDEFENDED,
    AttackEntry,
    DefenseEntry,
    MethodEntry,
    Study,
    refuse_twice,
    slug,
    with_values,
)
from fedpriv.study.settings import attacker_by_default, run_config
from fedpriv.study.written import at, read_from, wrong
from fedpriv.util.compute import Numerics
from fedpriv.util.config import plain

MOST_LETTERS = 90
"""Of a label in the name of a folder, which holds two labels and may not have more than 255."""

DIVIDING = (
    *("dataset", "data_dir", "per_class", "image_size", "partition", "clients", "public", "auxiliary"),
    "division_seed",
)
"""Fields of a run's configuration that, with the seed, say which client holds which images."""

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
    division: str  # cells of one seed and one division have the same clients with the same images


@dataclass(frozen=True)
class Execution:
    """Circumstances of carrying a study out; none of it changes a result beyond the last digits."""

    device: str = "auto"
    download: bool = False
    chunk_rows: int | None = None
    compiled: bool = False
    workers: int = 1
    patience: float = 0.0


def lay_out(study: Study, execution: Execution) -> tuple[tuple[Cell, ...], tuple[str, ...]]:
    """Return a study's cells, in order, and a line for each attack that the card leaves out.

    Data is loaded and divided and every network is built, so that whatever cannot run is refused here.
    """
    targets: dict[tuple[str, str], str] = {}
    notes: dict[str, None] = {}
    used: set[str] = set()
    divided: set[tuple[str, int]] = set()
    with read_from(study.source):
        for method, defense in trainings(study):
            first = config_of(study, method, defense, study.seeds[0])
            federation = _checked(method, defense, first, execution)
            divided.add((division_of(first), study.seeds[0]))
            for seed in study.seeds[1:]:
                config = config_of(study, method, defense, seed)
                if (division_of(config), seed) not in divided:
                    with at(method.keys, method.place_of):
                        prepared(config, execution)
                divided.add((division_of(config), seed))
            if attacked(study, method):
                target = _target(method, defense, federation.uploads)
                entries, refusals = _fitting(study, method, target, defense)
                _refuse_attacks(study, method, first, entries)
                targets[method.label, defense.label] = target
                used |= {entry.name for entry in entries}
                notes.update(dict.fromkeys(refusals))
        if not targets and all(entry.name == ALONE for entry in study.methods):
            raise wrong(study.methods[0].keys, f"{ALONE} uploads nothing, so nothing would be attacked")
        for entry in study.attacks or ():
            if entry.name not in used:
                there, kinds = ", ".join(sorted(set(targets.values()))), " or ".join(targets_of(entry.name))
                text = f"attack {entry.name!r} is on {kinds}, but the targets of this study are: {there}"
                raise wrong(entry.keys, text)
        return cells_of(study, targets, execution), tuple(notes)


def cells_of(study: Study, targets: Mapping[tuple[str, str], str], execution: Execution) -> tuple[Cell, ...]:
    """Return a study's cells, by (label of method, of defense) -> kind of upload that is attacked. Checks nothing."""
    cells: list[Cell] = []
    runs: dict[str, str] = {}
    for method, defense in trainings(study):
        target = targets[method.label, defense.label] if attacked(study, method) else None
        entries = () if target is None else _fitting(study, method, target, defense)[0]
        for seed in study.seeds:
            config = config_of(study, method, defense, seed)
            division = division_of(config)
            keep = {*config.keep, *rounds_to_read((entry.attack for entry in entries), config.rounds)}
            config = replace(config, keep=tuple(sorted(keep)))
            name = f"{_short(method.label)}--{_short(defense.label)}--s{seed}"
            home = f"attacks/{name}"
            cells.append(
                Cell(
                    name=name,
                    method=method,
                    defense=defense,
                    seed=seed,
                    run=runs.setdefault(json.dumps(plain(config), sort_keys=True), name),
                    config=config,
                    target=target,
                    plans=tuple(_plan(study, entry, str(target), seed, execution) for entry in entries),
                    homes=tuple(f"{home}/{_variant(e)}" if e.varied else home for e in entries),
                    named=_chosen(study, method) is not None,
                    division=division,
                )
            )
    return tuple(cells)


def attacked(study: Study, method: MethodEntry) -> bool:
    """True for a method whose uploads are attacked, and which is not trained only."""
    return method.name != ALONE and _chosen(study, method) != ()


def _chosen(study: Study, method: MethodEntry) -> tuple[AttackEntry, ...] | None:
    """Return the attacks that are asked for on a method's uploads; None for all that fit."""
    return study.attacks if method.attacks is None else method.attacks


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _short(label: str) -> str:
    """Return a label as a part of a file's name, which may not be long."""
    name = slug(label)
    return name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 9]}-{_digest(name)[:8]}"


def _variant(entry: AttackEntry) -> str:
    return _short(" ".join(f"{key}={value}" for key, value in entry.varied.items()))


# ---------------------------------------------------------------- runs


def trainings(study: Study) -> list[tuple[MethodEntry, DefenseEntry]]:
    """Return the methods of a study with their defenses; last ``local`` for every setting of theirs that has none yet."""
    methods = [*study.methods, *(_alone(study) if study.local else ())]
    return [(method, defense) for method in methods for defense in method.defenses or study.defenses]


def _alone(study: Study) -> list[MethodEntry]:
    """Return the same clients without any exchange."""
    results = []
    keys = [same_clients(config_of(study, method, UNDEFENDED, study.seeds[0])) for method in study.methods]
    known = {key for key, method in zip(keys, study.methods, strict=True) if method.name == ALONE}
    for key, method in zip(keys, study.methods, strict=True):
        if key in known:
            continue
        known.add(key)
        settings = {name: value for name, value in method.federation.items() if name not in _STORING}
        measured = {name: value for name, value in method.federation.items() if name == "evaluate_every"}
        label = with_values(ALONE, settings)
        results.append(
            MethodEntry(
                label=label,
                title=label,
                name=ALONE,
                options={},
                federation={**measured, **settings, "capture": "none", "keep": ()},
                defenses=(UNDEFENDED,),
                varied={axis: value for axis, value in method.varied.items() if settings.get(axis) == value},
                keys=method.keys,
            )
        )
    refuse_twice([*results, *study.methods], "method")
    return results


def config_of(study: Study, method: MethodEntry, defense: DefenseEntry, seed: int) -> RunConfig:
    """Return the configuration of a run of a study."""
    flags = {**study.federation, **method.federation}
    with at(method.keys, method.place_of):
        config = run_config(method.name, flags, seed)
    return replace(config, options=method.options, defenses=defense.choices)


def division_of(config: RunConfig) -> str:
    """Return the key of runs that, with one seed, have the same clients with the same images."""
    return _digest(json.dumps({name: plain(getattr(config, name)) for name in DIVIDING}, sort_keys=True))[:12]


def prepared(config: RunConfig, execution: Execution) -> Federation:
    """Return a cell's federation, ready to run."""
    import torch

    return prepare(config, torch.device("cpu"), download=execution.download)


def _checked(method: MethodEntry, defense: DefenseEntry, config: RunConfig, execution: Execution) -> Federation:
    # Without the defense first: then what is refused with it is the defense's doing.
    with at(method.keys, method.place_of):
        federation = prepared(replace(config, defenses=()), execution)
    if not defense.choices:
        return federation
    with at(defense.keys):
        return prepared(config, execution)


# ---------------------------------------------------------------- what a method under a defense gives an attacker


def _target(method: MethodEntry, defense: DefenseEntry, uploads: tuple[str, ...]) -> str:
    kinds = [kind for kind in uploads if is_attacked(kind)]
    under, sent = f" under {defense.label}" if defense.choices else "", ", ".join(uploads) or "nothing"
    if method.target is None:
        if not kinds:
            text = f"{method.name} uploads {sent}{under}, and no attack here is on that; see: fedpriv list targets"
            raise wrong(method.keys, text)
        return kinds[0]
    if method.target not in uploads:
        text = f"clients of {method.name!r} upload no {method.target!r}{under}; they upload: {sent}"
        raise wrong((*method.keys, "target"), text)
    if method.target not in kinds:
        raise wrong((*method.keys, "target"), f"no attack here is on {method.target!r}")
    return method.target


def _fitting(
    study: Study, method: MethodEntry, target: str, defense: DefenseEntry
) -> tuple[tuple[AttackEntry, ...], tuple[str, ...]]:
    """Return the attacks on a method's target that the card allows, and a line for each that it leaves out."""
    chosen = _chosen(study, method)
    if chosen is None:
        rounds = config_of(study, method, defense, study.seeds[0]).rounds
        facts = [defense_facts(made) for made in build_defenses(defense.choices)]
        suite = adapted_suite(target, attack_names(target, ()), facts, rounds)
        made = build_attacks(suite.names, suite.options)
        with at(("knowledge",)):
            kept, refusals = granted(made, [], target, study.card, study.rounds_seen)
        return tuple(AttackEntry(name, current) for name, current in kept.items()), tuple(refusals)
    entries = [entry for entry in chosen if target in targets_of(entry.name)]
    others = [entry for entry in chosen if entry not in entries]
    if others and (method.attacks or not entries):
        raise wrong(
            others[0].keys,
            f"attack {others[0].name!r} is on {' or '.join(targets_of(others[0].name))}, but the target of "
            f"{method.label!r} is {target!r}; for it there are: {', '.join(attacks_for(target))}",
        )
    for entry in entries:
        with at(("knowledge",) if study.written.get("knowledge") else entry.keys):
            granted({entry.name: entry.attack}, [entry.name], target, study.card, study.rounds_seen)
    return tuple(entries), ()


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
        wanted = max(least, study.rounds_seen or 1) if least > 1 else 1
        if wanted > config.rounds:
            raise wrong(rounds, f"{config.rounds}: attack {entry.name!r} uses {wanted} rounds of uploads")
        if least > 1 and config.capture == "last":
            raise wrong(capture, f"last: attack {entry.name!r} needs {least} rounds; use auto or all")


def _plan(study: Study, entry: AttackEntry, target: str, seed: int, execution: Execution) -> AttackPlan:
    rounds_seen = study.rounds_seen if entry.attack.needs.min_rounds > 1 else None
    settings = {name: getattr(study, name) for name in ("targets", "control", "redact")}
    return plan_of(
        target,
        {entry.name: entry.attack},
        study.card,
        {**settings, "rounds_seen": rounds_seen, "chunk_rows": execution.chunk_rows},
        seed=seed,
        device=execution.device,
        download=execution.download,
        numerics=Numerics(study.precision, execution.compiled),
    )
