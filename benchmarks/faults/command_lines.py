"""Random command lines and study files: every one ends in 0, 1, 2 or 130, with one line of ours where it fails.

    python benchmarks/faults/command_lines.py --lines 5000 --studies 2000 --processes 200 --seed 0

Prints a Markdown table; exits with 1 where anything fails. Failures and exits of 1 are told on standard error as they come.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from line_draws import line, shown
from line_trials import Outcome, apart, here
from line_world import copy, make, theirs
from study_draws import study

from fedpriv.util import parallel

MEMORY = 10 << 30
"""Bytes of address space that the campaign may take, so that what asks for more fails here and not elsewhere."""


@dataclass
class Tally:
    """Ends of many trials of one kind."""

    kind: str
    trials: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    ones: list[str] = field(default_factory=list)
    slowest: float = 0.0

    def add(self, words: Sequence[str], outcome: Outcome, faults: Sequence[str], note: str = "") -> None:
        """Count an end in, and keep what is wrong with it."""
        self.trials += 1
        self.codes["interrupted" if outcome.interrupted else str(outcome.code)] += 1
        self.slowest = max(self.slowest, outcome.seconds)
        told = f"{shown(words)}{note}"
        self.faults += [f"{self.kind} {self.trials}: {told}\n    {fault}" for fault in faults]
        if outcome.code == 1 and words[0] != "doctor":  # whose exit of 1 is what it found
            self.ones.append(f"{self.kind} {self.trials}: {told}\n    {outcome.last[:300]}")
        if faults or (outcome.code == 1 and words[0] != "doctor"):
            print(f"{told}\n    exit {outcome.code}: {outcome.last[:300]}", *faults, sep="\n    ", file=sys.stderr)

    def row(self) -> str:
        """Return a line of the table."""
        codes = [str(self.codes[code]) for code in ("0", "1", "2", "130", "interrupted")]
        return f"| {self.kind} | {self.trials} | {' | '.join(codes)} | {len(self.faults)} | {self.slowest:.0f} s |"


HEAD = (
    "| fault | trials | exit 0 | exit 1 | exit 2 | exit 130 | long work, interrupted: 130 | failures | longest |\n"
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
)


@contextmanager
def ground() -> Iterator[Path]:
    """Give a folder to work in; within, no network, no workers unless they are asked for, and a home that is not ours."""

    def refuse(*given: Any, **named: Any) -> Any:
        raise OSError("the network is unreachable")

    kept = (socket.getaddrinfo, os.environ.get("HOME"), parallel.PATIENCE)
    with tempfile.TemporaryDirectory(prefix="fedpriv-lines-") as name:
        home = Path(name).resolve()
        (home / "home").mkdir()
        socket.getaddrinfo, os.environ["HOME"], parallel.PATIENCE = refuse, str(home / "home"), 1e6  # type: ignore[assignment]
        try:
            yield home
        finally:
            socket.getaddrinfo, _, parallel.PATIENCE = kept
            os.environ["HOME"] = kept[1] or ""


Carried = Callable[[Sequence[str], Path], Outcome]


def tried(words: Sequence[str], home: Path, world: Path, carry: Carried = here) -> tuple[Outcome, list[str]]:
    """Carry a command line out in a fresh copy of the world; return its end and what is wrong with it."""
    folder = copy(world, home / "trial")
    before = theirs(folder)
    outcome = carry(words, folder)
    faults = outcome.faults(words[0] if words else "")
    return outcome, faults if theirs(folder) == before else [*faults, "changed a file of a stranger"]


def lines(number: int, seed: int, home: Path, world: Path, carry: Carried = here, first: int = 0) -> Tally:
    """Try random command lines."""
    tally = Tally("command lines, one process" if carry is here else "command lines, processes of their own")
    for trial in range(first, first + number):
        words = line(random.Random(f"line {seed} {trial}"), real_process=carry is not here)
        tally.add(words, *tried(words, home, world, carry), note=f"  # trial {trial}")
        _tell(tally, number)
    return tally


def studies(number: int, seed: int, home: Path, world: Path, real: float = 0.03, first: int = 0) -> Tally:
    """Try random study files: most are only listed, a share of ``real`` is carried out."""
    tally = Tally("study files, one process")
    for trial in range(first, first + number):
        rng = random.Random(f"study {seed} {trial}")
        (world / "drawn.toml").write_bytes(study(rng).encode("utf-8", "surrogatepass"))
        words = ["audit", "drawn.toml", *(["--out", "new"] if rng.random() < real else ["--dry-run"])]
        words += rng.choice(((), (), ("--json",), ("--quiet",)))
        outcome, faults = tried(words, home, world)
        tally.add(words, outcome, faults, note=f"  # trial {trial}")
        _tell(tally, number)
    return tally


def _tell(tally: Tally, number: int) -> None:
    if tally.trials % 100 == 0:
        print(
            f"{time.strftime('%H:%M:%S')} {tally.kind}: {tally.trials} of {number}, {len(tally.faults)} failures",
            file=sys.stderr,
        )


def main() -> int:
    """Run the campaign and print its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("lines", 5000), ("studies", 2000), ("processes", 200), ("seed", 0), ("first", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    began = time.monotonic()
    with ground() as home:
        world = make(home / "world")
        found = [
            lines(asked.lines, asked.seed, home, world, first=asked.first),
            studies(asked.studies, asked.seed, home, world, first=asked.first),
            lines(asked.processes, asked.seed + 1, home, world, apart),
        ]
    print(HEAD)
    for tally in found:
        if tally.trials:
            print(tally.row())
    print(f"\nseed {asked.seed}, {time.monotonic() - began:.0f} s\n")
    reasons = Counter(
        re.sub(r"\d+", "N", one.rpartition("\n")[2]).strip()[:120] for tally in found for one in tally.ones
    )
    print("exits of 1, by reason:\n" + "\n".join(f"- {number} x {reason}" for reason, number in reasons.most_common()))
    faults = [fault for tally in found for fault in tally.faults]
    print("\nfailures:\n" + ("\n".join(faults) or "none"))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
