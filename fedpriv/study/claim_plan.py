"""From a claim to what is run: the cells that are tried, their setting at a scale, and the study that trains them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedpriv.attacks import targets_of
from fedpriv.claims import SCALES, Claim, Column, Measure, Row, ScaledDown
from fedpriv.federation.prepared import load_division
from fedpriv.models import family
from fedpriv.study.settings import run_config
from fedpriv.util.errors import UserError, shown, unknown_name

PAPER = "paper"

_SMALL: dict[str, Any] = {
    **dict.fromkeys(("image_size", "width", "local_steps")),
    **dict(participation=1.0, epochs=1, lr=0.05, models="small", batch_size=10),
}
_DIGITS: dict[str, Any] = {
    **dict(dataset="digits", data_dir=None, per_class=12, clients=3, rounds=1, classes_per_client=4),
    **dict(least_per_client=4, public=0, imbalance=2.0),
}
_SHORT = {"per_class": 100, "clients": 10, "rounds": 20, "least_per_client": 10}
DEFAULTS: Mapping[str, ScaledDown] = {
    "smoke": ScaledDown(setting=_SMALL | _DIGITS, study={"targets": 2}, seeds=(0,)),
    "cpu": ScaledDown(setting=_SMALL | _SHORT, study={"targets": 24}, seeds=(0, 1, 2)),
}
"""What a scale puts in the place of every paper's setting, before what the claim itself says of that scale."""

_OF_PARTITIONS = {
    "classes_per_client": ("pathological",),
    "imbalance": ("long_tail",),
    "least_per_client": ("dirichlet", "pathological", "long_tail"),
}
"""Settings that only some partitions have."""

_USUAL = {"participation": 1.0, "public": 0}

LAST_ALONE = 1_000_000
"""Rounds between evaluations, more than any run has: the last round alone, which is always scored, is."""

ONE_MODEL, PUBLIC = "small-cnn", 20
"""For one architecture of a paper, where a family of small ones stands for several; public images at the smallest scale."""


@dataclass(frozen=True)
class Place:
    """A cell of a table."""

    row: Row
    column: Column
    name: str  # ``ROW | COLUMN``
    claimed: float | None  # the paper's value
    spread: float | None  # the deviation that the paper prints
    method: str | None  # registry name; None where the claim is about any
    target: str | None  # kind of upload


@dataclass(frozen=True)
class Asked:
    """The part of a claim that is tried, and the data it is tried on."""

    scale: str  # one of fedpriv.claims.SCALES
    rows: tuple[str, ...] = ()  # names; empty for those that the scale tries by default
    columns: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()  # empty for the scale's
    data_dir: Path | None = None  # folder of the data sets in their original layouts
    images: Mapping[str, Path] = field(default_factory=dict)  # a paper's data set -> a folder of images in its place
    download: bool = False


@dataclass(frozen=True)
class Plan:
    """The cells of a claim that are run, and the study that runs them; nothing is trained where it is empty."""

    tried: tuple[Place, ...]
    left_out: tuple[str, ...] = ()  # what is not tried, and why
    labels: Mapping[str, str] = field(default_factory=dict)  # name of a cell -> label of its method in the study
    study: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()


def places(claim: Claim) -> tuple[Place, ...]:
    """Return every cell of a claim, row by row."""
    cells = []
    for row in claim.rows:
        for column, claimed, spread in zip(
            claim.columns, row.values, row.spread or [None] * len(row.values), strict=True
        ):
            name, method = f"{row.name} | {column.name}", row.method or column.method
            cells.append(Place(row, column, name, claimed, spread, method, row.target or column.target))
    return tuple(cells)


def measure_of(claim: Claim, position: Place, scale: str = PAPER) -> Measure:
    """Return the measure of a cell at a scale."""
    measure = position.column.measure or claim.measure
    return replace(measure, reach=position.column.reach[scale]) if scale in position.column.reach else measure


