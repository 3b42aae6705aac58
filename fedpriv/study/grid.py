"""From a study as it is written to its methods, defenses and attacks: names looked up, options parsed, grids expanded."""

from __future__ import annotations

import itertools
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from fedpriv.attacks import ATTACKS
from fedpriv.attacks.observation import ThreatModel
from fedpriv.defenses import DEFENSES, build_defenses
from fedpriv.federation.run_directory import DefenseChoice
from fedpriv.methods import METHODS
from fedpriv.pipeline.plan import target_name
from fedpriv.reports.run_records import ALONE
from fedpriv.sources.source import read_card
from fedpriv.study.settings import FLAG_NAMES, attacker_by_default
from fedpriv.study.written import Keys, Member, MethodMember, at, read_from, read_written, refuse_no_grid, wrong
from fedpriv.util.config import parse, plain
from fedpriv.util.errors import unknown_name

FEDERATION = tuple(name for name in FLAG_NAMES if name not in ("option", "defense"))
"""Settings that all methods share, or a method overrides: those of ``fedpriv train``."""

ONE_MODEL = "small-cnn"  # architecture of every client where a method needs one for all and none is asked for


@dataclass(frozen=True)
class AttackEntry:
    """One point of the grid of an attack: made with its options, and what the grid varies."""

    name: str
    attack: Any
    varied: Mapping[str, Any] = field(default_factory=dict)
    keys: Keys = field(default=(), compare=False)


@dataclass(frozen=True)
class MethodEntry:
    """One point of the grid of a method."""

    label: str  # what tables call it
    name: str
    options: Mapping[str, Any]
    federation: Mapping[str, Any]  # settings in which it differs from the others, or that an axis varies
    target: str | None = None  # kind of upload to attack; None for the first that leaves its clients and has an attack
    varied: Mapping[str, Any] = field(default_factory=dict)  # axis -> value, for what the grid varies
    keys: Keys = field(default=(), compare=False)

    def place_of(self, keys: Keys) -> Keys:
        """Return the place of a setting of the federation, for this method or for all."""
        table: Keys = self.keys if keys[0] in self.federation else ("federation",)
        return (*(("axes",) if keys[0] in self.varied else table), *keys)


@dataclass(frozen=True)
class DefenseEntry:
    """One point of a study's grid of defenses, which are applied in this order."""

    label: str
    choices: tuple[DefenseChoice, ...]
    keys: Keys = field(default=(), compare=False)


UNDEFENDED = DefenseEntry("none", ())  # no defense


@dataclass(frozen=True)
class Study:
    """Everything that determines the results of a study: grids expanded, and the other settings as they are written."""

    federation: Mapping[str, Any]
    methods: tuple[MethodEntry, ...]
    defenses: tuple[DefenseEntry, ...]
    attacks: tuple[AttackEntry, ...] | None  # none where methods are trained only; None for all that fit
    card: ThreatModel
    settings: Mapping[str, Any]  # seeds, targets, iterations, control, local, redact, rounds_seen
    source: str = field(compare=False)
    written: Mapping[str, Any] = field(compare=False)
    notes: tuple[str, ...] = field(compare=False)  # on what was chosen for the study


_EXPANDED = {"federation", "methods", "defenses", "attacks", "knowledge", "axes"}


def parse_study(values: Mapping[str, Any], source: str = "study") -> Study:
    """Read and check everything that needs no data, and expand the grids."""
    with read_from(source):
        written = read_written(values)
        shared = _federation(("federation",), written.federation)
        for name in written.axes:
            if name not in FEDERATION:
                raise wrong(("axes", name), str(unknown_name("axis:", name, FEDERATION)))
            if name in shared:
                raise wrong(("axes", name), f"{name} is set twice, here and in the federation; drop one")
        notes = []
        open_ = [entry.name for entry in written.methods if "models" not in entry.options and entry.name in METHODS]
        need = [name for name in open_ if METHODS.load(name).homogeneous]
        if need and "models" not in {*shared, *written.axes}:
            shared["models"] = ONE_MODEL
            notes = [f"models: {ONE_MODEL} for every client, since {need[0]} needs one architecture for all"]
        numbered = enumerate(written.methods)
        methods = tuple(point for index, entry in numbered for point in _methods(entry, written.axes, index))
        refuse_twice(methods, "method")
        with at(("knowledge",)):
            defaults = [attacker_by_default({**shared, **entry.federation}) for entry in methods]
            card = read_card(written.knowledge, defaults[0] if all(defaults) else {})
        return Study(
            federation=shared,
            methods=methods,
            defenses=_defenses(written.defenses),
            attacks=None if written.attacks is None else _attacks(written.attacks, written.iterations),
            card=card,
            settings=written.model_dump(exclude=_EXPANDED),
            source=source,
            written=values,
            notes=tuple(notes),
        )


def varied(kind: type, options: Mapping[str, Any], keys: Keys) -> list[dict[str, Any]]:
    """Return every combination of the options that a list varies; where one takes a list itself, a list of lists does."""
    hints, values = typing.get_type_hints(kind), dict[str, list[Any]]()
    for key, value in options.items():
        kinds = (hints.get(key), *typing.get_args(hints.get(key)))
        takes_list = any(typing.get_origin(option) in (tuple, list, Sequence) for option in kinds)
        if isinstance(value, list) and (_nested(value) or not takes_list):
            refuse_no_grid(value, (*keys, key))
            values[key] = value
    return _points(values)


