"""Rates with their intervals, the table that shows them, and the pages of a script, kept as they are made."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from fedpriv.eval.intervals import clopper_pearson


class Rate(NamedTuple):
    """Rate of an event in independent trials: so many hits of so many."""

    hits: int
    trials: int

    @property
    def share(self) -> float:
        """In [0, 1]."""
        return self.hits / self.trials

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval (Clopper and Pearson)."""
        return clopper_pearson(self.share, self.trials)

    def __str__(self) -> str:
        """In per cent with the interval: ``1.2 (0.6 to 2.1)``."""
        low, high = (100 * end for end in self.interval)
        return f"{100 * self.share:.1f} ({low:.1f} to {high:.1f})"


def counted(happened: Iterable[bool]) -> Rate:
    """Count trials.

    >>> str(counted([True, False, False, False]))
    '25.0 (0.6 to 80.6)'
    """
    trials = list(happened)
    return Rate(sum(trials), len(trials))


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """A Markdown table whose columns are the keys of the first row; nothing without rows."""
    if not rows:
        return ""
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *([str(row.get(name, "")) for name in head] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def parser(doc: str | None, **numbers: int) -> argparse.ArgumentParser:
    """Return a parser of whole numbers with these defaults."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for name, default in numbers.items():
        made.add_argument(f"--{name}", type=int, default=default)
    return made


def kept(
    folder: Path, make: Callable[[str, int, int], dict[str, Any]], names: Iterable[str], chosen: argparse.Namespace
) -> dict[str, list[dict[str, Any]]]:
    """Return pages by name, as ``make`` returns them of (name, seed, number), each kept in ``folder/pages.jsonl``.

    A second start goes on with those that are missing. ``chosen`` says how many pages, which seed, and how many workers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "pages.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    there = {tuple(key): page for key, page in map(json.loads, lines)}
    wanted = [(name, chosen.seed, number) for name in names for number in range(chosen.pages)]
    missing = [key for key in wanted if key not in there]
    with ProcessPoolExecutor(chosen.workers) as pool, file.open("a", encoding="utf-8") as out:
        made = pool.map(make, *zip(*missing, strict=True), chunksize=5) if missing else ()
        for key, page in zip(missing, made, strict=False):
            print(json.dumps([key, page]), file=out, flush=True)
            there[key] = json.loads(json.dumps(page))
    return {name: [there[key] for key in wanted if key[0] == name] for name in dict.fromkeys(key[0] for key in wanted)}
