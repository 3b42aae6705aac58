"""From a study to its cells: a run's configuration and plans of attack each. Checked against the data, nothing trained."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedpriv.experiment.federation_settings import sets_images_aside
from fedpriv.experiment.study.entries import AttackEntry, DefenseEntry, MethodEntry, Study, all_defenses
from fedpriv.experiment.study.grid import slug
from fedpriv.experiment.study.origin import Keys
from fedpriv.experiment.study.runs import config_of, digest, division_of, trainings
from fedpriv.pages.baselines import ALONE
from fedpriv.pipeline.plan import AttackPlan, rounds_to_read
from fedpriv.util.arguments import call
from fedpriv.util.config import plain
from fedpriv.util.numerics import Numerics

if TYPE_CHECKING:
    from fedpriv.federation.prepared import Federation
    from fedpriv.federation.run_directory import RunConfig

MOST_LETTERS = 90
"""Of a label in the name of a folder, which holds two labels and may not have more than 255."""


@dataclass(frozen=True)
class Cell:
    """One run and the attacks on it.

    Attributes:
        name: unique, and a name of folders.
        method: of the study.
        defense: of the study.
        seed: of everything.
        run: name of the run's folder.
        config: of the run.
        target: kind of upload attacked; None where nothing is uploaded.
        plans: one an attack of the study.
        homes: for each plan the folder, from the study's, that its results stand in.
        named: whether the study names its attacks.
        division: cells of one seed and one division have the same clients with the same images.
    """

    name: str
    method: MethodEntry
    defense: DefenseEntry
    seed: int
    run: str
    config: RunConfig
    target: str | None
    plans: tuple[AttackPlan, ...]
    homes: tuple[str, ...]
    named: bool
    division: str


@dataclass(frozen=True)
class Execution:
    """Circumstances of carrying a study out; none of it changes a result beyond the last digits.

    Attributes:
        device: a name of ``--device``.
        download: fetch data sets that are missing.
        chunk_rows: rows of an attack at a time.
        compiled: compile the networks of searches.
        workers: processes at a time, one thread each.
        patience: seconds for which this process works alone before others start: less work is not worth theirs.
        apart: each run is a process of its own; for runs of seconds, that is most of the time.
    """

    device: str = "auto"
    download: bool = False
    chunk_rows: int | None = None
    compiled: bool = False
    workers: int = 1
    patience: float = 0.0
    apart: bool = True


Targets = Mapping[tuple[str, str], str]
"""(label of a method, label of a defense) -> the kind of upload that is attacked."""


def lay_out(study: Study, execution: Execution) -> tuple[tuple[Cell, ...], tuple[str, ...]]:
    """Return a study's cells, in order, and a line for each attack that the card leaves out.

    Data is loaded and divided and every network is built, so that whatever cannot run is refused here.

    Raises:
        UserError: naming the path of the key, or the flag.
    """
    targets: dict[tuple[str, str], str] = {}
    notes: dict[str, None] = {}
    used: set[str] = set()
    divided: set[tuple[str, int]] = set()
    for method, defense in trainings(study):
        for place, seed in enumerate(study.seeds):
            config = config_of(study, method, defense, seed)
            division = (division_of(config), seed)
            if place == 0:
                federation = _checked(study, method, defense, config, execution)
            elif division not in divided:
                with study.origin.at(method.keys, method.place_of):
                    prepared(config, execution)
            divided.add(division)
            if place > 0 or not attacked(study, method):
                continue
            target = _target(study, method, defense, federation.uploads)
            targets[method.label, defense.label] = target
            entries, refusals = _fitting(study, method, target, defense)
            _refuse_knowledge(study, method, config)
            _refuse_rounds(study, method, config, entries)
            if _chosen(study, method) is not None:
                _refuse_property(study, method, entries, federation, target)
            used |= {entry.name for entry in entries}
            notes.update(dict.fromkeys(refusals))
    if not targets and all(entry.name == ALONE for entry in study.methods):
        raise study.origin.error(study.methods[0].keys, f"{ALONE} uploads nothing, so nothing would be attacked")
    for entry in study.attacks or ():
        if entry.name not in used:
            raise study.origin.error(entry.keys, _fits_nobody(entry.name, targets))
    return cells_of(study, targets, execution), tuple(notes)


def cells_of(study: Study, targets: Targets, execution: Execution) -> tuple[Cell, ...]:
    """Return a study's cells, in order, when their targets are known. Needs no data, and checks none.

    Raises:
        UserError: where a setting is wrong by itself.
    """
    cells: list[Cell] = []
    runs: dict[str, str] = {}
    for method, defense in trainings(study):
        target = targets[method.label, defense.label] if attacked(study, method) else None
        entries = () if target is None else _fitting(study, method, target, defense)[0]
        for seed in study.seeds:
            config = config_of(study, method, defense, seed)
            division = division_of(config)
            made = []
            if target is not None:
                read = rounds_to_read((entry.attack for entry in entries), config.rounds)
                config = replace(config, keep=tuple(sorted({*config.keep, *read})))
                plans = [(entry, _plan(study, entry, target, seed, execution)) for entry in entries]
                made = [(entry, plan) for entry, plan in plans if plan.results()]
            name = f"{_short(method.label)}--{_short(defense.label)}--s{seed}"
            cells.append(
                Cell(
                    name=name,
                    method=method,
                    defense=defense,
                    seed=seed,
                    run=runs.setdefault(json.dumps(plain(config), sort_keys=True), name),
                    config=config,
                    target=target,
                    plans=tuple(plan for _, plan in made),
                    homes=tuple("/".join(("attacks", name, *([_variant(e)] if e.varied else []))) for e, _ in made),
                    named=_chosen(study, method) is not None,
                    division=division,
                )
            )
    return tuple(cells)


def _chosen(study: Study, method: MethodEntry) -> tuple[AttackEntry, ...] | None:
    """Return the attacks that are asked for on a method's uploads; None for all that fit."""
    return study.attacks if method.attacks is None else method.attacks


