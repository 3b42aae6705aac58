"""Which attacks stand in one ranking, and in what order: the same in every table."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TypeVar

from fedpriv.scoring.records import About, ReconstructionRecord, ThreatModel
from fedpriv.scoring.records.made import Identity
from fedpriv.util.config import plain

T = TypeVar("T")


def strongest_first(items: Sequence[T], record: Callable[[T], ReconstructionRecord]) -> list[list[T]]:
    """Return one ranking for each threat model, by mean advantage; the card with the strongest attack comes first.

    Args:
        items: attacks.
        record: returns the ``metrics.json`` record of one.
    """
    cards: dict[str, list[T]] = {}
    for item in items:
        cards.setdefault(card_key(record(item).knowledge), []).append(item)

    def gain(item: T) -> float:
        return record(item).advantage_db.mean

    ranked = [sorted(members, key=gain, reverse=True) for members in cards.values()]
    return sorted(ranked, key=lambda members: gain(members[0]), reverse=True)


def card_key(knowledge: ThreatModel) -> str:
    """Return the key that is the same for all attacks under one threat model."""
    return json.dumps(plain(knowledge), sort_keys=True)


def card_numbers(items: Sequence[T], record: Callable[[T], ReconstructionRecord]) -> dict[str, int]:
    """Return the number by which a report calls each card, by :func:`card_key`: its place in :func:`strongest_first`."""
    ranked = strongest_first(items, record)
    return {card_key(record(members[0]).knowledge): number for number, members in enumerate(ranked, start=1)}


def in_order(items: Sequence[T], record: Callable[[T], ReconstructionRecord]) -> list[T]:
    """Return the rankings of :func:`strongest_first` one after the other."""
    return [item for members in strongest_first(items, record) for item in members]


def budget_value(record: ReconstructionRecord | About) -> int | None:
    """Return the budget that an attack was given on a list of budgets, or None."""
    return None if record.budget is None else record.budget.value


def stage_name(record: Identity) -> str | None:
    """Return the stage of training that was attacked, or None where none was named."""
    return None if record.stage is None else record.stage.name


def reach_label(record: Identity) -> str:
    """Return the setting of local work that was attacked, of several, in a few words; else nothing."""
    return "" if record.reach is None else record.reach.label


def title(record: ReconstructionRecord) -> str:
    """Return the name of an attack in tables: ``dip``, ``dip, early``, ``dip, budget 300``, ``dlg, 4 images``."""
    stage, budget = stage_name(record), budget_value(record)
    parts = [record.attack, stage or "", reach_label(record), "" if budget is None else f"budget {budget:,}"]
    return ", ".join(part for part in parts if part)


def by_budget(
    items: Sequence[T], record: Callable[[T], ReconstructionRecord], about: Callable[[T], About | None]
) -> list[list[T]]:
    """Return attacks that differ in their budget alone as one series each, ascending; others are series of one.

    Args:
        items: attacks.
        record: returns the ``metrics.json`` record of one.
        about: returns its ``about.json``, or None where only the record is at hand.
    """
    series: dict[str, list[T]] = {}
    for index, item in enumerate(items):
        key = _apart_from_budget(record(item), about(item)) or str(index)
        series.setdefault(key, []).append(item)
    return [sorted(members, key=lambda item: budget_value(record(item)) or 0) for members in series.values()]


def largest_budgets(
    items: Sequence[T], record: Callable[[T], ReconstructionRecord], about: Callable[[T], About | None]
) -> list[T]:
    """Return the last of each series of :func:`by_budget`: choosing a budget by score would be choosing by the truth."""
    return [series[-1] for series in by_budget(items, record, about)]


def _apart_from_budget(record: ReconstructionRecord, about: About | None) -> str:
    if record.budget is None:
        return ""
    group = [record.target, record.attack, record.method, record.dataset, plain(record.knowledge), record.seed]
    group += [None if record.stage is None else record.stage.name, reach_label(record), record.n_targets]
    if about is not None:
        options = {key: value for key, value in about.options.items() if key != record.budget.field}
        group += [plain(about.run), options]
    return json.dumps(group, sort_keys=True)
