"""From a study as it is written to its methods, defenses and attacks: names looked up, options parsed, grids expanded."""

from __future__ import annotations

import itertools
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.experiment.federation_settings import FLAG_NAMES, attacker_by_default
from fedpriv.experiment.study.written import (
    Keys,
    WrittenAttack,
    WrittenDefense,
    WrittenMethod,
    at,
    read_from,
    read_written,
    unknown_key,
    wrong,
)
from fedpriv.pages.baselines import ALONE
from fedpriv.util.config import dataclass_in, parse, plain

if TYPE_CHECKING:
    from fedpriv.attacks.observation import ThreatModel
    from fedpriv.federation.run_directory import DefenseChoice
    from fedpriv.util.numerics import Precision

FEDERATION = tuple(name for name in FLAG_NAMES if name not in ("option", "defense"))
"""Settings that all methods share, or a method overrides: those of ``fedpriv train``."""

INSTEAD = {
    "seed": "use seeds = [...] at the top of the study",
    "option": "options belong to a method: { name = ..., option = { ... } }",
    "defense": "use defenses = [...] at the top of the study",
    "method": "use methods = [...] at the top of the study",
    "download": "it says how a study is carried out, not what it is: pass it beside the study",
}


@dataclass(frozen=True)
class AttackEntry:
    """One point of the grid of an attack: made with its options, its ``budgets`` ascending, and what the grid varies."""

    name: str
    attack: Any
    budgets: tuple[int, ...] = ()
    varied: Mapping[str, Any] = field(default_factory=dict)
    keys: Keys = field(default=(), compare=False)


@dataclass(frozen=True)
class MethodEntry:
    """One point of the grid of a method.

    Attributes:
        label: what tables call it.
        title: what pages call it where no label was given; None where pages put its registry name behind the label.
        federation: settings in which it differs from the others, or that an axis varies.
        target: kind of upload to attack; None for the first that leaves its clients and has an attack.
        attacks: its own attacks, none where it is trained only; None for the study's.
        defenses: its own defenses; None for the study's.
        varied: axis -> value, for what the grid varies.
        places: where each of its settings of the federation was written.
    """

    label: str
    title: str | None
    name: str
    options: Mapping[str, Any]
    federation: Mapping[str, Any]
    target: str | None = None
    attacks: tuple[AttackEntry, ...] | None = None
    defenses: tuple[DefenseEntry, ...] | None = None
    varied: Mapping[str, Any] = field(default_factory=dict)
    keys: Keys = field(default=(), compare=False)
    places: Mapping[str, Keys] = field(default_factory=dict, compare=False)

    def place_of(self, keys: Keys) -> Keys:
        """Return the place of a setting of the federation, for this method or for all."""
        setting = str(keys[0])
        return (*self.places.get(setting, ("federation", setting)), *keys[1:])


@dataclass(frozen=True)
class DefenseEntry:
    """One point of a study's grid of defenses, which are applied in this order.

    Attributes:
        label: what tables call it; ``none`` for no defense.
        title: the same where no label was given; None where pages put its registry names behind the label.
        family: the label without the strengths that its grid varies.
        strength: ``defense.option`` -> value, for what the grid varies.
    """

    label: str
    title: str | None
    family: str
    strength: Mapping[str, Any]
    choices: tuple[DefenseChoice, ...]
    keys: Keys = field(default=(), compare=False)


UNDEFENDED = DefenseEntry("none", "none", "none", {}, ())
"""No defense."""


@dataclass(frozen=True)
class Study:
    """Everything that determines the results of a study; fields as of :class:`WrittenStudy`, grids expanded."""

    federation: Mapping[str, Any]
    methods: tuple[MethodEntry, ...]
    defenses: tuple[DefenseEntry, ...]
    attacks: tuple[AttackEntry, ...] | None
    seeds: tuple[int, ...]
    card: ThreatModel
    targets: int
    control: bool
    local: bool
    redact: str
    precision: Precision
    rounds_seen: int | None
    source: str = field(compare=False)
    written: Mapping[str, Any] = field(compare=False)