def attacked(study: Study, method: MethodEntry) -> bool:
    """True for a method whose uploads are attacked, and which is not trained only."""
    return method.name != ALONE and _chosen(study, method) != ()


def _short(label: str) -> str:
    """Return a label as a part of a file's name, which may not be long."""
    name = slug(label)
    return name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 9]}-{digest(name)[:8]}"


def _variant(entry: AttackEntry) -> str:
    return _short(" ".join(f"{key}={value}" for key, value in entry.varied.items()))


# ---------------------------------------------------------------- what a method under a defense gives an attacker


def prepared(config: RunConfig, execution: Execution) -> Federation:
    """Return a cell's federation, ready to run.

    Raises:
        UserError: for whatever cannot run.
    """
    import torch

    from fedpriv.sources.federation import prepare

    return prepare(config, torch.device("cpu"), download=execution.download)


def _checked(
    study: Study, method: MethodEntry, defense: DefenseEntry, config: RunConfig, execution: Execution
) -> Federation:
    # Without the defense first: then what is refused with it is the defense's doing.
    with study.origin.at(method.keys, method.place_of):
        federation = prepared(replace(config, defenses=()), execution)
    if not defense.choices:
        return federation
    with study.origin.at(defense.keys):
        return prepared(config, execution)


def _refuse_knowledge(study: Study, method: MethodEntry, config: RunConfig) -> None:
    """Check that there are the images that the attacker is granted."""
    card = study.card
    if card.attacker_data == "other_domain":
        from fedpriv.sources.auxiliary import refuse_foreign

        with study.origin.at(("knowledge",)):
            refuse_foreign(card, config)
    if card.attacker_data == "same_domain" and not sets_images_aside(config):
        raise study.origin.error(
            ("knowledge",),
            f"attacker_data={card.attacker_data}: no images are set aside for the attacker of {method.label}; "
            "set strangers in the federation",
        )


def _target(study: Study, method: MethodEntry, defense: DefenseEntry, uploads: tuple[str, ...]) -> str:
    from fedpriv.attacks import is_attacked

    kinds = [kind for kind in uploads if is_attacked(kind)]
    under = f" under {defense.label}" if defense.choices else ""
    sent = ", ".join(uploads) or "nothing"
    if method.target is None:
        if not kinds:
            raise study.origin.error(
                method.keys,
                f"{method.name} uploads {sent}{under}, and no attack here is on that; see: {call('catalogue', 'targets')}",
            )
        return kinds[0]
    if method.target not in uploads:
        raise study.origin.error(
            (*method.keys, "target"),
            f"clients of {method.name!r} upload no {method.target!r}{under}; they upload: {sent}",
        )
    if method.target not in kinds:
        raise study.origin.error((*method.keys, "target"), f"no attack here is on {method.target!r}")
    return method.target


