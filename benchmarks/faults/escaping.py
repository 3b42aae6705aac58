"""Names that try to be more than names, through every kind of output and through whole pages.

    python benchmarks/faults/escaping.py --trials 2000 --pages 20 --seed 0

A name is drawn from a list of hostile ones, put together of parts of them, or of characters that mean something somewhere.
Right is that what is rendered (Markdown by a parser of CommonMark, HTML by Python's parser, SVG as XML, tables as a
spreadsheet reads them) has the elements and links that a harmless name gives, and the name as its text.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from hostile_cases import CHECKS, HOSTILE
from hostile_pages import FIELDS, WRITTEN, attacks_page, check_pages, files_of, reference, runs_page

MEANING = "\\`*_~#>|$@[]()<>&;!-+=.:/%{}'\"^0123456789 ab\n\t\r\x1b\u202e\u2028"


def draw(chance: random.Random) -> str:
    """Return a name; some stand in the list, most are made up."""
    kind = chance.random()
    if kind < 0.2:
        return chance.choice(HOSTILE)
    if kind < 0.6:
        parts = [chance.choice(HOSTILE) for _ in range(chance.randint(1, 3))]
        return "".join(part[chance.randrange(len(part)) :][: chance.randint(1, 40)] for part in parts)
    return "".join(chance.choice(MEANING) for _ in range(chance.randint(1, 30)))


def recorded(name: str) -> str:
    """Return a name as a record can hold it: it has no half of a character."""
    return name.encode("utf-8", "replace").decode("utf-8")


def in_pages(chance: random.Random, home: Path, number: int) -> None:
    """Check a page over attacks and one over runs, with a drawn name in each of their fields."""
    names = [recorded(draw(chance)) for _ in range(FIELDS)]
    made = files_of(attacks_page(home / f"attacks-{number}", iter(names)))
    shown = [None if place == WRITTEN else name for place, name in enumerate(names)]
    check_pages(made, reference(attacks_page, home / "attacks"), shown)
    names = [recorded(draw(chance)) for _ in range(5)]
    made = files_of(runs_page(home / f"runs-{number}", iter(names)))
    names[3] = Path(names[3]).name  # a folder of images goes by its own name
    check_pages(made, reference(runs_page, home / "runs"), names)


def main() -> int:
    """Print a line for each kind of output; return 1 where a name got through."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2000, help="names for each kind of output")
    parser.add_argument("--pages", type=int, default=20, help="reports over attacks, and as many over runs")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    print("| output | names | got through |\n| --- | ---: | ---: |")
    failed: list[str] = []
    for kind, check in CHECKS.items():
        chance, wrong = random.Random(f"{asked.seed} {kind}"), 0
        for _ in range(asked.trials):
            name = draw(chance)
            try:
                check(name)
            except Exception as error:
                wrong += 1
                failed.append(f"{kind}: {name!r}: {type(error).__name__}: {str(error).splitlines()[:1]}")
        print(f"| {kind} | {asked.trials:,} | {wrong} |", flush=True)
    chance, wrong = random.Random(f"{asked.seed} pages"), 0
    with tempfile.TemporaryDirectory() as home:
        for number in range(asked.pages):
            try:
                in_pages(chance, Path(home), number)
            except Exception as error:
                wrong += 1
                traceback.print_exc()
                failed.append(f"page {number}: {type(error).__name__}: {str(error).splitlines()[:1]}")
    print(
        f"| pages over attacks and over runs, with their tables and pictures | {asked.pages * (FIELDS + 5):,} | {wrong} |"
    )
    for line in failed[:20]:
        print(line, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
