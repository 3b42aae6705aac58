"""Two commands at once on one folder: one of them is refused, and the result is what the other makes alone.

    python benchmarks/faults/pairs.py --trials 30 --seed 0

The second starts a random while after the first. Where one is still at work the other is refused in one line that names its
process, with exit code 2; where the first was done by then, both may come to their end, and the folder then holds what they
make one after the other.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from comparing import contents, differences, litter
from points import Points
from trials import CHEAP, SMALL, Command, Ended, make_inputs, mixed, must, orphans, prepare, run, workplace

OUT = ["--out", "made/out", "--quiet"]
TRAIN = ["train", "--method", "fedproto", *SMALL, *OUT]
ATTACK = ["attack", "--target", "prototype", *CHEAP, "--workers", "1", *OUT]
ON_RUN = [*ATTACK, "--run", "../inputs/run"]
AUDIT = ["audit", "../inputs/study.toml", *OUT]
REPORT = ["report", "../inputs/run", "../inputs/found", *OUT]
DATA = ["data", *SMALL[:-2], *OUT]
AGAIN = ["train", "--method", "fedproto", *SMALL, "--out", "made/run", "--force", "--quiet"]
READING = [*ATTACK, "--run", "made/run"]


@dataclass(frozen=True)
class Pair:
    """Two commands on one folder.

    Attributes:
        first, second: the commands.
        before: a command that has made the folder; interrupted halfway where ``halfway``.
        halfway: see above.
        copied: name of an input -> where it is copied to before.
    """

    first: list[str]
    second: list[str]
    before: list[str] | None = None
    halfway: bool = False
    copied: tuple[tuple[str, str], ...] = ()


def _twice(command: list[str], **how: object) -> Pair:
    return Pair(command, command, **how)  # type: ignore[arg-type]


RUN = (("run", "run"),)
PAIRS = {
    "train": _twice(TRAIN),
    "train --resume": _twice(["train", "--resume", *OUT], before=TRAIN, halfway=True),
    "train --force": _twice([*TRAIN, "--force"], before=TRAIN),
    "attack": _twice(ON_RUN),
    "attack --resume": _twice([*ON_RUN, "--resume"], before=ON_RUN, halfway=True),
    "attack that trains": _twice([*ATTACK, *SMALL]),
    "audit": _twice(AUDIT),
    "audit --resume": _twice(["audit", "--resume", *OUT], before=AUDIT, halfway=True),
    "report": _twice(REPORT),
    "report --force": _twice([*REPORT, "--force"], before=REPORT),
    "data": _twice(DATA),
    "data --force": _twice([*DATA, "--force"], before=DATA),
    "score": _twice(["score", "made/found", "--quiet"], copied=(("found", "found"),)),
    "attack --run, then train --force": Pair(READING, AGAIN, copied=RUN),
    "train --force, then attack --run": Pair(AGAIN, READING, copied=RUN),
    "attack --resume, then score": Pair(
        [*ON_RUN, "--resume"], ["score", "made/out", "--quiet"], before=ON_RUN, halfway=True
    ),
}


@dataclass
class Tally:
    """What became of the trials of a pair.

    Attributes:
        trials: how many.
        refused: one was refused while the other was at work.
        turns: one came after the other.
        failures: in words, and how often.
    """

    trials: int = 0
    refused: int = 0
    turns: int = 0
    failures: Counter[str] = field(default_factory=Counter)


class Trials:
    """Trials of a pair in a folder."""

    def __init__(self, name: str, home: Path, seed: int) -> None:
        self.name, self.pair, self.seed = name, PAIRS[name], seed
        self.home, self.work, self.made = home, home / "work", home / "work" / "made"
        self.tally = Tally()
        self.work.mkdir(exist_ok=True)
        self._make_before()
        self.seconds = 0.0
        self.expected = {order: self._alone(order) for order in ((0,), (1,), (0, 1), (1, 0))}

    def _make_before(self) -> None:
        """Make the folder as it is before every trial."""
        for place in (self.made, self.home / "before"):
            shutil.rmtree(place, ignore_errors=True)
        self.made.mkdir()
        for name, place in self.pair.copied:
            shutil.copytree(self.home / "inputs" / name, self.made / place)
        if self.pair.before is not None:
            points = Points(self.home / "points.log", self.made, others=False)
            points.log.unlink(missing_ok=True)
            ended = run(self.pair.before, self.work, inside=points.install)
            if self.pair.halfway:
                number = len(points.counted()) * 3 // 5
                points.log.unlink()
                shutil.rmtree(self.made)
                self.made.mkdir()
                fatal = Points(points.log, self.made, number, others=False)
                run(self.pair.before, self.work, inside=fatal.install)
                orphans()
            else:
                must(ended)
        shutil.copytree(self.made, self.home / "before")

    def _clear(self) -> None:
        for place in (self.made, self.work / "tmp"):
            shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.home / "before", self.made)

    def _alone(self, order: tuple[int, ...]) -> dict[str, bytes | None] | None:
        """Return what commands make one after the other; None where one of them is refused."""
        self._clear()
        for which in order:
            ended = run((self.pair.first, self.pair.second)[which], self.work)
            if ended.refused and len(order) > 1:
                return None
            must(ended)
            self.seconds = max(self.seconds, ended.ended - ended.began)
        return contents(self.made)

    def trial(self, number: int) -> None:
        """Start both, the second a random while after the first."""
        draw = mixed(self.seed, self.name, number)
        self._clear()
        first = Command(self.pair.first, self.work)
        time.sleep(draw.choice((0.0, draw.uniform(0, 0.1), draw.uniform(0, self.seconds))))
        second = Command(self.pair.second, self.work)
        pids = (first.pid, second.pid)
        both = (first.end(), second.end())
        faults = self._judged(both, pids)
        faults += [f"left behind: {name}" for name in litter(self.made)]
        faults += [f"left behind: {path.name}" for path in (self.work / "tmp").iterdir()]
        faults += ["left behind: a process" for _ in orphans()]
        self.tally.trials += 1
        self.tally.failures.update(faults)
        if faults:
            told = " | ".join(ended.told for ended in both)
            print(f"{self.name}: trial {number}: {'; '.join(faults)[:500]} ({told})", file=sys.stderr, flush=True)

    def _judged(self, both: tuple[Ended, Ended], pids: tuple[int, int]) -> list[str]:
        """Return what is wrong with the ends of two commands, and count what is right."""
        done = [which for which in (0, 1) if both[which].code == 0]
        if not done:
            return ["neither came to its end"]
        orders: tuple[tuple[int, ...], ...] = ((0, 1), (1, 0)) if len(done) == 2 else (tuple(done),)
        right = [self.expected[order] for order in orders if self.expected[order] is not None]
        if not right:
            return ["both came to their end, though the second of them is refused where they come one after the other"]
        wrong = min((differences(one, self.made) for one in right), key=len)
        if len(done) == 2:
            self.tally.turns += not wrong
            return wrong
        winner, loser = both[done[0]], both[1 - done[0]]
        if not loser.refused:
            return [*wrong, f"not refused in one line: {loser.told}"]
        if re.search(rf"process {pids[done[0]]}\b", loser.err):
            self.tally.refused += not wrong
        elif loser.ended < winner.ended:
            wrong.append(f"refused without naming the process: {re.sub(r'[0-9]+', 'N', loser.err.strip())}")
        else:
            self.tally.turns += not wrong
        return wrong


def table(found: dict[str, Tally]) -> str:
    """Return the trials as a Markdown table."""
    lines = ["| at once | trials | one refused, naming the other | one after the other | failures |"]
    lines.append("| --- | ---: | ---: | ---: | ---: |")
    for name, tally in found.items():
        failed = tally.trials - tally.refused - tally.turns
        lines.append(f"| `{name}` | {tally.trials} | {tally.refused} | {tally.turns} | {failed} |")
    failures = [f"- {name}: {what} ({n})" for name, tally in found.items() for what, n in tally.failures.items()]
    return "\n".join([*lines, *([""] if failures else []), *failures])


def main() -> int:
    """Carry out the trials and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=30, help="of each pair")
    parser.add_argument("--pair", action="append", choices=PAIRS, help="only this one (repeat for more)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    prepare()
    found: dict[str, Tally] = {}
    with workplace() as home:
        (home / "inputs").mkdir()
        make_inputs(home / "inputs")
        for name in given.pair or PAIRS:
            trials = Trials(name, home, given.seed)
            for number in range(given.trials):
                trials.trial(number)
            found[name] = trials.tally
    print(f"`python {shlex.join(sys.argv)}`\n\n{table(found)}")
    return int(any(tally.failures for tally in found.values()))


if __name__ == "__main__":
    sys.exit(main())