def parse_study(values: Mapping[str, Any], source: str = "study") -> Study:
    """Read and check everything that needs no data, and expand the grids."""
    from fedpriv.datasets.partition import MAX_SEED
    from fedpriv.sources.source import read_card

    with read_from(source):
        written = read_written(values)
        for index, seed in enumerate(written.seeds):
            if seed > MAX_SEED:
                raise wrong(("seeds", index), f"expected a whole number of at most {MAX_SEED}, got {seed}")
        shared = _federation(("federation",), written.federation)
        for name in written.axes:
            if name not in FEDERATION:
                raise wrong(("axes", name), unknown_key("axis", name, FEDERATION))
            if name in shared:
                raise wrong(("axes", name), f"{name} is set twice, here and in the federation; drop one")
        methods = tuple(
            point
            for position, entry in enumerate(written.methods)
            for point in _methods(entry, written.axes, ("methods", position))
        )
        refuse_twice(methods, "method")
        with at(("knowledge",)):
            defaults = [attacker_by_default({**shared, **entry.federation}) for entry in methods]
            card = read_card(written.knowledge, defaults[0] if all(defaults) else {})
        return Study(
            federation=shared,
            methods=methods,
            defenses=_defenses(written.defenses, ("defenses",)),
            attacks=_attacks(written.attacks, ("attacks",)),
            seeds=tuple(written.seeds),
            card=card,
            source=source,
            written=values,
            **written.model_dump(include={"targets", "control", "local", "redact", "precision", "rounds_seen"}),
        )


# ---------------------------------------------------------------- points of grids

Steps = tuple[str, ...]
"""Nested keys of a table: ``("server", "epochs")``."""


def varied(kind: type, options: Mapping[str, Any], keys: Keys) -> dict[Steps, list[Any]]:
    """Return the options that a list of values varies. Where an option takes a list itself, only a list of lists does.

    >>> from fedpriv.defenses.noise import Noise
    >>> varied(Noise, {"scale": [0.1, 1], "kind": "laplace"}, ())
    {('scale',): [0.1, 1]}
    """
    hints = typing.get_type_hints(kind)
    values: dict[Steps, list[Any]] = {}
    for key, value in options.items():
        inner = dataclass_in(hints[key]) if key in hints else None
        if isinstance(value, Mapping) and inner is not None:
            values |= {(key, *steps): current for steps, current in varied(inner, value, (*keys, key)).items()}
        elif isinstance(value, list) and (not _takes_list(hints.get(key)) or _nested(value)):
            if not value:
                raise wrong((*keys, key), "an empty grid: expected at least one value")
            for index, item in enumerate(value):
                if item in value[:index]:
                    raise wrong((*keys, key, index), f"{item!r} is listed twice")
            values[key,] = value
    return values


def _takes_list(hint: Any) -> bool:
    return any(typing.get_origin(option) in (tuple, list, Sequence) for option in (hint, *typing.get_args(hint)))


def _nested(value: list[Any]) -> bool:
    return bool(value) and all(isinstance(item, list) for item in value)


def points(axes: Mapping[Any, list[Any]]) -> list[dict[Any, Any]]:
    """Return every combination of the values of axes, the last axis running fastest."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def filled(options: Mapping[str, Any], point: Mapping[Steps, Any]) -> dict[str, Any]:
    """Return options with the values of a point of their grid, below nested tables too.

    >>> filled({"server": {"epochs": 1}}, {("server", "lr"): 2})
    {'server': {'epochs': 1, 'lr': 2}}
    """
    results = dict(options)
    for (first, *rest), value in point.items():
        results[first] = filled(results.get(first) or {}, {tuple(rest): value}) if rest else value
    return results


def _dotted(point: Mapping[Steps, Any]) -> dict[str, Any]:
    return {".".join(steps): value for steps, value in point.items()}


def _flat(options: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return options by dotted name."""
    values: dict[str, Any] = {}
    for key, value in options.items():
        values |= _flat(value, f"{before}{key}.") if isinstance(value, Mapping) and value else {before + key: value}
    return values


# ---------------------------------------------------------------- methods


