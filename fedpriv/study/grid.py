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
from fedpriv.study.written import Keys, Member, MethodMember, at, read_from, read_written, wrong
from fedpriv.util.compute import Precision
from fedpriv.util.config import parse, plain
from fedpriv.util.errors import unknown_name

FEDERATION = tuple(name for name in FLAG_NAMES if name not in ("option", "defense"))
"""Settings that all methods share, or a method overrides: those of ``fedpriv train``."""


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
    title: str | None  # what pages call it where no label was given; None: its registry name stands behind the label
    name: str
    options: Mapping[str, Any]
    federation: Mapping[str, Any]  # settings in which it differs from the others, or that an axis varies
    target: str | None = None  # kind of upload to attack; None for the first that leaves its clients and has an attack
    attacks: tuple[AttackEntry, ...] | None = None  # of its own, none where it is trained only; None for the study's
    defenses: tuple[DefenseEntry, ...] | None = None  # of its own; None for the study's
    varied: Mapping[str, Any] = field(default_factory=dict)  # axis -> value, for what the grid varies
    keys: Keys = field(default=(), compare=False)

    def place_of(self, keys: Keys) -> Keys:
        """Return the place of a setting of the federation, for this method or for all."""
        table: Keys = self.keys if keys[0] in self.federation else ("federation",)
        return (*(("axes",) if keys[0] in self.varied else table), *keys)


@dataclass(frozen=True)
class DefenseEntry:
    """One point of a study's grid of defenses, which are applied in this order; label and title as of a method."""

    label: str
    title: str | None
    choices: tuple[DefenseChoice, ...]
    keys: Keys = field(default=(), compare=False)


UNDEFENDED = DefenseEntry("none", "none", ())
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
    with read_from(source):
        written = read_written(values)
        shared = _federation(("federation",), written.federation)
        for name in written.axes:
            if name not in FEDERATION:
                raise wrong(("axes", name), str(unknown_name("axis:", name, FEDERATION)))
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


def varied(kind: type, options: Mapping[str, Any], keys: Keys) -> list[dict[str, Any]]:
    """Return every combination of the options that a list varies; where one takes a list itself, a list of lists does.

    >>> from fedpriv.defenses.noise import Noise
    >>> varied(Noise, {"scale": [0.1, 1], "kind": "laplace"}, ())
    [{'scale': 0.1}, {'scale': 1}]
    """
    hints = typing.get_type_hints(kind)
    values: dict[str, list[Any]] = {}
    for key, value in options.items():
        if isinstance(value, list) and (not _takes_list(hints.get(key)) or _nested(value)):
            if not value:
                raise wrong((*keys, key), "an empty grid: expected at least one value")
            for index, item in enumerate(value):
                if item in value[:index]:
                    raise wrong((*keys, key, index), f"{item!r} is listed twice")
            values[key] = value
    return _points(values)


def _takes_list(hint: Any) -> bool:
    return any(typing.get_origin(option) in (tuple, list, Sequence) for option in (hint, *typing.get_args(hint)))


def _nested(value: list[Any]) -> bool:
    return bool(value) and all(isinstance(item, list) for item in value)


def _points(axes: Mapping[Any, list[Any]]) -> list[dict[Any, Any]]:
    """Return every combination of the values of axes, the last axis running fastest."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


# ---------------------------------------------------------------- methods


def _methods(entry: MethodMember, axes: Mapping[str, list[Any]], keys: Keys) -> list[MethodEntry]:
    """Return every point of the grid of a method."""
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
    for point, set_ in itertools.product(varied(method.options, options, keys), _points(over)):
        chosen, given, changed = {**options, **point}, settings | set_, point | set_
        with at(keys):
            parsed = plain(parse(method.options, chosen, f"options of method {method.name}"))
        title = None if entry.label else with_values(method.name, chosen | given)
        shown = changed if entry.label else {"target": target} if target else {}
        label = with_values(entry.label or str(title), shown)
        settled = _federation(keys, given)
        results.append(MethodEntry(label, title, entry.name, parsed, settled, target, attacks, defenses, changed, keys))
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


# ---------------------------------------------------------------- defenses


def _defenses(chains: Sequence[Sequence[Member]], keys: Keys) -> tuple[DefenseEntry, ...]:
    results = tuple(item for index, chain in enumerate(chains) for item in _chain(chain, (*keys, index)))
    refuse_twice(results, "defense")
    return results


def _chain(chain: Sequence[Member], keys: Keys) -> list[DefenseEntry]:
    """Return every point of the grid of defenses that are applied one behind another."""
    if not chain:
        return [replace(UNDEFENDED, keys=keys)]
    places: list[Keys] = [keys if len(chain) == 1 else (*keys, index) for index in range(len(chain))]
    grids: list[list[dict[str, Any]]] = []
    for entry, position in zip(chain, places, strict=True):
        with at(position):
            grids.append(varied(DEFENSES.load(entry.name), entry.options, position))
    named = next((entry.label for entry in chain if entry.label), None)
    results = []
    for point in itertools.product(*grids):
        chosen, choices = [], []
        for entry, given, position in zip(chain, point, places, strict=True):
            options = {**entry.options, **given}
            with at(position):
                (made,) = build_defenses([DefenseChoice(entry.name, options)])
            choices.append(DefenseChoice(entry.name, plain(made)))
            chosen.append(with_values(entry.name, options))
        title = None if named else " + ".join(chosen)
        label = with_values(named, {k: v for given in point for k, v in given.items()}) if named else str(title)
        results.append(DefenseEntry(label, title, tuple(choices), keys))
    return results


# ---------------------------------------------------------------- attacks


def _attacks(written: Sequence[Member] | None, keys: Keys) -> tuple[AttackEntry, ...] | None:
    """Return every point of the grids of attacks."""
    if written is None:
        return None
    results: list[AttackEntry] = []
    for index, entry in enumerate(written):
        position = (*keys, index)
        with at(position):
            name = ATTACKS.own_name(entry.name)
            kind = ATTACKS.load(name)
        if name in [before.name for before in results]:
            raise wrong(position, f"attack {entry.name!r} is listed twice")
        table = entry.options | ({"label": entry.label} if entry.label else {})
        for point in varied(kind, table, position):
            with at(position):
                made = parse(kind, {**table, **point}, f"options of attack {name}")
            results.append(AttackEntry(name, made, point, position))
    return tuple(results)


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