def _nested(value: list[Any]) -> bool:
    return bool(value) and all(isinstance(item, list) for item in value)


def _points(axes: Mapping[Any, list[Any]]) -> list[dict[Any, Any]]:
    """Return every combination of the values of axes, the last axis running fastest."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _methods(entry: MethodMember, axes: Mapping[str, list[Any]], index: int) -> list[MethodEntry]:
    """Return every point of the grid of a method."""
    keys: Keys = ("methods", index)
    with at(keys):
        method = METHODS.load(entry.name)
    known = [spec.name for spec in fields(method.options)]
    options, settings = dict(entry.option), {}
    for key, value in entry.options.items():  # where the two share a name (alpha, momentum) the federation's is meant
        if key in FEDERATION:
            settings[key] = value
        elif key not in known:
            names = (*MethodMember.model_fields, *FEDERATION, *known)
            raise wrong((*keys, key), str(unknown_name(f"key of method {method.name}:", key, names)))
        elif key in options:
            raise wrong((*keys, key), f"set twice: here and in option.{key}; drop one of them")
        else:
            options[key] = value
    lists = {k: v for k, v in settings.items() if isinstance(v, list) and (k != "keep" or _nested(v))}
    over = lists | {name: values for name, values in axes.items() if name not in settings}
    if entry.name == ALONE and entry.target is not None:
        raise wrong((*keys, "target"), f"{ALONE} uploads nothing: it is trained only; drop target")
    with at((*keys, "target")):
        target = None if entry.target is None else target_name(entry.target)
    results = []
    for point, set_ in itertools.product(varied(method.options, options, keys), _points(over)):
        chosen, given, changed = {**options, **point}, settings | set_, point | set_
        with at(keys):
            parsed = plain(parse(method.options, chosen, f"options of method {method.name}"))
        shown = changed if entry.label else chosen | given | ({"target": target} if target else {})
        label = with_values(entry.label or method.name, shown)
        results.append(MethodEntry(label, entry.name, parsed, _federation(keys, given), target, changed, keys))
    return results


def _federation(keys: Keys, table: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in table.items():
        if name not in FEDERATION:
            raise wrong((*keys, name), str(unknown_name("setting of the federation:", name, FEDERATION)))
        if isinstance(value, (list, Mapping)) != (name == "keep"):
            raise wrong((*keys, name), f"expected one value, got {value!r}; to vary it: axes.{name} = [...]")
        values[name] = str(Path(str(value)).expanduser().resolve()) if name == "data_dir" else value
    return values


def _defenses(chains: Sequence[Sequence[Member]]) -> tuple[DefenseEntry, ...]:
    """Return every point of the grids of defenses, each applied one behind another."""
    results = []
    for index, chain in enumerate(chains):
        keys: Keys = ("defenses", index)
        if not chain:
            results.append(replace(UNDEFENDED, keys=keys))
            continue
        places: list[Keys] = [keys if len(chain) == 1 else (*keys, link) for link in range(len(chain))]
        grids: list[list[dict[str, Any]]] = []
        for entry, position in zip(chain, places, strict=True):
            with at(position):
                grids.append(varied(DEFENSES.load(entry.name), entry.options, position))
        named = next((entry.label for entry in chain if entry.label), None)
        for point in itertools.product(*grids):
            chosen, choices = [], []
            for entry, given, position in zip(chain, point, places, strict=True):
                options = {**entry.options, **given}
                with at(position):
                    (made,) = build_defenses([DefenseChoice(entry.name, options)])
                choices.append(DefenseChoice(entry.name, plain(made)))
                chosen.append(with_values(entry.name, options))
            values = {k: v for given in point for k, v in given.items()}
            label = with_values(named, values) if named else " + ".join(chosen)
            results.append(DefenseEntry(label, tuple(choices), keys))
    refuse_twice(results, "defense")
    return tuple(results)


def _attacks(written: Sequence[Member], iterations: int | None) -> tuple[AttackEntry, ...]:
    """Return every point of the grids of attacks, of so many iterations where they say nothing else."""
    results: list[AttackEntry] = []
    for index, entry in enumerate(written):
        keys: Keys = ("attacks", index)
        with at(keys):
            name = ATTACKS.own_name(entry.name)
            kind = ATTACKS.load(name)
        if name in [before.name for before in results]:
            raise wrong(keys, f"attack {entry.name!r} is listed twice")
        table = bounded(kind, iterations) | entry.options | ({"label": entry.label} if entry.label else {})
        for point in varied(kind, table, keys):
            with at(keys):
                made = parse(kind, {**table, **point}, f"options of attack {name}")
            results.append(AttackEntry(name, made, point, keys))
    return tuple(results)


def bounded(kind: Any, iterations: int | None) -> dict[str, Any]:
    """Return the option of an attack that bounds its search, if it has one and a bound is given."""
    return {} if iterations is None or kind.budget is None else {kind.budget: iterations}


def with_values(name: str, values: Mapping[str, Any]) -> str:
    """Return a name with settings behind it: ``noise scale=0.1``."""
    return " ".join([name, *(f"{key}={value}" for key, value in values.items())])


def slug(label: str) -> str:
    """Return a label as the name of a file: ``noise-scale=0.1+clip-norm=1``."""
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
