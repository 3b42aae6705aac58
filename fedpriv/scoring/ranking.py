"""Which attacks stand in one ranking, and in what order: the same in every table."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
Record = Mapping[str, Any]


def strongest_first(items: Sequence[T], record: Callable[[T], Record]) -> list[list[T]]:
    """Return one ranking for each knowledge card, by mean advantage; the card with the strongest attack comes first.

    Args:
        items: attacks.
        record: returns the ``metrics.json`` record of one.
    """
    cards: dict[str, list[T]] = {}
    for item in items:
        cards.setdefault(card_key(record(item)), []).append(item)

    def gain(item: T) -> float:
        return float(record(item)["advantage_db"]["mean"])

    ranked = [sorted(members, key=gain, reverse=True) for members in cards.values()]
    return sorted(ranked, key=lambda members: gain(members[0]), reverse=True)


def card_key(record: Record) -> str:
    """Return what is the same for all attacks under one knowledge card."""
    return json.dumps(record["knowledge"], sort_keys=True)


def card_numbers(items: Sequence[T], record: Callable[[T], Record]) -> dict[str, int]:
    """Return the number by which a report calls each card, by :func:`card_key`: its place in :func:`strongest_first`."""
    ranked = strongest_first(items, record)
    return {card_key(record(members[0])): number for number, members in enumerate(ranked, start=1)}


def in_order(items: Sequence[T], record: Callable[[T], Record]) -> list[T]:
    """Return the rankings of :func:`strongest_first` one after the other."""
    return [item for members in strongest_first(items, record) for item in members]


def budget_value(record: Record) -> int | None:
    """Return the budget that an attack was given on a list of budgets, or None."""
    budget = record.get("budget")
    return None if budget is None else int(budget["value"])


def stage_name(record: Record) -> str | None:
    """Return the stage of training that was attacked, or None where none was named."""
    stage = record.get("stage")
    return None if stage is None else str(stage["name"])


def title(record: Record) -> str:
    """Return what tables call an attack: ``dip``, ``dip, early``, ``dip, budget 300``."""
    stage, budget = stage_name(record), budget_value(record)
    parts = [str(record["attack"]), stage or "", "" if budget is None else f"budget {budget:,}"]
    return ", ".join(part for part in parts if part)


def by_budget(items: Sequence[T], record: Callable[[T], Record], about: Callable[[T], Record]) -> list[list[T]]:
    """Return attacks that differ in their budget alone as one series each, ascending; others are series of one.

    Args:
        items: attacks.
        record: returns the ``metrics.json`` record of one.
        about: returns its ``about.json``, or an empty mapping where only the record is at hand.
    """
    series: dict[str, list[T]] = {}
    for place, item in enumerate(items):
        key = str(place) if budget_value(record(item)) is None else _apart_from_budget(record(item), about(item))
        series.setdefault(key, []).append(item)
    return [sorted(members, key=lambda item: budget_value(record(item)) or 0) for members in series.values()]


def largest_budgets(items: Sequence[T], record: Callable[[T], Record], about: Callable[[T], Record]) -> list[T]:
    """Return the last of each series of :func:`by_budget`: choosing a budget by score would be choosing by the truth."""
    return [series[-1] for series in by_budget(items, record, about)]


def _apart_from_budget(record: Record, about: Record) -> str:
    own = ("target", "attack", "method", "dataset", "knowledge", "stage", "seed", "n_targets")
    field = record["budget"]["field"]
    options = {key: value for key, value in about.get("options", {}).items() if key != field}
    return json.dumps([{key: record.get(key) for key in own}, about.get("run"), options], sort_keys=True)