def setting_at(claim: Claim, position: Place, scale: str = PAPER) -> dict[str, Any]:
    """Return the settings of training of a cell at a scale, ``option`` with the method's; None leaves one at its default."""
    printed = merged(claim.setting, position.column.setting, position.row.setting)
    if scale == PAPER:
        return printed
    shared = dict(DEFAULTS[scale].setting)
    if scale == "smoke":
        shared["public"] = PUBLIC if printed.get("public") else 0
    if "models" in printed and len(family(str(printed["models"]))) == 1:
        shared["models"] = ONE_MODEL
    here = (table.get(scale, {}) for table in (position.column.scales, position.row.scales))
    setting = merged(printed, shared, _scaled(claim, scale).setting, *here)
    option = printed.get("option", {})
    if "small_model" in option and setting.get("models") != printed.get("models"):
        width = {"small_width": option["small_width"] // 4} if "small_width" in option else {}
        setting = merged(setting, {"option": {"small_model": ONE_MODEL, **width}})
    partition = setting.get("partition", "dirichlet")
    beside = {name for name, partitions in _OF_PARTITIONS.items() if partition not in partitions}
    beside |= {name for name, value in _USUAL.items() if name not in printed and setting.get(name) == value}
    return {name: value for name, value in setting.items() if value is not None and name not in beside}


def sizes_of(claim: Claim, position: Place) -> dict[str, Any]:
    """Return the sizes that a counted cell follows from."""
    return merged(claim.sizes, position.column.sizes, position.row.sizes)


def _scaled(claim: Claim, scale: str) -> ScaledDown:
    return claim.scales.get(scale, ScaledDown())


def merged(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return tables in one, later ones winning; their ``option`` are merged in turn."""
    whole: dict[str, Any] = {}
    for table in tables:
        option = {**whole.get("option", {}), **table.get("option", {})}
        whole |= {**table, **({"option": option} if option else {})}
    return whole


def changed(claim: Claim, tried: Sequence[Place], scale: str) -> dict[str, tuple[str, str]]:
    """Return settings that differ from the paper's in some cell: name -> (the paper's, the one here), in words."""
    pairs: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for position in tried:
        before, now = (setting_at(claim, position, at) for at in (PAPER, scale))
        if position.column.reach:
            for setting, at in ((before, PAPER), (now, scale)):
                setting["accuracy to reach"] = measure_of(claim, position, at).reach
        for name in dict.fromkeys((*before, *now)):
            if before.get(name) != now.get(name):
                for words, setting in zip(pairs.setdefault(name, ({}, {})), (before, now), strict=True):
                    words[_words(setting.get(name))] = None
    return {name: ("; ".join(theirs), "; ".join(ours)) for name, (theirs, ours) in pairs.items()}


def _words(value: Any) -> str:
    if value is None:
        return "not told"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_words(item)}" for name, item in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def planned(claim: Claim, requested: Asked) -> Plan:
    """Plan what is run of a claim."""
    chosen = cells_of(claim, requested)
    if claim.counted:
        return Plan(chosen)
    labels: dict[str, str] = {}
    left_out: dict[str, None] = {}
    reasons: dict[tuple[str, str | None], str] = {}
    entries: dict[str, dict[str, Any]] = {}  # one for cells that only measure differently
    for place in chosen:
        setting = setting_at(claim, place, requested.scale)
        if requested.scale != "smoke":  # whose data is the package's own
            if place.column.data in requested.images:
                setting |= {"dataset": "folder", "data_dir": str(requested.images[place.column.data])}
            elif requested.data_dir is not None:
                setting["data_dir"] = str(requested.data_dir)
        data = str(setting.get("dataset", "fashion")), setting.get("data_dir")
        if data not in reasons:
            reasons[data] = _missing(*data, requested)
        if reasons[data]:
            left_out[f"{place.name}: {reasons[data]}"] = None
            continue
        entry = {"name": place.method, **setting}
        if claim.quantity == "inversion" and place.target is not None:
            entry["target"] = place.target
        labels[place.name] = entries.setdefault(_key(entry), {**entry, "label": place.name})["label"]
    if not entries:
        raise UserError(next(iter(reasons.values())))
    usual, scaled = DEFAULTS.get(requested.scale, ScaledDown()), _scaled(claim, requested.scale)
    seeds = requested.seeds or (claim.seeds if requested.scale == PAPER else scaled.seeds or usual.seeds)
    study: dict[str, Any] = {"methods": list(entries.values()), "seeds": list(seeds)}
    if claim.quantity == "inversion":
        study = {**merged(claim.study, usual.study, scaled.study), **study, "local": False}
        targets = {entry.get("target") for entry in entries.values()}
        if None not in targets:  # attacks on other uploads than those of the chosen rows are left out
            study["attacks"] = [entry for entry in study["attacks"] if targets & set(targets_of(entry["name"]))]
    else:
        local = requested.scale != "smoke" and claim.measure.what != "ahead"
        measures = [measure_of(claim, place, requested.scale) for place in chosen]
        last = all(measure.what in ("accuracy", "ahead") and measure.when == "final" for measure in measures)
        pace = {"evaluate_every": LAST_ALONE if last else 1, "checkpoint_every": 10}
        study |= {"attacks": "none", "federation": {"capture": "none", **pace}, "local": local}
    return Plan(tuple(place for place in chosen if place.name in labels), tuple(left_out), labels, study, seeds)


def cells_of(claim: Claim, requested: Asked) -> tuple[Place, ...]:
    """Return the cells that are asked for, or that a scale tries by default."""
    if requested.scale not in SCALES:
        raise unknown_name("scale", requested.scale, SCALES)
    for key, names, table in (("rows", requested.rows, claim.rows), ("columns", requested.columns, claim.columns)):
        known = [entry.name for entry in table]
        for name in names:
            if name not in known:
                raise UserError(f"{key}={shown(name)}: {unknown_name(key[:-1], name, known)}")
    usual = _scaled(claim, requested.scale)
    rows, columns = requested.rows or usual.rows, requested.columns or usual.columns
    cells = [
        position
        for position in places(claim)
        if (not rows or position.row.name in rows) and (not columns or position.column.name in columns)
    ]
    if requested.scale == "smoke" and cells and not (requested.rows or requested.columns or claim.counted):
        # the first row, the first column, and cells of the same runs, which only measure differently
        keys = {cell.name: _key([cell.method, cell.target, setting_at(claim, cell, "smoke")]) for cell in cells}
        runs = {keys[item.name] for item in cells if item.column is cells[0].column or item.row is cells[0].row}
        cells = [index for index in cells if keys[index.name] in runs]
    if all(position.method is None for position in cells):
        raise UserError("this claim speaks of no method, so there is nothing to run")
    return tuple(position for position in cells if position.method is not None)


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _missing(dataset: str, data_dir: str | None, requested: Asked) -> str:
    """Return why a data set is not there, or nothing."""
    small = {"image_size": 8, "per_class": 20, "clients": 2, "partition": "iid", "dataset": dataset}
    try:
        config = run_config("local", small | ({} if data_dir is None else {"data_dir": data_dir}), 0)
        load_division(config, download=requested.download)
    except UserError as error:
        return str(error)
    return ""
