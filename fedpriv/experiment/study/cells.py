"""From a study to its cells: a run's configuration and plans of attack each. Checked against the data, nothing trained."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedpriv.experiment.federation_settings import run_config
from fedpriv.experiment.plan import AttackPlan
from fedpriv.experiment.study.entries import AttackEntry, DefenseEntry, MethodEntry, Study, all_defenses
from fedpriv.experiment.study.shapes import slug
from fedpriv.experiment.study.toml_lines import Path as Keys
from fedpriv.util.config import plain
from fedpriv.util.errors import UserError

if TYPE_CHECKING:
    from fedpriv.federation.rounds import Federation
    from fedpriv.federation.run_directory import RunConfig

DIVIDING = ("dataset", "data_dir", "per_class", "image_size", "partition", "clients", "public")
"""Fields of a run's configuration that, with the seed, say which client holds which images."""


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
        target: kind of upload attacked.
        plans: one an attack of the study.
        named: whether the study names its attacks.
        division: cells of one seed and one division have the same clients with the same images.
        scalars: a settled round's communication before any defense (see
            :func:`fedpriv.federation.planned_traffic.communication`), or why it is not known.
    """

    name: str
    method: MethodEntry
    defense: DefenseEntry
    seed: int
    run: str
    config: RunConfig
    target: str
    plans: tuple[AttackPlan, ...]
    named: bool
    division: str
    scalars: Mapping[str, Any] | str


@dataclass(frozen=True)
class Execution:
    """How a study is carried out; none of it changes a result beyond the last digits.

    Attributes:
        device: a name of ``--device``.
        download: fetch data sets that are missing.
        chunk_rows: rows of an attack at a time.
        workers: processes at a time, one thread each.
    """

    device: str = "auto"
    download: bool = False
    chunk_rows: int | None = None
    workers: int = 1


@dataclass(frozen=True)
class _Outlook:
    """What is known of a method under a defense once its federation has been prepared."""

    target: str
    entries: tuple[AttackEntry, ...]
    scalars: Mapping[str, Any] | str


def lay_out(study: Study, execution: Execution) -> tuple[tuple[Cell, ...], tuple[str, ...]]:
    """Return a study's cells, in order, and a line for each attack that the card leaves out.

    Data is loaded and divided and every network is built, so that whatever cannot run is refused here.

    Raises:
        UserError: naming the key and its line, or the flag.
    """
    cells: list[Cell] = []
    notes: dict[str, None] = {}
    used: set[str] = set()
    runs: dict[str, str] = {}
    divided: set[tuple[str, int]] = set()
    for method in study.methods:
        for defense in method.defenses or study.defenses:
            outlook: _Outlook | None = None
            for seed in study.seeds:
                config = _config(study, method, defense, seed)
                division = _division(config)
                if outlook is None:
                    outlook = _outlook(study, method, defense, config, execution, notes)
                    used |= {entry.name for entry in outlook.entries}
                elif (division, seed) not in divided:
                    with study.source.at(method.keys, ("federation",)):
                        _prepared(config, execution)
                divided.add((division, seed))
                config, plans = _plans(study, config, outlook, seed, execution)
                name = f"{slug(method.label)}--{slug(defense.label)}--s{seed}"
                run = runs.setdefault(json.dumps(plain(config), sort_keys=True), name)
                named = (method.attacks or study.attacks) is not None
                target, scalars = outlook.target, outlook.scalars
                cells.append(Cell(name, method, defense, seed, run, config, target, plans, named, division, scalars))
    for entry in study.attacks or ():
        if entry.name not in used:
            raise study.source.error(entry.keys, _fits_nobody(entry.name, cells))
    return tuple(cells), tuple(notes)


def _config(study: Study, method: MethodEntry, defense: DefenseEntry, seed: int) -> RunConfig:
    flags = {**study.federation, **method.federation}
    flags |= {"keep": tuple(flags.get("keep", ()))}
    with study.source.at(method.keys, ("federation",)):
        config = run_config(method.name, flags, seed)
    return replace(config, options=method.options, defenses=defense.choices)


def _division(config: RunConfig) -> str:
    values = {name: plain(getattr(config, name)) for name in DIVIDING}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


# ---------------------------------------------------------------- what a method under a defense gives an attacker


def _prepared(config: RunConfig, execution: Execution) -> Federation:
    import torch

    from fedpriv.experiment.federation import prepare

    return prepare(config, torch.device("cpu"), download=execution.download)


def _outlook(
    study: Study,
    method: MethodEntry,
    defense: DefenseEntry,
    config: RunConfig,
    execution: Execution,
    notes: dict[str, None],
) -> _Outlook:
    source = study.source
    if defense.choices:
        # Without the defense first: then what is refused with it is the defense's doing.
        with source.at(method.keys, ("federation",)):
            bare = _prepared(replace(config, defenses=()), execution)
        with source.at(defense.keys):
            federation = _prepared(config, execution)
    else:
        with source.at(method.keys, ("federation",)):
            federation = bare = _prepared(config, execution)
    target = _target(study, method, defense, federation.uploads)
    entries = _fitting(study, method, target, notes)
    card = study.card
    if card.attacker_data == "other_domain":
        from fedpriv.evidence.foreign import refuse_foreign

        with source.at(("knowledge",)):
            refuse_foreign(card, config)
    if card.attacker_data == "same_domain" and not config.public:
        raise source.error(
            ("knowledge",),
            f"attacker_data={card.attacker_data}: no images are set aside for the attacker of {method.label}; "
            "set public in the federation",
        )
    _refuse_rounds(study, method, config, entries)
    if (method.attacks or study.attacks) is not None:
        _refuse_property(study, method, entries, federation, target)
    return _Outlook(target, entries, _scalars(bare))


def _target(study: Study, method: MethodEntry, defense: DefenseEntry, uploads: tuple[str, ...]) -> str:
    from fedpriv.attacks import attacks_for

    kinds = [kind for kind in uploads if attacks_for(kind)]
    under = f" under {defense.label}" if defense.choices else ""
    sent = ", ".join(uploads) or "nothing"
    if method.target is None:
        if not kinds:
            raise study.source.error(
                method.keys,
                f"{method.name} uploads {sent}{under}, and no attack here is on that; see: fedpriv list targets",
            )
        return kinds[0]
    if method.target not in uploads:
        raise study.source.error(
            (*method.keys, "target"),
            f"clients of {method.name!r} upload no {method.target!r}{under}; they upload: {sent}",
        )
    if method.target not in kinds:
        raise study.source.error((*method.keys, "target"), f"no attack here is on {method.target!r}")
    return method.target


def _fitting(study: Study, method: MethodEntry, target: str, notes: dict[str, None]) -> tuple[AttackEntry, ...]:
    """Return the attacks on a method's target that the card allows."""
    from fedpriv.attacks import attacks_for, targets_of
    from fedpriv.experiment.plan import attack_names, build_attacks, granted

    source = study.source
    chosen = method.attacks or study.attacks
    if chosen is None:
        names = attack_names(target, ())
        entries = [AttackEntry(name, made) for name, made in build_attacks(names, {}).items()]
    else:
        entries = [entry for entry in chosen if target in targets_of(entry.name)]
        wrong = [entry for entry in chosen if entry not in entries]
        if wrong and (method.attacks or not entries):
            keys = wrong[0].keys if method.attacks or not _is_of_use(study, wrong[0].name) else method.keys
            name = wrong[0].name
            raise source.error(
                keys,
                f"attack {name!r} is on {' or '.join(targets_of(name))}, but the target of {method.label!r} is {target!r}; "
                f"for it there are: {', '.join(attacks_for(target))}",
            )
    for entry in entries if chosen is not None else ():
        with source.at(("knowledge",) if "knowledge" in source.values else entry.keys):
            granted({entry.name: entry.attack}, [entry.name], target, study.card, study.rounds_seen)
    with source.at(("knowledge",)):
        made = {entry.name: entry.attack for entry in entries}
        kept, refusals = granted(made, list(made) if chosen else [], target, study.card, study.rounds_seen)
    notes.update(dict.fromkeys(refusals))
    return tuple(entry for entry in entries if entry.name in kept)


