"""From a defense with lists of strengths to the points of their grid."""

from __future__ import annotations

import itertools
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedpriv.experiment.study.entries import DefenseEntry
from fedpriv.experiment.study.grammar import parse_chain
from fedpriv.experiment.study.shapes import as_entry, own_label, with_values
from fedpriv.experiment.study.source import Source
from fedpriv.experiment.study.toml_lines import Path as Keys
from fedpriv.util.config import plain

META = ("name", "label")


def grid(source: Source, keys: Keys, written: Any) -> list[DefenseEntry]:
    """Return every point of the grid that an entry of ``defenses`` describes.

    Args:
        source: the study.
        keys: where the entry stands.
        written: ``none``, a name, a table, or a list of them: defenses one behind another.

    Raises:
        UserError: for an unknown name or option, a strength out of range, or a list of strengths that is empty.
    """
    if written == "none":
        return [DefenseEntry("none", "none", "none", {}, (), keys)]
    if isinstance(written, str):
        with source.at(keys):
            tables = parse_chain(written)
        places = [keys] * len(tables)
    elif isinstance(written, list):
        if not written:
            raise source.error(keys, 'an empty list of defenses; write "none" for no defense')
        places = [(*keys, place) for place in range(len(written))]
        tables = [as_entry(source, place, one, "defense") for place, one in zip(places, written, strict=True)]
    else:
        places, tables = [keys], [as_entry(source, keys, written, "defense")]
    axes = [_axes(source, place, table) for place, table in zip(places, tables, strict=True)]
    labels = [own_label(source, place, table) for place, table in zip(places, tables, strict=True)]
    label = next((one for one in labels if one is not None), None)
    points = []
    for values in itertools.product(*(_combinations(axis) for axis in axes)):
        chosen = [_options(table) | dict(one) for table, one in zip(tables, values, strict=True)]
        points.append(_point(source, keys, places, tables, chosen, values, label))
    return points


def _axes(source: Source, keys: Keys, table: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return option -> the strengths that the grid varies it over.

    Where an option takes a list itself, only a list of lists is a grid.
    """
    from fedpriv.defenses import DEFENSES
    from fedpriv.util.registry import resolve

    with source.at((*keys, "name")):
        kind = resolve("defense", table["name"], DEFENSES)
    hints = typing.get_type_hints(kind)
    found: dict[str, list[Any]] = {}
    for key, value in _options(table).items():
        if not isinstance(value, list) or (_takes_list(hints.get(key)) and not _nested(value)):
            continue
        if not value:
            raise source.error((*keys, key), "an empty grid: expected at least one strength")
        for place, one in enumerate(value):
            if one in value[:place]:
                raise source.error((*keys, key, place), f"{one!r} is listed twice")
        found[key] = value
    return found


def _takes_list(hint: Any) -> bool:
    options = (hint, *typing.get_args(hint))
    return any(typing.get_origin(option) in (tuple, list, Sequence) for option in options)


def _nested(value: list[Any]) -> bool:
    return bool(value) and all(isinstance(one, list) for one in value)


def _combinations(axes: Mapping[str, list[Any]]) -> Iterable[tuple[tuple[str, Any], ...]]:
    return [tuple(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _options(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key.replace("-", "_"): value for key, value in table.items() if key not in META}


def _point(
    source: Source,
    keys: Keys,
    places: Sequence[Keys],
    tables: Sequence[Mapping[str, Any]],
    chosen: Sequence[Mapping[str, Any]],
    varied: Sequence[tuple[tuple[str, Any], ...]],
    label: str | None,
) -> DefenseEntry:
    from fedpriv.defenses import build_defenses
    from fedpriv.federation.run_directory import DefenseChoice

    choices = []
    for place, table, options in zip(places, tables, chosen, strict=True):
        with source.at(place):
            (made,) = build_defenses([DefenseChoice(table["name"], options)])
        choices.append(DefenseChoice(table["name"], plain(made)))
    names = [str(table["name"]) for table in tables]
    strength = {f"{name}.{key}": value for name, own in zip(names, varied, strict=True) for key, value in own}
    fixed = [
        {key: value for key, value in options.items() if key not in dict(own)}
        for options, own in zip(chosen, varied, strict=True)
    ]
    if label is not None:
        whole = {key: value for one in varied for key, value in one}
        return DefenseEntry(with_values(label, whole), None, label, strength, tuple(choices), keys)
    title = _chain(names, chosen)
    return DefenseEntry(title, title, _chain(names, fixed), strength, tuple(choices), keys)


def _chain(names: Sequence[str], options: Sequence[Mapping[str, Any]]) -> str:
    return " + ".join(with_values(name, own) for name, own in zip(names, options, strict=True))