def _methods(entry: WrittenMethod, axes: Mapping[str, list[Any]], keys: Keys) -> list[MethodEntry]:
    """Return every point of the grid of a method."""
    from fedpriv.methods import METHODS
    from fedpriv.pipeline.plan import target_name

    with at(keys):
        method = METHODS.load(entry.name)
    group = [spec.name for spec in fields(method.options)]
    options, settings = dict(entry.option), {}
    places: dict[str, Keys] = {key: (*keys, "option", key) for key in options}
    for key, value in entry.options.items():  # where the two share a name (alpha, momentum) the federation's is meant
        if key in FEDERATION:
            settings[key] = value
        elif key not in group:
            known = (*WrittenMethod.model_fields, *FEDERATION, *group)
            raise wrong((*keys, key), unknown_key(f"key of method {method.name}", key, known))
        elif key in options:
            raise wrong((*keys, key), f"set twice: here and in option.{key}; drop one of them")
        else:
            options[key], places[key] = value, (*keys, key)
    lists = {name: value for name, value in settings.items() if isinstance(value, list) and not _rounds(name, value)}
    over = lists | {name: values for name, values in axes.items() if name not in settings}
    defenses = None if entry.defenses is None else _defenses(entry.defenses, (*keys, "defenses"))
    if entry.name == ALONE:
        for key in ("target", "attacks", "defenses"):
            if getattr(entry, key) is not None:
                raise wrong((*keys, key), f"{entry.name} uploads nothing: it is trained only; drop {key}")
        defenses = (UNDEFENDED,)
    with at((*keys, "target")):
        target = None if entry.target is None else target_name(entry.target)
    attacks = _attacks(entry.attacks, (*keys, "attacks"))
    results = []
    for point, set_ in itertools.product(points(varied(method.options, options, keys)), points(over)):
        chosen, given = filled(options, point), settings | set_
        with at(keys, lambda blamed: (*places.get(str(blamed[0]), (*keys, blamed[0])), *blamed[1:])):
            parsed = plain(parse(method.options, chosen, f"options of method {method.name}"))
        changed = _dotted(point) | set_
        title = None if entry.label else with_values(method.name, _flat(chosen) | given)
        simulated = with_values(str(title), {"target": target} if target else {})
        results.append(
            MethodEntry(
                label=with_values(entry.label, changed) if entry.label else simulated,
                title=title,
                name=entry.name,
                options=parsed,
                federation=_federation(keys, given),
                target=target,
                attacks=attacks,
                defenses=defenses,
                varied=changed,
                keys=keys,
                places={name: (*keys, name) if name in settings else ("axes", name) for name in given},
            )
        )
    return results


def _rounds(name: str, value: list[Any]) -> bool:
    """True for the one setting that is a list itself."""
    return name == "keep" and not _nested(value)