def _is_of_use(study: Study, attack: str) -> bool:
    """Whether some method of a study may upload what an attack is on."""
    from fedpriv.attacks import targets_of
    from fedpriv.methods import METHODS

    methods = [METHODS.load(entry.name) for entry in study.methods]
    mixing = any(choice.name == "entangle" for entry in all_defenses(study) for choice in entry.choices)
    kinds = {kind for method in methods for kind in (*method.uploads, *(method.accepts if mixing else ()))}
    return bool(kinds & set(targets_of(attack)))


def _refuse_rounds(study: Study, method: MethodEntry, config: RunConfig, entries: tuple[AttackEntry, ...]) -> None:
    """Check that the rounds that attacks want will be there."""
    own = method.federation

    def keys(name: str) -> Keys:
        return (*method.keys, name) if name in own else ("federation", name)

    if config.capture == "none":
        raise study.source.error(keys("capture"), "none: no upload would be stored, so none could be attacked")
    if study.stages and config.capture == "last":
        raise study.source.error(keys("capture"), "last: stages need the uploads of earlier rounds; use auto or all")
    for entry in entries:
        least = entry.attack.needs.min_rounds
        wanted = max(least, study.rounds_seen or 1) if least > 1 else 1
        if wanted > config.rounds:
            raise study.source.error(
                keys("rounds"), f"{config.rounds}: attack {entry.name!r} uses {wanted} rounds of uploads"
            )
        if least > 1 and config.capture == "last":
            raise study.source.error(
                keys("capture"), f"last: attack {entry.name!r} needs {least} rounds; use auto or all"
            )


