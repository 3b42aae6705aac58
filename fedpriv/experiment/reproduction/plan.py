"""From a claim to what is run: the cells that are tried, and the study that trains and attacks them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedpriv.experiment.federation_settings import run_config
from fedpriv.experiment.reproduction.settings import PAPER, Place, places, seeds_at, setting_at, study_at
from fedpriv.pages.claims import SCALES, Claim, ScaledDown
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError, unknown_name


@dataclass(frozen=True)
class Asked:
    """The part of a claim that is tried, and the data it is tried on.

    Attributes:
        scale: one of :data:`fedpriv.pages.claims.SCALES`.
        rows, columns: names; empty for those that the scale tries by default.
        seeds: empty for the scale's.
        data_dir: folder of the data sets in their original layouts.
        images: a paper's data set -> a folder of images, one folder a class, in its place.
        download: fetch data sets that are missing.
    """

    scale: str
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    data_dir: Path | None = None
    images: Mapping[str, Path] | None = None
    download: bool = False


@dataclass(frozen=True)
class Plan:
    """The cells of a claim that are run, and the study that runs them.

    Attributes:
        tried: the cells.
        left_out: what is not tried, and why, a line each.
        labels: name of a cell -> label of its method in the study.
        study: as a file would have it; empty where nothing is trained.
        seeds: of the runs; empty where nothing is trained.
    """

    tried: tuple[Place, ...]
    left_out: tuple[str, ...]
    labels: Mapping[str, str]
    study: Mapping[str, Any]
    seeds: tuple[int, ...]


def chosen(claim: Claim, asked: Asked) -> tuple[Place, ...]:
    """Return the cells that are asked for, or that a scale tries by default.

    Raises:
        UserError: for an unknown scale, row or column.
    """
    if asked.scale not in SCALES:
        raise unknown_name("scale", asked.scale, SCALES)
    own = claim.scales.get(asked.scale, ScaledDown())
    for key, names, known in (
        ("rows", asked.rows, [one.name for one in claim.rows]),
        ("columns", asked.columns, [one.name for one in claim.columns]),
    ):
        for name in names:
            if name not in known:
                raise UserError(f"{argument(key, name)}: {unknown_name(key[:-1], name, known)}")
    rows, columns = asked.rows or own.rows, asked.columns or own.columns
    every = [
        place
        for place in places(claim)
        if (not rows or place.row.name in rows) and (not columns or place.column.name in columns)
    ]
    if asked.scale == "smoke" and not (asked.rows or asked.columns or claim.counted):
        runs = {_run(claim, place) for place in _few(every)}
        every = [place for place in every if _run(claim, place) in runs]
    return tuple(place for place in every if place.method is not None)


def _few(every: Sequence[Place]) -> list[Place]:
    """Return the cells of the first column and of the first row: each setting is tried once."""
    first = every[:1]
    return [place for place in every if any(place.number == one.number or place.row is one.row for one in first)]


def _run(claim: Claim, place: Place) -> str:
    """Return the key of cells that are of one run: they only measure differently."""
    key = [place.method, place.target, setting_at(claim, place, "smoke")]
    return json.dumps(key, sort_keys=True, default=str)


def planned(claim: Claim, asked: Asked) -> Plan:
    """Plan what is run of a claim.

    Raises:
        UserError: for an unknown scale, row or column; where no data is there for any cell.
    """
    wanted = chosen(claim, asked)
    if not wanted:
        raise UserError("this claim speaks of no method, so there is nothing to run")
    if claim.counted:
        return Plan(wanted, (), {}, {}, ())
    settings = {place.name: _with_data(place, setting_at(claim, place, asked.scale), asked) for place in wanted}
    there = {key: _missing(dict(key), asked) for key in dict.fromkeys(_data_of(one) for one in settings.values())}
    left_out = tuple(
        dict.fromkeys(f"{place.name}: {why}" for place in wanted if (why := there[_data_of(settings[place.name])]))
    )
    tried = tuple(place for place in wanted if not there[_data_of(settings[place.name])])
    if not tried:
        raise UserError(next(why for why in there.values() if why))
    labels, entries = _entries(tried, settings, attacked=claim.quantity == "inversion")
    seeds = asked.seeds or seeds_at(claim, asked.scale)
    study: dict[str, Any] = {"methods": entries, "seeds": list(seeds)}
    if claim.quantity == "inversion":
        study = {**study_at(claim, asked.scale), **study, "local": False}
    else:
        study |= {"attacks": "none", "federation": {"capture": "none"}, "local": asked.scale != "smoke"}
    return Plan(tried, left_out, labels, study, seeds)


def _entries(
    tried: Sequence[Place], settings: Mapping[str, Mapping[str, Any]], *, attacked: bool
) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return the label of every cell's method, and the methods: one for cells that only measure differently."""
    labels: dict[str, str] = {}
    entries: dict[str, dict[str, Any]] = {}
    for place in tried:
        own = {"name": place.method, **settings[place.name]}
        if attacked and place.target is not None:
            own["target"] = place.target
        key = json.dumps(own, sort_keys=True, default=str)
        entry = entries.setdefault(key, {**own, "label": place.name})
        labels[place.name] = entry["label"]
    return labels, list(entries.values())


# ---------------------------------------------------------------- data

_EMBEDDED = ("digits", "fashion")


def _with_data(place: Place, setting: Mapping[str, Any], asked: Asked) -> dict[str, Any]:
    """Return a setting with where its data lies; at the smallest scale it is the package's own."""
    if asked.scale == "smoke":
        return dict(setting)
    images = (asked.images or {}).get(place.column.data)
    if images is not None:
        return {**setting, "dataset": "folder", "data_dir": str(images)}
    return {**setting, **({} if asked.data_dir is None else {"data_dir": str(asked.data_dir)})}


def _data_of(setting: Mapping[str, Any]) -> tuple[tuple[str, str | None], ...]:
    return (("dataset", str(setting.get("dataset", "fashion"))), ("data_dir", setting.get("data_dir")))


def _missing(data: Mapping[str, str | None], asked: Asked) -> str:
    """Return why a data set is not there, or nothing."""
    from fedpriv.federation.prepared import load_division

    try:
        config = run_config(
            "local",
            {"image_size": 8, "per_class": 20, **{k: v for k, v in data.items() if v is not None}},
            0,
        )
        load_division(
            replace(config, clients=2, partition=replace(config.partition, name="iid")), download=asked.download
        )
    except UserError as error:
        return str(error)
    return ""


def is_paper_setting(asked: Asked) -> bool:
    """True where the paper's own setting is run."""
    return asked.scale == PAPER and not asked.images