def _fitting(
    study: Study, method: MethodEntry, target: str, defense: DefenseEntry
) -> tuple[tuple[AttackEntry, ...], tuple[str, ...]]:
    """Return the attacks on a method's target that the card allows, and a line for each that it leaves out."""
    from fedpriv.attacks import attacks_for, targets_of
    from fedpriv.defenses import build_defenses
    from fedpriv.federation.defense import defense_facts
    from fedpriv.pipeline.adapted import adapted_suite
    from fedpriv.pipeline.plan import attack_names, build_attacks, granted

    origin = study.origin
    chosen = _chosen(study, method)
    if chosen is None:
        rounds = config_of(study, method, defense, study.seeds[0]).rounds
        facts = [defense_facts(made) for made in build_defenses(defense.choices)]
        suite = adapted_suite(target, attack_names(target, ()), facts, rounds)
        entries = [AttackEntry(name, made) for name, made in build_attacks(suite.names, suite.options).items()]
    else:
        entries = [entry for entry in chosen if target in targets_of(entry.name)]
        wrong = [entry for entry in chosen if entry not in entries]
        if wrong and (method.attacks or not entries):
            keys = wrong[0].keys if method.attacks or not _is_of_use(study, wrong[0].name) else method.keys
            name = wrong[0].name
            raise origin.error(
                keys,
                f"attack {name!r} is on {' or '.join(targets_of(name))}, but the target of {method.label!r} is {target!r}; "
                f"for it there are: {', '.join(attacks_for(target))}",
            )
    refusals: list[str] = []
    kept: dict[str, Any] = {}
    for entry in entries if chosen is not None else ():
        with origin.at(("knowledge",) if study.origin.values.get("knowledge") else entry.keys):
            granted({entry.name: entry.attack}, [entry.name], target, study.card, study.rounds_seen)
    if chosen is None:
        with origin.at(("knowledge",)):
            made = {entry.name: entry.attack for entry in entries}
            kept, refusals = granted(made, [], target, study.card, study.rounds_seen)
    return tuple(entry for entry in entries if chosen is not None or entry.name in kept), tuple(refusals)


def _is_of_use(study: Study, attack: str) -> bool:
    """True where some method of a study may upload a kind that an attack is on."""
    from fedpriv.attacks import targets_of
    from fedpriv.methods import METHODS

    methods = [METHODS.load(entry.name) for entry in study.methods]
    mixing = any(choice.name == "entangle" for entry in all_defenses(study) for choice in entry.choices)
    kinds = {kind for method in methods for kind in (*method.uploads, *(method.accepted_substitutes if mixing else ()))}
    return bool(kinds & set(targets_of(attack)))


def _refuse_rounds(study: Study, method: MethodEntry, config: RunConfig, entries: tuple[AttackEntry, ...]) -> None:
    """Check that the rounds that attacks want will be there."""

    def keys(name: str) -> Keys:
        return method.place_of((name,))

    if config.capture == "none":
        raise study.origin.error(keys("capture"), "none: no upload would be stored, so none could be attacked")
    for entry in entries:
        least = entry.attack.needs.min_rounds
        wanted = max(least, study.rounds_seen or 1) if least > 1 else 1
        if wanted > config.rounds:
            raise study.origin.error(
                keys("rounds"), f"{config.rounds}: attack {entry.name!r} uses {wanted} rounds of uploads"
            )
        if least > 1 and config.capture == "last":
            raise study.origin.error(
                keys("capture"), f"last: attack {entry.name!r} needs {least} rounds; use auto or all"
            )


def _refuse_property(
    study: Study, method: MethodEntry, entries: tuple[AttackEntry, ...], federation: Federation, target: str
) -> None:
    """Check that a property inference that the study names will have something to go by."""
    from fedpriv.wire.kinds import ANSWERS, TELLING

    silent = federation.pipeline.server_view == "sum" or not any(kind in TELLING for kind in federation.uploads)
    if not silent or target in ANSWERS or study.card.attacker_data == "same_domain":
        return
    for entry in entries:
        if entry.attack.result == "scores" and entry.attack.reads_every_round and not entry.attack.colludes:
            raise study.origin.error(
                entry.keys,
                f"attack {entry.name!r} on {method.label}: nothing that the server sees says which classes a client holds, "
                "and the attacker knows nobody to learn it from; grant attacker_data=same_domain and set strangers in the "
                "federation, or set the attack's known=others",
            )


def _fits_nobody(attack: str, targets: Targets) -> str:
    from fedpriv.attacks import targets_of

    there = ", ".join(sorted(set(targets.values())))
    return f"attack {attack!r} is on {' or '.join(targets_of(attack))}, but the targets of this study are: {there}"


# ---------------------------------------------------------------- plans


def _plan(study: Study, entry: AttackEntry, target: str, seed: int, execution: Execution) -> AttackPlan:
    return AttackPlan(
        target=target,
        attacks={entry.name: entry.attack} if entry.attack.result == "images" else {},
        inferences={entry.name: entry.attack} if entry.attack.result == "scores" else {},
        card=study.card,
        n_targets=study.targets,
        seed=seed,
        rounds_seen=study.rounds_seen if entry.attack.needs.min_rounds > 1 else None,
        budgets=entry.budgets,
        control=study.control,
        chunk_rows=execution.chunk_rows,
        redact=study.redact,
        device=execution.device,
        download=execution.download,
        numerics=Numerics(study.precision, execution.compiled),
    )
