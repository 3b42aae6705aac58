"""Folders of strangers that name code: whatever text of whatever file names it, no command imports it unasked.

    python benchmarks/faults/foreign_code.py --trials 500 --seed 0

In a fresh copy of a small run, result, study or recording, as a stranger would hand it on (without digests), one text of one
JSON file becomes ``planted:HOOK``; then a command that reads the folder is carried out, in a place where that module lies.
Prints a table; exits with 1 where the module was imported or a command ended in a traceback.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hostile import carry_out, world
from silent import fill

from fedpriv.util.files import MARKER

HOOK = "planted:HOOK"
COMMANDS = {
    "run": (
        "attack --run run --target prototype --attack pixels --attack membership --iterations 2 --targets 2 --out new",
        "train --resume --out run",
        "report run --out new",
        "audit --runs run --attacks pixels:iterations=2 --targets 2 --out new",
    ),
    "attacked": ("report attacked --out new", "score attacked/dip", "compare attacked attacked"),
    "study": ("report study --out new", "audit --resume --out study"),
    "recording": ("attack --run recording --target model --out new", "report recording --out new"),
}
"""Folders, and the commands that read them."""


def texts(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of each text in a value of JSON, and of each key of a mapping."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from texts(item, (*place, key))
    if isinstance(value, str) or value is None:
        yield place


def planted(line: str, rng: random.Random) -> str:
    """Return a line of JSON in which one text names the module."""
    value = json.loads(line)
    *way, last = rng.choice([place for place in texts(value) if place] or [(None,)])
    if last is None:
        return line
    at = value
    for key in way:
        at = at[key]
    at[last] = HOOK
    return json.dumps(value)


def trial(name: str, home: Path, number: int, seed: int) -> tuple[str, str]:
    """Plant a name and carry out a command; return how it ended, and what is wrong."""
    rng = random.Random(f"{seed} {name} {number}")
    place = home.parent / "trial"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for each in ("run", name):
        shutil.copytree(home / each, place / each, dirs_exist_ok=True)
    (place / "planted.py").write_text("from pathlib import Path\nPath('imported').touch()\nHOOK = None\n")
    for marker in place.rglob(MARKER):
        marker.write_bytes(marker.read_bytes().partition(b"\n")[0] + b"\n")
    files = sorted(one for one in (place / name).rglob("*.json*") if not one.name.startswith("."))
    file = rng.choice(files)
    lines = (
        file.read_text(encoding="utf-8").splitlines() if file.suffix == ".jsonl" else [file.read_text(encoding="utf-8")]
    )
    if not lines:
        return "nothing to change", ""
    row = rng.randrange(len(lines))
    lines[row] = planted(lines[row], rng)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = rng.choice(COMMANDS[name])
    outcome = carry_out([*command.split(), "--quiet"], place)
    where = f"{name} {number}: {command}: {file.relative_to(place)}"
    if "planted" in sys.modules or (place / "imported").exists():
        sys.modules.pop("planted", None)
        return "imported", f"{where}: the module was imported"
    if outcome.escaped or "Traceback" in outcome.err:
        return "broke", f"{where}: {outcome.escaped or outcome.err[-300:]}"
    return "refused" if outcome.code else "done", ""


def program() -> int:
    """Run the campaign and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options, wrong = parser.parse_args(), list[str]()
    print("| folder | trials | refused | done | wrong |\n| --- | ---: | ---: | ---: | ---: |")
    with world() as home:
        fill(home)
        sys.path.insert(0, str(home.parent / "trial"))
        for name in COMMANDS:
            ends = Counter[str]()
            for number in range(options.trials // len(COMMANDS)):
                end, fault = trial(name, home, number, options.seed)
                ends[end] += 1
                wrong += [fault] if fault else []
            faults = ends["imported"] + ends["broke"]
            print(f"| {name} | {ends.total()} | {ends['refused']} | {ends['done']} | {faults} |", flush=True)
    print(*wrong, sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(program())
