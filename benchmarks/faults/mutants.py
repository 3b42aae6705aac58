"""Mutants of what makes figures and sentences: how many faults of one line does the suite let pass?

    python benchmarks/faults/mutants.py --mutants 400 --seed 0 --log mutants.jsonl

Mutants are made by mutmut's operators (``pip install mutmut``), of functions, methods, properties and constants alike, and
drawn uniformly. Each is tried in a process of its own, on the tests that execute its line, then on those that execute
anything of its module: libraries are imported once and forked, and the mutated source takes the module's place when a test
imports it. Types, decorators, docstrings, and calls of ``len`` and ``isinstance`` are left alone.

Exits with 1 where more than a tenth survives.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from mutant_draw import Mutant, again, draw
from mutant_trials import Campaign, cold_server, mapped, run_pytest

EVIDENCE = ("gather", "grants", "guesses", "guesses_by_hand", "server_view")
PAGES = ("claims", "defense_answers", "findings", "guarantees", "labels", "score_section")
TESTS = ("tests/scoring", "tests/test_doctests.py")
TESTS += tuple(
    f"tests/{room}/test_{name}.py" for room, own in (("evidence", EVIDENCE), ("pages", PAGES)) for name in own
)
"""Whole reports, studies and attacks are left out: they take long, and have the figures from here."""

LIBRARIES = (
    "torch",
    "torchvision",
    "torchmetrics",
    "kornia",
    "sklearn",
    "scipy.special",
    "scipy.optimize",
    "scipy.stats",
)
LIBRARIES += (
    "numpy.testing",
    "matplotlib.pyplot",
    "pydantic",
    "safetensors.torch",
    "rich",
    "rich_click",
    "jinja2",
    "PIL",
)
LIBRARIES += ("hypothesis.strategies", "pytest")

SURVIVORS = 0.1
"""The largest share that may survive."""


ALIVE = ("survived", "no test")


def table(found: Sequence[tuple[Mutant, str]]) -> str:
    """Return what became of mutants, file by file, in Markdown."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant, outcome in found:
        for name in (str(mutant.path), "all"):
            rows[name][outcome] += 1
    order = [*sorted(rows.keys() - {"all"}), "all"]
    lines = ["| file | mutants | killed | timed out | survived |", "| --- | ---: | ---: | ---: | ---: |"]
    for file in order:
        own = rows[file]
        alive = sum(own[name] for name in ALIVE)
        lines.append(f"| {file} | {own.total()} | {own['killed']} | {own['timed out']} | {alive} |")
    return "\n".join(lines)


def main() -> None:
    """Try mutants, print the table and the survivors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=400, help="how many are drawn")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument(
        "--log", type=Path, help="JSON lines of what became of each; what stands there is not tried again"
    )
    parser.add_argument("--again", type=Path, help="a log: mutants that survived in it are tried in place of a draw")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "fedpriv-mutants", help="for maps")
    given = parser.parse_args()
    mutants = draw(given.mutants, given.seed) if given.again is None else survivors(given.again)
    (given.folder / "tmp").mkdir(parents=True, exist_ok=True)
    for name in LIBRARIES:
        importlib.import_module(name)
    tests, afresh = mapped(given.folder, TESTS), cold_server(given.folder)
    found = [(mutant, known) for mutant in mutants if (known := logged(given.log).get(key(mutant)))]
    begun = [time.perf_counter()]

    def tell(mutant: Mutant, outcome: str, failed: str) -> None:
        found.append((mutant, outcome))
        told = {"file": str(mutant.path), "line": mutant.line, "outcome": outcome, "test": failed, "diff": mutant.diff}
        told["seconds"] = round(time.perf_counter() - begun[0], 1)
        begun[0] = time.perf_counter()
        if given.log:
            with given.log.open("a", encoding="utf-8") as log:
                print(json.dumps(told), file=log)

    left = [mutant for mutant in mutants if key(mutant) not in logged(given.log)]
    campaign = Campaign(left, tests, given.folder, afresh, tell)
    run_pytest([*TESTS, f"--basetemp={given.folder / 'tmp'}"], campaign)
    if len(found) < len(mutants):
        sys.exit("the tests could not be collected")
    print("\n" + table(found))
    alive = [mutant for mutant, outcome in found if outcome in ALIVE]
    for mutant in alive:
        print(f"\n{mutant.path}\n{mutant.diff}")
    sys.exit(len(alive) > SURVIVORS * len(found))


def key(mutant: Mutant) -> tuple[str, str]:
    """Return what a log knows a mutant by: its file, and the changed lines wherever they stand now."""
    return str(mutant.path), mutant.diff.partition("\n")[2]


def logged(log: Path | None) -> dict[tuple[str, str], str]:
    """Return what became of the mutants of a log."""
    if log is None or not log.exists():
        return {}
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return {(one["file"], one["diff"].partition("\n")[2]): one["outcome"] for one in lines}


def survivors(log: Path) -> list[Mutant]:
    """Return the mutants that survived in a log, of those whose lines are there still."""
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    made = [again(one["file"], one["line"], one["diff"]) for one in lines if one["outcome"] in ALIVE]
    print(f"{len([one for one in made if one])} of {len(made)} survivors are there still", flush=True)
    return [one for one in made if one is not None]


if __name__ == "__main__":
    main()
