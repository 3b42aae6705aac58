"""A study done by shards in one folder, killed and started again: every cell once, and the result of one command.

    python benchmarks/faults/shards.py --cells 200 --shards 2 --trials 3 --seed 0

One command does the study alone; that is what others must come to, byte for byte, with clocks standing still. Then shards do
it at once: undisturbed, and with a shard killed at a random moment (SIGKILL mostly, SIGTERM, SIGINT) and started again by
the same command, several times while the others go on. Each training and each attack that comes to its end is counted.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from comparing import contents, differences, litter
from trials import Command, mixed, must, orphans, prepare, workplace

STUDY = """methods = ["fedproto", {{ name = "fedgh", attacks = "none" }}]
defenses = ["none", {{ name = "noise", scale = 0.5 }}]
attacks = [{{ name = "pixels", iterations = 1, restarts = 1 }}]
seeds = [{seeds}]
targets = 1
control = false
local = true

[federation]
dataset = "digits"
per-class = 12
clients = 2
partition = "iid"
rounds = 1
models = "small-mlp"
"""
OUT = ["--out", "made/out", "--quiet"]
LIMIT = 3600.0
"""Seconds after which a command hangs."""


@dataclass
class Tally:
    """What became of the trials of one kind.

    Attributes:
        trials: how many.
        equal: ended with the result of one command alone.
        kills: how often a shard was killed.
        trained: ends of trainings, in all trials.
        failures: in words, and how often.
    """

    trials: int = 0
    equal: int = 0
    kills: int = 0
    trained: int = 0
    failures: Counter[str] = field(default_factory=Counter)


class Trials:
    """Trials of a study of so many cells (rounded up to fives) in a folder."""

    def __init__(self, home: Path, cells: int, shards: int, seed: int) -> None:
        self.home, self.work, self.made = home, home / "work", home / "work" / "made"
        self.seed, self.shards, self.log = seed, shards, home / "ended.log"
        self.seeds = range((cells + 4) // 5)  # two methods under two defenses, and the run without exchange
        self.tallies: dict[str, Tally] = {}
        self.work.mkdir()
        (home / "study.toml").write_text(STUDY.format(seeds=", ".join(map(str, self.seeds))))
        self._clear()
        ended = must(Command(["audit", "../study.toml", *OUT], self.work).end(LIMIT))
        self.seconds = ended.ended - ended.began
        self.expected = contents(self.made)

    @property
    def cells(self) -> int:
        """Cells of the study."""
        return 5 * len(self.seeds)

    def _clear(self) -> None:
        for place in (self.made, self.work / "tmp"):
            shutil.rmtree(place, ignore_errors=True)
        self.made.mkdir()
        self.log.unlink(missing_ok=True)

    def _shard(self, number: int) -> Command:
        part = ["--shard", f"{number}/{self.shards}"]
        return Command(["audit", "../study.toml", *part, *OUT], self.work, inside=partial(count, self.log))

    def undisturbed(self) -> None:
        """Let all shards do their cells at once."""
        self._clear()
        at_work = [self._shard(number + 1) for number in range(self.shards)]
        faults = [ended.told for ended in [one.end(LIMIT) for one in at_work] if ended.code != 0]
        self._settle("undisturbed", 0, faults)

    def killed(self, trial: int, kills: int) -> None:
        """Kill a shard so many times, drawn anew each time, and start it again by the same command."""
        self._clear()
        draw = mixed(self.seed, "killed", trial)
        at_work = {number: self._shard(number) for number in range(1, self.shards + 1)}
        done, faults = 0, []
        for _ in range(kills):
            time.sleep(draw.uniform(0, self.seconds / self.shards / kills))
            number = draw.randint(1, self.shards)
            sent = at_work[number].send(draw.choices((signal.SIGKILL, signal.SIGTERM, signal.SIGINT), (6, 2, 2))[0])
            done += sent
            ended = at_work[number].end(LIMIT)
            if not sent and ended.code != 0:
                faults.append(ended.told)
            at_work[number] = self._shard(number)
        faults += [ended.told for ended in [one.end(LIMIT) for one in at_work.values()] if ended.code != 0]
        self._settle("a shard killed and started again", done, faults)

    def _settle(self, kind: str, kills: int, faults: list[str]) -> None:
        left = [f"process {pid}" for pid in orphans()] + litter(self.made)
        faults += [f"left behind: {name}" for name in left]
        faults += differences(self.expected, self.made)
        counted = Counter((self.log.read_text() if self.log.is_file() else "").split("\n")[:-1])
        trained = {what: often for what, often in counted.items() if what.startswith("trained")}
        if len(trained) != self.cells:
            faults.append(f"{len(trained)} of {self.cells} runs were trained")
        twice = {what: often for what, often in counted.items() if often > 1}
        # Who is killed between an end and its note in the list finds the end on the disk: even then nothing is done twice.
        faults += [f"{what} {often} times" for what, often in twice.items()]
        tally = self.tallies.setdefault(kind, Tally())
        tally.trials, tally.kills, tally.equal = tally.trials + 1, tally.kills + kills, tally.equal + (not faults)
        tally.trained += sum(trained.values())
        tally.failures.update(faults)
        if faults:
            print(f"{kind}: {'; '.join(faults)[:800]}", file=sys.stderr, flush=True)


def count(log: Path) -> None:
    """Note from now on, in this process and its workers, every training and every attack that comes to its end."""
    from fedpriv.experiment import execution
    from fedpriv.federation import rounds

    def noted(what: str, made: Callable[..., object], place: int) -> Callable[..., object]:
        def call(*given: object, **named: object) -> object:
            found = made(*given, **named)
            with log.open("a") as file:
                file.write(f"{what} {getattr(given[place], 'path', given[place])}\n")
            return found

        return call

    rounds.run = noted("trained", rounds.run, 1)  # type: ignore[assignment]
    execution._attack = noted("attacked", execution._attack, 0)  # type: ignore[assignment]


def table(cells: int, tallies: dict[str, Tally]) -> str:
    """Return the trials as a Markdown table."""
    lines = [f"| {cells} cells | trials | kills | trainings | equal to one command | failed |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: |")
    for kind, tally in tallies.items():
        numbers = (tally.trials, tally.kills, tally.trained, tally.equal, tally.trials - tally.equal)
        lines.append(f"| {kind} | " + " | ".join(map(str, numbers)) + " |")
    failures = [
        f"- {kind}: {what} ({n})" for kind, tally in tallies.items() for what, n in tally.failures.most_common(20)
    ]
    return "\n".join([*lines, *([""] if failures else []), *failures])


def main() -> int:
    """Carry out the trials and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=200)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--trials", type=int, default=3, help="trials with kills")
    parser.add_argument("--kills", type=int, default=5, help="kills of a trial")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    prepare()
    with workplace() as home:
        made = Trials(home, given.cells, given.shards, given.seed)
        print(f"alone: {made.seconds:.0f} s", file=sys.stderr, flush=True)
        made.undisturbed()
        for trial in range(given.trials):
            made.killed(trial, given.kills)
    print(f"`python {shlex.join(sys.argv)}`\n\n{table(made.cells, made.tallies)}")
    return int(any(tally.failures for tally in made.tallies.values()))


if __name__ == "__main__":
    sys.exit(main())
