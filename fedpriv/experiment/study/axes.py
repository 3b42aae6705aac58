"""The axes of a study: settings of the federation, or options of a member, that take one value after another."""

from __future__ import annotations

import itertools
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedpriv.experiment.study.definition import WrittenStudy, unknown_key
from fedpriv.experiment.study.origin import Keys, Origin
from fedpriv.util.config import dataclass_in

MEMBERS = ("methods", "defenses", "attacks")
Steps = tuple[str, ...]
"""Nested keys of a table: ``("server", "epochs")``."""


@dataclass(frozen=True)
class _Axis:
    steps: Steps
    values: list[Any]
    place: Keys


@dataclass(frozen=True)
class Axes:
    """The table ``axes`` of a study, sorted by what it is about.

    Attributes:
        settings: of the federation -> values, for every method that does not set it itself.
        seeds: or None.
        members: (``methods``, ``defenses`` or ``attacks``, name or label) -> axes of its options.
        origin: where the study was written.
        met: members that were there.
    """

    settings: dict[str, list[Any]]
    seeds: list[Any] | None
    members: Mapping[tuple[str, str], list[_Axis]]
    origin: Origin
    met: set[tuple[str, str]] = field(default_factory=set)

    def options(self, kind: str, names: Sequence[str | None], written: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
        """Return the options of a member with a list of values for each that an axis varies.

        Args:
            kind: ``methods``, ``defenses`` or ``attacks``.
            names: its name, and its label.
            written: its options as they were written.
            keys: where.

        Raises:
            UserError: when it sets an option itself that an axis varies.
        """
        options = dict(written)
        for name in dict.fromkeys(names):
            for axis in self.members.get((kind, str(name)), ()):
                self.met.add((kind, str(name)))
                if axis.steps[0] in options and (len(axis.steps) == 1 or axis.steps[-1] in options[axis.steps[0]]):
                    raise self.origin.error(axis.place, f"{'.'.join(axis.steps)} is set in the entry too; drop one")
                options = replaced(options, axis.steps, axis.values)
                self.origin.moved[(*keys, *axis.steps)] = axis.place
        return options

    def refuse_unmet(self, there: Mapping[str, Sequence[str]]) -> None:
        """Check that every axis was of some member.

        Args:
            there: kind -> names of the members.

        Raises:
            UserError: for the first that was not.
        """
        for (kind, name), axes in self.members.items():
            if (kind, name) not in self.met:
                names = ", ".join(dict.fromkeys(there[kind])) or "none by name"
                raise self.origin.error(axes[0].place, f"no entry of {kind} is called {name!r}; there are: {names}")


def read_axes(written: WrittenStudy, origin: Origin, federation: Sequence[str]) -> Axes:
    """Sort the axes of a study.

    Args:
        written: the study.
        origin: where it was written.
        federation: names of its settings.

    Raises:
        UserError: for an unknown axis, or one without different values.
    """
    settings: dict[str, list[Any]] = {}
    seeds = None
    members: dict[tuple[str, str], list[_Axis]] = {}
    for place, steps, values in _flat(written.axes):
        refuse_values(origin, place, values)
        first, *rest = steps
        if first in MEMBERS and len(rest) >= 2:
            inner = tuple(".".join(rest[1:]).replace("-", "_").split("."))
            members.setdefault((first, rest[0]), []).append(_Axis(inner, values, place))
            continue
        name = (rest[0] if first == "federation" and len(rest) == 1 else ".".join(steps)).replace("-", "_")
        if name in ("seed", "seeds"):
            if "seeds" in written.model_fields_set or seeds is not None:
                raise origin.error(place, "seeds are set twice; drop one")
            seeds = values
        elif name not in federation:
            known = [*federation, "seeds", *(f"{kind}.NAME.OPTION" for kind in MEMBERS)]
            raise origin.error(place, unknown_key("axis", name, known))
        elif name in settings or name in written.federation:
            raise origin.error(place, f"{name} is set twice, here and in the federation; drop one")
        else:
            settings[name] = values
    return Axes(settings, seeds, members, origin)


def _flat(table: Mapping[str, Any], before: Keys = ()) -> Iterator[tuple[Keys, Steps, Any]]:
    """Return (keys as written, steps, values) of every axis; a dotted key stands for nested tables, at the top only."""
    for key, value in table.items():
        place = (*before, key)
        if isinstance(value, Mapping):
            yield from _flat(value, place)
        else:
            parts = [*str(place[0]).split("."), *map(str, place[1:])]
            yield ("axes", *place), tuple(parts), value


def refuse_values(origin: Origin, keys: Keys, values: Any) -> None:
    """Check the values of an axis.

    Raises:
        UserError: when they are no list of different ones.
    """
    if not isinstance(values, list):
        raise origin.error(keys, f"expected a list of values, got {values!r}")
    if not values:
        raise origin.error(keys, "an empty grid: expected at least one value")
    for place, value in enumerate(values):
        if value in values[:place]:
            raise origin.error((*keys, place), f"{value!r} is listed twice")


# ---------------------------------------------------------------- grids


def varied(kind: type, options: Mapping[str, Any]) -> dict[Steps, list[Any]]:
    """Return the options that a list of values varies.

    Where an option takes a list itself, only a list of lists varies it.

    >>> from fedpriv.defenses.noise import Noise
    >>> varied(Noise, {"scale": [0.1, 1], "kind": "laplace"})
    {('scale',): [0.1, 1]}
    """
    hints = typing.get_type_hints(kind)
    found: dict[Steps, list[Any]] = {}
    for key, value in options.items():
        inner = dataclass_in(hints[key]) if key in hints else None
        if isinstance(value, Mapping) and inner is not None:
            found |= {(key, *steps): values for steps, values in varied(inner, value).items()}
        elif isinstance(value, list) and (not _takes_list(hints.get(key)) or _nested(value)):
            found[key,] = value
    return found


def points(axes: Mapping[Steps, list[Any]]) -> list[dict[Steps, Any]]:
    """Return every combination of the values of axes, the last axis running fastest."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def filled(options: Mapping[str, Any], point: Mapping[Steps, Any]) -> dict[str, Any]:
    """Return options with the values of a point of their grid."""
    found = dict(options)
    for steps, value in point.items():
        found = replaced(found, steps, value)
    return found


def named(point: Mapping[Steps, Any]) -> dict[str, Any]:
    """Return the values of a point by dotted name."""
    return {".".join(steps): value for steps, value in point.items()}


def replaced(options: Mapping[str, Any], steps: Steps, value: Any) -> dict[str, Any]:
    """Return options with one value set, below nested tables too.

    >>> replaced({"server": {"epochs": 1}}, ("server", "lr"), 2)
    {'server': {'epochs': 1, 'lr': 2}}
    """
    first, *rest = steps
    return {**options, first: replaced(options.get(first) or {}, tuple(rest), value) if rest else value}


def flat(options: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return options by dotted name.

    >>> flat({"server": {"epochs": 1}, "lr": 2})
    {'server.epochs': 1, 'lr': 2}
    """
    found: dict[str, Any] = {}
    for key, value in options.items():
        found |= flat(value, f"{before}{key}.") if isinstance(value, Mapping) and value else {before + key: value}
    return found


def _takes_list(hint: Any) -> bool:
    options = (hint, *typing.get_args(hint))
    return any(typing.get_origin(option) in (tuple, list, Sequence) for option in options)


def _nested(value: list[Any]) -> bool:
    return bool(value) and all(isinstance(one, list) for one in value)