def _refuse_property(
    study: Study, method: MethodEntry, entries: tuple[AttackEntry, ...], federation: Federation, target: str
) -> None:
    """Check that a property inference that the study names will have something to go by."""
    from fedpriv.wire.kinds import KERNELS, TELLING

    silent = federation.shield.server_view == "sum" or not any(kind in TELLING for kind in federation.uploads)
    if not silent or target in KERNELS or study.card.attacker_data == "same_domain":
        return
    for entry in entries:
        if entry.attack.result == "scores" and entry.attack.reads_every_round and not entry.attack.colludes:
            raise study.source.error(
                entry.keys,
                f"attack {entry.name!r} on {method.label}: nothing that the server sees says which classes a client holds, "
                "and the attacker knows nobody to learn it from; grant attacker_data=same_domain and set public in the "
                "federation, or set the attack's known=others",
            )


def _fits_nobody(attack: str, cells: list[Cell]) -> str:
    from fedpriv.attacks import targets_of

    there = ", ".join(sorted({cell.target for cell in cells}))
    return f"attack {attack!r} is on {' or '.join(targets_of(attack))}, but the targets of this study are: {there}"


def _scalars(federation: Federation) -> Mapping[str, Any] | str:
    from fedpriv.federation.planned_traffic import communication, held, with_models
    from fedpriv.wire.sizes import Facts

    config = federation.config
    sizes = held(federation.data)
    blueprint = federation.clients[0].blueprint
    facts = Facts(
        clients=len(federation.participants(1)),
        classes=sizes["classes"],
        width=blueprint.width,
        pairs=sizes["pairs"],
        known_classes=sizes["known_classes"],
        samples=sizes["samples"],
        public=config.public or None,
    )
    try:
        facts = with_models(facts, config.models, blueprint.image_shape, config.mapping)
        mixed = len({setup.blueprint.name for setup in federation.clients}) > 1
        return communication(federation.method, facts, config.options, mixed=mixed)
    except UserError as error:
        return str(error)


# ---------------------------------------------------------------- plans


def _plans(
    study: Study, config: RunConfig, outlook: _Outlook, seed: int, execution: Execution
) -> tuple[RunConfig, tuple[AttackPlan, ...]]:
    """Return a plan for each attack, and the configuration that keeps what they need of earlier stages."""
    from fedpriv.evidence.stages import planned_rounds, rounds_to_keep

    stages: dict[Any, int] = {}
    if study.stages:
        with study.source.at(("stages",)):
            stages = planned_rounds(study.stages, config.rounds)
        kept = rounds_to_keep(outlook.target, tuple(stages.values()))
        config = replace(config, keep=tuple(sorted({*config.keep, *kept})))
    plans = []
    for entry in outlook.entries:
        plan = AttackPlan(
            target=outlook.target,
            attacks={entry.name: entry.attack} if entry.attack.result == "images" else {},
            inferences={entry.name: entry.attack} if entry.attack.result == "scores" else {},
            card=study.card,
            n_targets=study.targets,
            seed=seed,
            rounds_seen=study.rounds_seen if entry.attack.needs.min_rounds > 1 else None,
            stages=stages,
            budgets=entry.budgets,
            control=study.control,
            chunk_rows=execution.chunk_rows,
            device=execution.device,
            download=execution.download,
        )
        if plan.results():
            plans.append(plan)
    return config, tuple(plans)
