"""From a study as it is written to its methods, defenses and attacks: names looked up, options parsed, grids expanded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.experiment.federation_settings import FLAG_NAMES, sets_images_aside
from fedpriv.experiment.study.axes import Axes, filled, flat, named, points, read_axes, refuse_values, varied
from fedpriv.experiment.study.definition import (
    WrittenAttack,
    WrittenDefense,
    WrittenMethod,
    WrittenStudy,
    read_written,
    unknown_key,
)
from fedpriv.experiment.study.entries import UNDEFENDED, AttackEntry, DefenseEntry, MethodEntry, Study
from fedpriv.experiment.study.origin import Keys, Origin
from fedpriv.pages.baselines import ALONE
from fedpriv.util.config import parse, plain

if TYPE_CHECKING:
    from fedpriv.attacks.observation import KnowledgeCard
    from fedpriv.federation.method import Method

FEDERATION = tuple(name for name in FLAG_NAMES if name not in ("option", "defense"))
"""Settings that all methods share, or a method overrides: flags of ``fedpriv train``."""

INSTEAD = {
    "seed": "use seeds = [...] at the top of the study",
    "option": "options belong to a method: { name = ..., option = { ... } }",
    "defense": "use defenses = [...] at the top of the study",
    "method": "use methods = [...] at the top of the study",
    "download": "it says how a study is carried out, not what it is: pass it beside the study",
}


def parse_study(origin: Origin) -> Study:
    """Read and check everything that needs no data, and expand the grids.

    Raises:
        UserError: naming the path of the key, or the flag.
    """
    written = read_written(origin)
    shared = _federation(origin, ("federation",), written.federation)
    axes = read_axes(written, origin, FEDERATION)
    defenses = _defenses(written.defenses, axes, ("defenses",))
    attacks = _attacks(written.attacks, axes, ("attacks",))
    methods = tuple(
        point for place, entry in enumerate(written.methods) for point in _methods(entry, axes, ("methods", place))
    )
    refuse_twice(origin, methods, "method")
    axes.refuse_unmet(_names(written))
    return Study(
        federation=shared,
        methods=methods,
        defenses=defenses,
        attacks=attacks,
        seeds=tuple(written.seeds if axes.seeds is None else _axis_of_seeds(origin, axes.seeds)),
        card=_card(origin, written.knowledge, [{**shared, **entry.federation} for entry in methods]),
        targets=written.targets,
        control=written.control,
        local=written.local,
        redact=written.redact,
        precision=written.precision,
        rounds_seen=written.rounds_seen,
        origin=origin,
    )


def _axis_of_seeds(origin: Origin, values: list[Any]) -> list[int]:
    place = next(key for key in origin.values["axes"] if str(key) in ("seed", "seeds"))
    alone = {"seeds": values, "axes": origin.values["axes"]}
    return read_written(Origin(alone, origin.file, origin.flags, {("seeds",): ("axes", place)})).seeds


def _card(origin: Origin, table: Mapping[str, Any], federations: Sequence[Mapping[str, Any]]) -> KnowledgeCard:
    from fedpriv.experiment.read_card import parse_card

    with origin.at(("knowledge",)):
        return parse_card(table, images_aside=all(map(sets_images_aside, federations)))


def _names(written: WrittenStudy) -> dict[str, list[str]]:
    """Return the names and labels of a study's members."""
    chains = [*written.defenses, *(chain for method in written.methods for chain in method.defenses or ())]
    attacks = [*(written.attacks or ()), *(one for method in written.methods for one in method.attacks or ())]
    return {
        "methods": [entry.label or entry.name for entry in written.methods],
        "defenses": [entry.label or entry.name for chain in chains for entry in chain],
        "attacks": [entry.name for entry in attacks],
    }


# ---------------------------------------------------------------- methods

_SETTINGS = "@federation"
"""Stands for the settings beside a method's options in a point of its grid; no option is called so."""