def _federation(keys: Keys, table: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in table.items():
        if name in INSTEAD:
            raise wrong((*keys, name), f"not a setting of the federation; {INSTEAD[name]}")
        if name not in FEDERATION:
            raise wrong((*keys, name), unknown_key("setting of the federation", name, FEDERATION))
        if isinstance(value, (list, Mapping)) != (name == "keep"):
            raise wrong((*keys, name), f"expected one value, got {value!r}; to vary it: axes.{name} = [...]")
        values[name] = str(Path(str(value)).expanduser().resolve()) if name == "data_dir" else value
    return values


# ---------------------------------------------------------------- defenses


def _defenses(chains: Sequence[Sequence[WrittenDefense]], keys: Keys) -> tuple[DefenseEntry, ...]:
    results = tuple(item for index, chain in enumerate(chains) for item in _chain(chain, (*keys, index)))
    refuse_twice(results, "defense")
    return results


def _chain(chain: Sequence[WrittenDefense], keys: Keys) -> list[DefenseEntry]:
    """Return every point of the grid of defenses that are applied one behind another."""
    from fedpriv.defenses import DEFENSES, build_defenses
    from fedpriv.federation.run_directory import DefenseChoice

    if not chain:
        return [replace(UNDEFENDED, keys=keys)]
    names, tables = [entry.name for entry in chain], [entry.options for entry in chain]
    places: list[Keys] = [keys if len(chain) == 1 else (*keys, index) for index in range(len(chain))]
    grid: dict[Steps, list[Any]] = {}
    for number, (name, table, position) in enumerate(zip(names, tables, places, strict=True)):
        with at(position):
            kind = DEFENSES.load(name)
        grid |= {(str(number), *steps): values for steps, values in varied(kind, table, position).items()}
    label = next((entry.label for entry in chain if entry.label), None)
    results = []
    for point in points(grid):
        group = [
            {steps[1:]: v for steps, v in point.items() if steps[0] == str(number)} for number in range(len(chain))
        ]
        chosen = [filled(table, one) for table, one in zip(tables, group, strict=True)]
        choices = []
        for name, options, position in zip(names, chosen, places, strict=True):
            with at(position):
                (made,) = build_defenses([DefenseChoice(name, options)])
            choices.append(DefenseChoice(name, plain(made)))
        fixed = [{k: v for k, v in opts.items() if (k,) not in one} for opts, one in zip(chosen, group, strict=True)]
        title = None if label else _behind(names, chosen)
        results.append(
            DefenseEntry(
                label=with_values(label, {k: v for one in group for k, v in _dotted(one).items()})
                if label
                else str(title),
                title=title,
                family=label or _behind(names, fixed),
                strength={
                    f"{name}.{k}": v for name, item in zip(names, group, strict=True) for k, v in _dotted(item).items()
                },
                choices=tuple(choices),
                keys=keys,
            )
        )
    return results


def _behind(names: Sequence[str], options: Sequence[Mapping[str, Any]]) -> str:
    return " + ".join(with_values(name, option) for name, option in zip(names, options, strict=True))


# ---------------------------------------------------------------- attacks


def _attacks(written: Sequence[WrittenAttack] | None, keys: Keys) -> tuple[AttackEntry, ...] | None:
    if written is None:
        return None
    for position, entry in enumerate(written):
        if entry.name in [before.name for before in written[:position]]:
            raise wrong((*keys, position), f"attack {entry.name!r} is listed twice")
    return tuple(item for index, entry in enumerate(written) for item in _attack(entry, (*keys, index)))


def _attack(entry: WrittenAttack, keys: Keys) -> list[AttackEntry]:
    """Return every point of the grid of an attack."""
    from fedpriv.attacks import ATTACKS
    from fedpriv.pipeline.plan import build_attack

    with at(keys):
        name = ATTACKS.own_name(entry.name)
        kind = ATTACKS.load(name)
    where, table = f"options of attack {name}", entry.options
    group = [spec.name for spec in fields(kind)]
    for key in (*table, *(["label"] if entry.label else [])):
        if key not in group:
            raise wrong((*keys, key), unknown_key(f"key of attack {name}", key, ("name", "budget", *group)))
    budgets = tuple(sorted(entry.budget or ()))
    if budgets and not getattr(kind, "budget", None):
        raise wrong((*keys, "budget"), f"attack {kind.name!r} has no budget of iterations; drop it")
    if budgets and kind.budget in table:
        raise wrong((*keys, "budget"), f"sets {kind.budget}; drop one of them")
    results = []
    for point in points(varied(kind, table, keys)):
        options = filled(table, point)
        with at(keys):
            made = build_attack(kind, options, where)
            for budget in budgets:
                parse(kind, options | {kind.budget: budget}, where)
        results.append(AttackEntry(name, made, budgets, _dotted(point), keys))
    return results


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


def refuse_twice(entries: Iterable[MethodEntry | DefenseEntry], kind: str) -> None:
    """Check that labels differ, also as names of files."""
    seen: dict[str, str] = {}
    for entry in entries:
        name = slug(entry.label)
        if name in seen:
            alike = "" if seen[name] == entry.label else f" (as {seen[name]!r})"
            raise wrong(entry.keys, f"{kind} {entry.label!r} is there twice{alike}; give one a label of its own")
        seen[name] = entry.label
