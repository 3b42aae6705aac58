"""How a study is read: methods, defenses with their grids, attacks, seeds, and what they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.experiment.federation_settings import FLAG_NAMES
from fedpriv.experiment.study.defenses import grid
from fedpriv.experiment.study.entries import AttackEntry, DefenseEntry, MethodEntry, Study
from fedpriv.experiment.study.shapes import (
    as_entry,
    as_list,
    as_table,
    own_label,
    refuse_spelled_twice,
    refuse_twice,
    refuse_unknown,
    unknown_key,
    with_values,
)
from fedpriv.experiment.study.source import Source
from fedpriv.experiment.study.toml_lines import Path as Keys
from fedpriv.util.config import plain

if TYPE_CHECKING:
    from fedpriv.attacks.observation import KnowledgeCard

TOP = (
    *("federation", "methods", "defenses", "attacks", "seeds", "knowledge"),
    *("targets", "control", "stages", "rounds_seen"),
)
"""Keys of a study."""

FEDERATION = tuple(name for name in FLAG_NAMES if name not in ("option", "defense"))
"""Settings that all methods share, or a method overrides: flags of ``fedpriv train``."""

METHOD_KEYS = ("name", "label", "target", "attacks", "defenses", "option")
INSTEAD = {
    "seed": "use seeds = [...] at the top of the study",
    "option": "options belong to a method: { name = ..., option = { ... } }",
    "defense": "use defenses = [...] at the top of the study",
    "method": "use methods = [...] at the top of the study",
    "download": "use the flag --download",
}


def parse_study(source: Source) -> Study:
    """Read and check everything that needs no data.

    Raises:
        UserError: naming the key and its line, or the flag.
    """
    from fedpriv.experiment.plan import parse_stages

    top = {key.replace("-", "_"): key for key in source.values}
    refuse_unknown(source, (), source.values, TOP, "key of a study")

    def take(name: str, default: Any) -> tuple[Any, Keys]:
        return (source.values[top[name]], (top[name],)) if name in top else (default, (name,))

    federation, keys = take("federation", {})
    shared = _federation(source, keys, as_table(source, keys, federation))
    written, keys = take("methods", ["fedre"])
    listed = as_list(source, keys, written)
    methods = tuple(_method(source, (*keys, place), entry) for place, entry in enumerate(listed))
    refuse_twice(source, methods, "method")
    written, keys = take("defenses", ["none"])
    defenses = _defenses(source, keys, written)
    written, keys = take("attacks", "all")
    attacks = None if written == "all" else _attacks(source, keys, written)
    seeds = _seeds(source, *take("seeds", [0]))
    targets = _number(source, *take("targets", 48))
    seen, keys = take("rounds_seen", None)
    if seen is not None:
        _number(source, seen, keys)
    control, keys = take("control", True)
    if not isinstance(control, bool):
        raise source.error(keys, f"expected true or false, got {control!r}")
    stages, keys = take("stages", [])
    if not isinstance(stages, (str, list)):
        raise source.error(keys, f"expected a list of stages, got {stages!r}")
    with source.at(keys):
        wanted = parse_stages([str(stage) for stage in ([stages] if isinstance(stages, str) else stages)])
    card = _card(source, *take("knowledge", {}))
    return Study(shared, methods, defenses, attacks, seeds, card, targets, control, wanted, seen, source)


# ---------------------------------------------------------------- methods


def _method(source: Source, keys: Keys, entry: Any) -> MethodEntry:
    from fedpriv.experiment.plan import target_name
    from fedpriv.methods import METHODS
    from fedpriv.util.config import parse

    table = as_entry(source, keys, entry, "method")
    with source.at((*keys, "name")):
        method = METHODS.load(table["name"])
    own = [spec.name for spec in fields(method.options)]
    known = (*METHOD_KEYS, *FEDERATION, *own)
    refuse_unknown(source, keys, table, known, f"key of method {method.name}")
    options = dict(as_table(source, (*keys, "option"), table.get("option", {})))
    for key, value in table.items():
        name = key.replace("-", "_")
        # Where the two share a name (alpha, momentum, batch_size) the federation's is meant.
        if name in own and name not in FEDERATION and name not in METHOD_KEYS:
            if name in options:
                raise source.error((*keys, key), f"set twice: here and in option.{name}; drop one of them")
            options[name] = value
    with source.at((*keys, "option") if "option" in table else keys):
        parsed = plain(parse(method.options, options, f"options of method {method.name}"))
    given = {key: value for key, value in table.items() if key.replace("-", "_") in FEDERATION}
    federation = _federation(source, keys, given)
    target = table.get("target")
    if target is not None:
        with source.at((*keys, "target")):
            target = target_name(str(target))
    written = table.get("attacks", "all")
    label = own_label(source, keys, table)
    title = None if label else with_values(method.name, {**options, **given})
    return MethodEntry(
        label=label or with_values(method.name, {**options, **given, **({"target": target} if target else {})}),
        title=title,
        name=table["name"],
        options=parsed,
        federation=federation,
        target=target,
        attacks=None if written == "all" else _attacks(source, (*keys, "attacks"), written),
        defenses=_defenses(source, (*keys, "defenses"), table["defenses"]) if "defenses" in table else None,
        keys=keys,
    )


def _defenses(source: Source, keys: Keys, written: Any) -> tuple[DefenseEntry, ...]:
    listed = as_list(source, keys, written)
    found = tuple(one for place, entry in enumerate(listed) for one in grid(source, (*keys, place), entry))
    refuse_twice(source, found, "defense")
    return found


def _federation(source: Source, keys: Keys, table: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    refuse_spelled_twice(source, keys, table)
    for key, value in table.items():
        name = key.replace("-", "_")
        if name in INSTEAD:
            raise source.error((*keys, key), f"not a setting of the federation; {INSTEAD[name]}")
        if name not in FEDERATION:
            raise source.error((*keys, key), unknown_key("setting of the federation", key, FEDERATION))
        if name == "keep":
            if not isinstance(value, Sequence) or isinstance(value, str):
                raise source.error((*keys, key), f"expected a list of rounds, got {value!r}")
        elif isinstance(value, (list, Mapping)):
            raise source.error((*keys, key), f"expected one value, got {value!r}; only defenses make grids")
        if name == "data_dir":
            value = str(Path(str(value)).expanduser().resolve())
        found[name] = value
    return found


# ---------------------------------------------------------------- attacks, card, numbers


def _attacks(source: Source, keys: Keys, written: Any) -> tuple[AttackEntry, ...]:
    found = tuple(
        _attack(source, (*keys, place), entry) for place, entry in enumerate(as_list(source, keys, written, 'or "all"'))
    )
    names = [entry.name for entry in found]
    for entry in found:
        if names.count(entry.name) > 1:
            raise source.error(entry.keys, f"attack {entry.name!r} is listed twice")
    return found


def _attack(source: Source, keys: Keys, entry: Any) -> AttackEntry:
    from fedpriv.attacks import ATTACKS
    from fedpriv.util.config import parse

    table = as_entry(source, keys, entry, "attack")
    with source.at((*keys, "name")):
        table["name"] = ATTACKS.own_name(table["name"])
        kind = ATTACKS.load(table["name"])
    own = [spec.name for spec in fields(kind)]
    refuse_unknown(source, keys, table, ("name", "budget", *own), f"key of attack {table['name']}")
    options = {key.replace("-", "_"): value for key, value in table.items() if key not in ("name", "budget")}
    budgets: tuple[int, ...] = ()
    if "budget" in table:
        budgets = _budgets(source, (*keys, "budget"), table["budget"], kind)
        if kind.budget in options:
            raise source.error((*keys, "budget"), f"sets {kind.budget}; drop one of them")
    with source.at(keys):
        made = parse(kind, options, f"options of attack {table['name']}")
        for budget in budgets:
            parse(kind, options | {kind.budget: budget}, f"options of attack {table['name']}")
    return AttackEntry(table["name"], made, budgets, keys)


def _budgets(source: Source, keys: Keys, written: Any, kind: Any) -> tuple[int, ...]:
    from fedpriv.experiment.plan import parse_budgets

    if not getattr(kind, "budget", None):
        raise source.error(keys, f"attack {kind.name!r} has no budget of iterations; drop it")
    values = written if isinstance(written, list) else [written]
    if not values:
        raise source.error(keys, "an empty list; expected whole numbers")
    with source.at(keys):
        return parse_budgets(",".join(str(value) for value in values))


def _card(source: Source, written: Any, keys: Keys) -> KnowledgeCard:
    from fedpriv.experiment.plan import parse_card

    table = as_table(source, keys, written)
    with source.at(keys):
        return parse_card([f"{key.replace('-', '_')}={value}" for key, value in table.items()])


def _seeds(source: Source, written: Any, keys: Keys) -> tuple[int, ...]:
    from fedpriv.datasets.federated import MAX_LEGACY_SEED

    listed = as_list(source, keys, written if isinstance(written, list) else [written])
    for place, seed in enumerate(listed):
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MAX_LEGACY_SEED:
            wanted = f"expected a whole number of at least 0 and at most {MAX_LEGACY_SEED}"
            raise source.error((*keys, place), f"{wanted}, got {seed!r}")
        if seed in listed[:place]:
            raise source.error((*keys, place), f"seed {seed} is listed twice")
    return tuple(listed)


def _number(source: Source, written: Any, keys: Keys) -> int:
    if isinstance(written, bool) or not isinstance(written, int) or written < 1:
        raise source.error(keys, f"expected a whole number of at least 1, got {written!r}")
    return written