def _methods(entry: WrittenMethod, axes: Axes, keys: Keys) -> list[MethodEntry]:
    """Return every point of the grid of a method."""
    from fedpriv.methods import METHODS
    from fedpriv.pipeline.plan import target_name

    origin = axes.origin
    with origin.at((*keys, "name")):
        method = METHODS.load(entry.name)
    table = axes.options("methods", (entry.name, entry.label), entry.options, keys)
    options, settings, places = _sorted(method, entry, table, origin, keys)
    own = {
        steps: (values, (*places[steps[0]], *steps[1:])) for steps, values in varied(method.options, options).items()
    }
    own |= {(_SETTINGS, name): (values, (*keys, name)) for name, values in _varied_settings(settings).items()}
    for values, place in own.values():
        refuse_values(origin, place, values)
    shared = {(_SETTINGS, name): values for name, values in axes.settings.items() if name not in settings}
    defenses = None if entry.defenses is None else _defenses(entry.defenses, axes, (*keys, "defenses"))
    if entry.name == ALONE:
        _refuse_attacks(origin, entry, keys)
        defenses = (UNDEFENDED,)
    attacks = _attacks(entry.attacks, axes, (*keys, "attacks"))
    with origin.at((*keys, "target")):
        target = None if entry.target is None else target_name(entry.target)
    found = []
    for point in points({steps: values for steps, (values, _) in own.items()} | shared):
        chosen = filled({**options, _SETTINGS: settings}, point)
        given = chosen.pop(_SETTINGS)
        with origin.at(keys, lambda blamed: (*places.get(str(blamed[0]), (*keys, blamed[0])), *blamed[1:])):
            parsed = plain(parse(method.options, chosen, f"options of method {method.name}"))
        changed = {name.removeprefix(f"{_SETTINGS}."): value for name, value in named(point).items()}
        title = None if entry.label else with_values(method.name, flat(chosen) | given)
        made_up = with_values(str(title), {"target": target} if target else {})
        found.append(
            MethodEntry(
                label=with_values(entry.label, changed) if entry.label else made_up,
                title=title,
                name=entry.name,
                options=parsed,
                federation=_federation(origin, keys, given),
                target=target,
                attacks=attacks,
                defenses=defenses,
                varied=changed,
                keys=keys,
                places={name: ("axes", name) if (_SETTINGS, name) in shared else (*keys, name) for name in given},
            )
        )
    return found


def _refuse_attacks(origin: Origin, entry: WrittenMethod, keys: Keys) -> None:
    """Check that clients that exchange nothing are not to be attacked or defended."""
    for key in ("target", "attacks", "defenses"):
        if getattr(entry, key) is not None:
            raise origin.error((*keys, key), f"{entry.name} uploads nothing: it is trained only; drop {key}")


def _sorted(
    method: Method, entry: WrittenMethod, table: Mapping[str, Any], origin: Origin, keys: Keys
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Keys]]:
    """Return a method's own options, its settings of the federation, and where each option was written.

    Where the two share a name (alpha, momentum, batch_size) the federation's is meant.
    """
    own = [spec.name for spec in fields(method.options)]
    options = dict(entry.option)
    places: dict[str, Keys] = {key: (*keys, "option", key) for key in options}
    for key, value in table.items():
        if key in FEDERATION:
            continue
        if key not in own:
            known = (*WrittenMethod.model_fields, *FEDERATION, *own)
            raise origin.error((*keys, key), unknown_key(f"key of method {method.name}", key, known))
        if key in options:
            raise origin.error((*keys, key), f"set twice: here and in option.{key}; drop one of them")
        options[key], places[key] = value, (*keys, key)
    return options, {key: value for key, value in table.items() if key in FEDERATION}, places


