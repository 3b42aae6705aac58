"""The setting of every cell of a claim at a scale: the paper's, and what smaller scales put in its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedpriv.pages.claims import Claim, Column, Measure, Row, ScaledDown

PAPER = "paper"

_SMALL = {"image_size": None, "width": None, "participation": 1.0, "local_steps": None}
DEFAULTS: Mapping[str, ScaledDown] = {
    "smoke": ScaledDown(
        setting={
            **_SMALL,
            **{"dataset": "digits", "data_dir": None, "per_class": 12, "clients": 3, "rounds": 1, "epochs": 1},
            **{"models": "small", "batch_size": 10, "lr": 0.05, "classes_per_client": 4, "least_per_client": 4},
            **{"public": 0, "imbalance": 2.0},
        },
        study={"targets": 2},
        seeds=(0,),
    ),
    "cpu": ScaledDown(
        setting={
            **_SMALL,
            **{"per_class": 100, "clients": 10, "rounds": 20, "epochs": 1, "models": "small", "batch_size": 10},
            **{"lr": 0.05, "least_per_client": 10},
        },
        study={"targets": 24},
        seeds=(0, 1, 2),
    ),
}
"""What a scale puts in the place of every paper's setting, before what the claim itself says of that scale."""

_OF_PARTITIONS = {
    "classes_per_client": ("pathological",),
    "imbalance": ("long_tail",),
    "least_per_client": ("dirichlet", "pathological", "long_tail"),
}
"""Settings that only some partitions have."""

_USUAL = {"participation": 1.0, "public": 0}

ONE_MODEL = "small-cnn"
"""Stands for one architecture of a paper, where a family of small ones stands for several."""

PUBLIC = 20
"""Public images at the smallest scale, where the paper uses any."""


@dataclass(frozen=True)
class Place:
    """A cell of a table.

    Attributes:
        row, column: of the claim.
        number: place of the column among the claim's.
    """

    row: Row
    column: Column
    number: int

    @property
    def name(self) -> str:
        """``ROW | COLUMN``."""
        return f"{self.row.name} | {self.column.name}"

    @property
    def claimed(self) -> float | None:
        """The paper's value, or None."""
        return self.row.values[self.number]

    @property
    def method(self) -> str | None:
        """Registry name of the method, or None where the claim is about any."""
        return self.row.method or self.column.method

    @property
    def target(self) -> str | None:
        """Kind of upload, or None."""
        return self.row.target or self.column.target


def places(claim: Claim) -> tuple[Place, ...]:
    """Return every cell of a claim, row by row."""
    return tuple(Place(row, column, number) for row in claim.rows for number, column in enumerate(claim.columns))


def measure_of(claim: Claim, place: Place, scale: str = PAPER) -> Measure:
    """Return the measure of a cell at a scale."""
    found = place.column.measure or claim.measure
    return replace(found, reach=place.column.reach[scale]) if scale in place.column.reach else found


def paper_setting(claim: Claim, place: Place) -> dict[str, Any]:
    """Return the settings of training that the paper tells of a cell, by name; ``option`` holds the method's own."""
    return merged(claim.setting, place.column.setting, place.row.setting)


def setting_at(claim: Claim, place: Place, scale: str) -> dict[str, Any]:
    """Return the settings of training of a cell at a scale; a setting of None is left at its default."""
    told = paper_setting(claim, place)
    if scale == PAPER:
        return told
    shared = dict(DEFAULTS[scale].setting)
    own = claim.scales.get(scale, ScaledDown()).setting
    if scale == "smoke":
        shared["public"] = PUBLIC if told.get("public") else 0
    if "models" in told and _one_architecture(str(told["models"])):
        shared["models"] = ONE_MODEL
    found = merged(told, shared, own, place.column.scales.get(scale, {}), place.row.scales.get(scale, {}))
    beside = {
        name for name, partition in _OF_PARTITIONS.items() if found.get("partition", "dirichlet") not in partition
    }
    beside |= {name for name, value in _USUAL.items() if name not in told and found.get(name) == value}
    return {name: value for name, value in found.items() if value is not None and name not in beside}


def sizes_of(claim: Claim, place: Place) -> dict[str, Any]:
    """Return the sizes that a counted cell follows from."""
    return merged(claim.sizes, place.column.sizes, place.row.sizes)


def study_at(claim: Claim, scale: str) -> dict[str, Any]:
    """Return the keys of a study for an attacked claim."""
    if scale == PAPER:
        return dict(claim.study)
    return {**claim.study, **DEFAULTS[scale].study, **claim.scales.get(scale, ScaledDown()).study}


def seeds_at(claim: Claim, scale: str) -> tuple[int, ...]:
    """Return the seeds of the runs at a scale."""
    if scale == PAPER:
        return claim.seeds
    return claim.scales.get(scale, ScaledDown()).seeds or DEFAULTS[scale].seeds


def merged(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return tables in one, later ones winning; their ``option`` are merged in turn.

    >>> merged({"alpha": 1, "option": {"a": 1}}, {"alpha": 2, "option": {"b": 2}})
    {'alpha': 2, 'option': {'a': 1, 'b': 2}}
    """
    found: dict[str, Any] = {}
    for table in tables:
        option = {**found.get("option", {}), **table.get("option", {})}
        found |= table
        if option:
            found["option"] = option
    return found


def changed(claim: Claim, tried: Sequence[Place], scale: str) -> dict[str, tuple[str, str]]:
    """Return settings that differ from the paper's in some cell: name -> (the paper's, the one here), in words."""
    pairs: dict[str, dict[tuple[str, str], None]] = {}
    for place in tried:
        before, now = paper_setting(claim, place), setting_at(claim, place, scale)
        if place.column.reach:
            before, now = (
                {**told, "accuracy to reach": measure_of(claim, place, at).reach}
                for told, at in ((before, PAPER), (now, scale))
            )
        for name in dict.fromkeys((*before, *now)):
            if before.get(name) != now.get(name):
                pair = (_words(before.get(name)), _words(now.get(name)))
                pairs.setdefault(name, {})[pair] = None
    return {
        name: ("; ".join(dict.fromkeys(one for one, _ in own)), "; ".join(dict.fromkeys(one for _, one in own)))
        for name, own in pairs.items()
    }


def _words(value: Any) -> str:
    if value is None:
        return "not told"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_words(own)}" for name, own in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def _one_architecture(models: str) -> bool:
    from fedpriv.models import family

    return len(family(models)) == 1