def _varied_settings(settings: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the settings that a list of values varies; ``keep`` is a list itself."""
    return {
        name: value
        for name, value in settings.items()
        if isinstance(value, list) and (name != "keep" or any(isinstance(one, list) for one in value))
    }


def _federation(origin: Origin, keys: Keys, table: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in table.items():
        if name in INSTEAD:
            raise origin.error((*keys, name), f"not a setting of the federation; {INSTEAD[name]}")
        if name not in FEDERATION:
            raise origin.error((*keys, name), unknown_key("setting of the federation", name, FEDERATION))
        if name == "keep":
            if not isinstance(value, list):
                raise origin.error((*keys, name), f"expected a list of rounds, got {value!r}")
        elif isinstance(value, (list, Mapping)):
            raise origin.error((*keys, name), f"expected one value, got {value!r}; to vary it: axes.{name} = [...]")
        found[name] = str(Path(str(value)).expanduser().resolve()) if name == "data_dir" else value
    return found


# ---------------------------------------------------------------- defenses


def _defenses(chains: Sequence[Sequence[WrittenDefense]], axes: Axes, keys: Keys) -> tuple[DefenseEntry, ...]:
    found = tuple(one for place, chain in enumerate(chains) for one in _chain(chain, axes, (*keys, place)))
    refuse_twice(axes.origin, found, "defense")
    return found


def _chain(chain: Sequence[WrittenDefense], axes: Axes, keys: Keys) -> list[DefenseEntry]:
    """Return every point of the grid of defenses that are applied one behind another."""
    from fedpriv.defenses import DEFENSES, build_defenses
    from fedpriv.federation.run_directory import DefenseChoice

    if not chain:
        return [replace(UNDEFENDED, keys=keys)]
    origin, names = axes.origin, [entry.name for entry in chain]
    tables, grid = [], {}
    for place, entry in enumerate(chain):
        with origin.at((*keys, place, "name")):
            kind = DEFENSES.load(entry.name)
        tables.append(axes.options("defenses", (entry.name, entry.label), entry.options, (*keys, place)))
        for steps, values in varied(kind, tables[-1]).items():
            refuse_values(origin, (*keys, place, *steps), values)
            grid[str(place), *steps] = values
    label = next((entry.label for entry in chain if entry.label), None)
    found = []
    for point in points(grid):
        own = [{steps[1:]: v for steps, v in point.items() if steps[0] == str(place)} for place in range(len(chain))]
        chosen = [filled(table, one) for table, one in zip(tables, own, strict=True)]
        choices = []
        for place, (name, options) in enumerate(zip(names, chosen, strict=True)):
            with origin.at((*keys, place)):
                (made,) = build_defenses([DefenseChoice(name, options)])
            choices.append(DefenseChoice(name, plain(made)))
        fixed = [{k: v for k, v in opts.items() if (k,) not in one} for opts, one in zip(chosen, own, strict=True)]
        title = None if label else _behind(names, chosen)
        found.append(
            DefenseEntry(
                label=with_values(label, {k: v for one in own for k, v in named(one).items()}) if label else str(title),
                title=title,
                family=label or _behind(names, fixed),
                strength={
                    f"{name}.{k}": v for name, one in zip(names, own, strict=True) for k, v in named(one).items()
                },
                choices=tuple(choices),
                keys=keys,
            )
        )
    return found


def _behind(names: Sequence[str], options: Sequence[Mapping[str, Any]]) -> str:
    return " + ".join(with_values(name, own) for name, own in zip(names, options, strict=True))


# ---------------------------------------------------------------- attacks


def _attacks(written: Sequence[WrittenAttack] | None, axes: Axes, keys: Keys) -> tuple[AttackEntry, ...] | None:
    if written is None:
        return None
    for place, entry in enumerate(written):
        if entry.name in [before.name for before in written[:place]]:
            raise axes.origin.error((*keys, place), f"attack {entry.name!r} is listed twice")
    return tuple(one for place, entry in enumerate(written) for one in _attack(entry, axes, (*keys, place)))


def _attack(entry: WrittenAttack, axes: Axes, keys: Keys) -> list[AttackEntry]:
    """Return every point of the grid of an attack."""
    from fedpriv.attacks import ATTACKS
    from fedpriv.pipeline.plan import build_attack

    origin = axes.origin
    with origin.at((*keys, "name")):
        name = ATTACKS.own_name(entry.name)
        kind = ATTACKS.load(name)
    where = f"options of attack {name}"
    table = axes.options("attacks", (entry.name, name), entry.options, keys)
    own = [spec.name for spec in fields(kind)]
    for key in (*table, *(["label"] if entry.label else [])):
        if key not in own:
            known = ("name", "budget", *own)
            raise origin.error((*keys, key), unknown_key(f"key of attack {name}", key, known))
    budgets = tuple(sorted(entry.budget or ()))
    if budgets and not getattr(kind, "budget", None):
        raise origin.error((*keys, "budget"), f"attack {kind.name!r} has no budget of iterations; drop it")
    if budgets and kind.budget in table:
        raise origin.error((*keys, "budget"), f"sets {kind.budget}; drop one of them")
    grid = varied(kind, table)
    for steps, values in grid.items():
        refuse_values(origin, (*keys, *steps), values)
    found = []
    for point in points(grid):
        options = filled(table, point)
        with origin.at(keys):
            made = build_attack(kind, options, where)
            for budget in budgets:
                parse(kind, options | {kind.budget: budget}, where)
        found.append(AttackEntry(name, made, budgets, named(point), keys))
    return found


# ---------------------------------------------------------------- labels


def with_values(name: str, values: Mapping[str, Any]) -> str:
    """Return a name with settings behind it: ``noise scale=0.1``."""
    return " ".join([name, *(f"{key}={value}" for key, value in values.items())])


def slug(label: str) -> str:
    """Return a label as the name of a file.

    >>> slug("noise scale=0.1 + clip norm=1")
    'noise-scale=0.1+clip-norm=1'
    """
    plus = label.lower().replace(" + ", "+")
    kept = "".join(c if c.isascii() and (c.isalnum() or c in ".=+") else " " for c in plus)
    return "-".join(kept.split()).strip("-.") or "x"


def refuse_twice(origin: Origin, entries: Iterable[MethodEntry | DefenseEntry], kind: str) -> None:
    """Check that labels differ, also as names of files.

    Raises:
        UserError: for the second of two alike.
    """
    seen: dict[str, str] = {}
    for entry in entries:
        name = slug(entry.label)
        if name in seen:
            alike = "" if seen[name] == entry.label else f" (as {seen[name]!r})"
            raise origin.error(entry.keys, f"{kind} {entry.label!r} is there twice{alike}; give one a label of its own")
        seen[name] = entry.label
