"""Commands killed at random moments and at every rename and append, then gone on with: what results, and what is left.

    python benchmarks/faults/kills.py --trials 50 --others 20 --seed 0

Every command runs to its end once; that is what others must come to, byte for byte, with clocks standing still. Then it is
killed: at random moments (SIGKILL mostly, SIGTERM and SIGINT), before and after every rename, with half of a line appended
and with all of it, and before other changes to files. The same command with ``--resume`` follows at once, or the command as
it was where there is nothing yet to go on with, or with ``--force`` where the command tells so (``report``, ``data``).
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from comparing import contents, differences, litter
from points import Points, Victim
from trials import CHEAP, SMALL, Command, Ended, make_inputs, mixed, must, orphans, prepare, run, workplace

ATTACK = ["attack", "--target", "prototype", *CHEAP]
AUDIT = ["audit", "../inputs/study.toml"]
OUT = ["--out", "made/out", "--quiet"]


@dataclass(frozen=True)
class Subject:
    """A command under trial.

    Attributes:
        first: the command.
        again: the command that goes on.
        force: what there is may be replaced: the command has no ``--resume``.
        workers: it starts processes, which are killed at points of their own too.
    """

    first: tuple[str, ...]
    again: tuple[str, ...]
    force: bool = False
    workers: bool = False


def _resumable(*first: str, workers: bool = False) -> Subject:
    return Subject((*first, *OUT), (*first, *OUT, "--resume"), workers=workers)


SUBJECTS = {
    "train": Subject(("train", "--method", "fedproto", *SMALL, *OUT), ("train", "--resume", *OUT)),
    "train, 2 workers": Subject(
        ("train", "--method", "fedproto", *SMALL, "--workers", "2", *OUT),
        ("train", "--resume", "--workers", "2", *OUT),
        workers=True,
    ),
    "attack": _resumable(*ATTACK, "--run", "../inputs/run", "--workers", "1"),
    "attack, 2 workers": _resumable(*ATTACK, "--run", "../inputs/run", "--workers", "2", workers=True),
    "attack that trains": _resumable(*ATTACK, *SMALL, "--workers", "1"),
    "audit": Subject((*AUDIT, *OUT), ("audit", "--resume", *OUT), workers=True),
    "audit, 2 workers": Subject(
        (*AUDIT, "--workers", "2", *OUT), ("audit", "--resume", "--workers", "2", *OUT), workers=True
    ),
    "report": Subject(*[("report", "../inputs/run", "../inputs/found", *OUT)] * 2, force=True),
    "data": Subject(*[("data", *SMALL[:-2], *OUT)] * 2, force=True),
}


@dataclass
class Tally:
    """What became of the trials of one kind.

    Attributes:
        trials: how many.
        equal: ended with the result of a command that was not killed, and nothing left behind.
        untidy: left something behind.
        failures: in words, and how often.
    """

    trials: int = 0
    equal: int = 0
    untidy: int = 0
    failures: Counter[str] = field(default_factory=Counter)

    def note(self, faults: Sequence[str], left: Sequence[str]) -> None:
        """Count a trial."""
        self.trials += 1
        self.equal += not faults and not left
        self.untidy += bool(left)
        for fault in (*faults, *(f"left behind: {name}" for name in left)):
            self.failures[fault] += 1


class Campaign:
    """Trials of one command in a folder."""

    def __init__(self, name: str, home: Path, seed: int) -> None:
        self.name, self.subject, self.seed = name, SUBJECTS[name], seed
        self.home, self.work, self.made = home, home / "work", home / "work" / "made"
        self.work.mkdir(exist_ok=True)
        self.inputs = contents(home / "inputs")
        self.tallies: dict[str, Tally] = {}
        self._clear()
        points = Points(home / "points.log", self.made)
        must(run(self.subject.first, self.work, inside=points.install))
        self.points = points.counted()
        self.expected = contents(self.made)
        self._clear()
        ended = must(run(self.subject.first, self.work))
        self.seconds = ended.ended - ended.began
        assert self.expected == {**contents(self.made), **self._own_identity()}, "two runs differ"

    def _own_identity(self) -> dict[str, bytes | None]:
        return {name: held for name, held in self.expected.items() if name.rpartition("/")[2].startswith(".fedpriv")}

    def _clear(self) -> None:
        for place in (self.made, self.work / "tmp"):
            shutil.rmtree(place, ignore_errors=True)
        self.made.mkdir()
        (self.home / "points.log").unlink(missing_ok=True)

    # ------------------------------------------------------------ trials

    def at_random(self, trial: int, *, real: bool = False) -> None:
        """Kill it at a random moment, by a signal that is drawn too."""
        draw = mixed(self.seed, self.name, trial)
        number = draw.choices((signal.SIGKILL, signal.SIGTERM, signal.SIGINT), (6, 2, 2))[0]
        slow = 12.0 if real else 1.0  # Python has to load first
        while True:
            self._clear()
            command = Command(self.subject.first, self.work, real=real)
            time.sleep(draw.uniform(0, 1.2 * self.seconds + slow - 1))
            if command.send(number):
                break
            command.end()
        ended = command.end()
        faults = [] if number == signal.SIGKILL else _politely(ended, number)
        kind = f"{number.name} at a random moment" + (", a process of its own" if real else "")
        self._settle(kind, f"{number.name} trial {trial}", faults, real=real)

    def at_point(self, number: int, victim: Victim = "command") -> None:
        """Kill it at one of its points, or the process of its that is there."""
        self._clear()
        points = Points(self.home / "points.log", self.made, number, victim)
        ended = Command(self.subject.first, self.work, inside=points.install).end()
        what = self.points[number].partition(" ")[0]
        family = what if what.startswith(("rename", "append")) else "other"
        told = {
            "append:torn": "append: half a line",
            "append:after": "append: after",
            "other": "other change to a file",
        }
        kind = told.get(family, family.replace(":", ": ")) + ("" if victim == "command" else ", a worker")
        # A worker's death fails its cell, and the others go on.
        right = ended.code == -signal.SIGKILL or (victim == "itself" and ended.code in (0, 1))
        reached = points.counted()[number:] or ["nothing"]
        self._settle(kind, f"{victim} at {number}, {reached[0]}", [] if right else [f"killed: {ended.told}"])

    def _settle(self, kind: str, where: str, faults: list[str], *, real: bool = False) -> None:
        """Go on with what was killed, and hold what results against what should."""
        faults += self._go_on(real=real)
        left = [f"process {Path(f'/proc/{pid}/comm').read_text().strip()}" for pid in orphans()]
        left += litter(self.made) + sorted(path.name for path in (self.work / "tmp").iterdir())
        left += sorted(path.name for path in self.made.iterdir() if path.name != "out")
        if not faults:
            faults += differences(self.expected, self.made)
        if contents(self.home / "inputs") != self.inputs:
            faults.append("an input was changed")
        self.tallies.setdefault(kind, Tally()).note(faults, left)
        if faults or left:
            print(f"{self.name}: {where}: {'; '.join([*faults, *left])[:600]}", file=sys.stderr, flush=True)

    def _go_on(self, *, real: bool) -> list[str]:
        """Repeat the command as its own messages say; return what is wrong with that."""
        ended = run(self.subject.again, self.work, real=real)
        if ended.refused and self.subject.force and "--force" in ended.err:
            ended = run((*self.subject.first, "--force"), self.work, real=real)
        elif ended.refused and not self.subject.force:
            refused = ended.told
            ended = run(self.subject.first, self.work, real=real)
            if ended.code != 0:
                return [f"stuck: {refused}; then {ended.told}"]
        return [] if ended.code == 0 else [ended.told]


def _politely(ended: Ended, number: int) -> list[str]:
    """Return what is wrong with how a command answers a signal that may be heard."""
    early, late = ended.code == -number, ended.code == 0  # before it could listen, after its work was done
    heard = ended.code == 130 and ended.err.strip().count("\n") == 0 and "interrupted" in ended.err
    return [] if early or late or heard else [f"{signal.Signals(number).name}: {ended.told}"]


def campaign(name: str, home: Path, given: argparse.Namespace) -> dict[str, Tally]:
    """Carry out all trials of a command and return what became of them, by kind."""
    made = Campaign(name, home, given.seed)
    for trial in range(given.trials):
        made.at_random(trial)
    for trial in range(given.real):
        made.at_random(given.trials + trial, real=True)
    draw = mixed(given.seed, name, "points")
    named = [n for n, point in enumerate(made.points) if point.startswith(("rename", "append"))]
    others = [n for n in range(len(made.points)) if n not in set(named)]
    if given.renames is not None:
        named = sorted(draw.sample(named, min(given.renames, len(named))))
    others = sorted(draw.sample(others, min(given.others, len(others))))
    for number in (*named, *others):
        made.at_point(number)
        if made.subject.workers and number in named and draw.random() < given.workers:
            made.at_point(number, "itself")
    return made.tallies


def table(found: dict[str, dict[str, Tally]]) -> str:
    """Return the trials as a Markdown table."""
    lines = [
        "| command | killed | trials | resumed equal | left something | failed |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for name, tallies in found.items():
        for kind, tally in tallies.items():
            numbers = (tally.trials, tally.equal, tally.untidy, tally.trials - tally.equal)
            lines.append(f"| `{name}` | {kind} | " + " | ".join(map(str, numbers)) + " |")
    failures = [
        f"- {name}, {kind}: {fault} ({number})"
        for name, tallies in found.items()
        for kind, tally in tallies.items()
        for fault, number in tally.failures.items()
    ]
    return "\n".join([*lines, *([""] if failures else []), *failures])


def main() -> int:
    """Carry out the trials and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=50, help="kills of each command at random moments")
    parser.add_argument("--real", type=int, default=2, help="more of these, of processes started anew")
    parser.add_argument("--renames", type=int, help="kills at so many renames and appends (default: at every one)")
    parser.add_argument("--others", type=int, default=20, help="kills before other changes to files")
    parser.add_argument("--workers", type=float, default=0.25, help="share of points at which a worker is killed too")
    parser.add_argument("--command", action="append", choices=SUBJECTS, help="only this one (repeat for more)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    prepare()
    found: dict[str, dict[str, Tally]] = {}
    with workplace() as home:
        (home / "inputs").mkdir()
        make_inputs(home / "inputs")
        for name in given.command or SUBJECTS:
            began = time.monotonic()
            found[name] = campaign(name, home, given)
            print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    print(f"`python {shlex.join(sys.argv)}`\n\n{table(found)}")
    return int(any(tally.failures for tallies in found.values() for tally in tallies.values()))


if __name__ == "__main__":
    sys.exit(main())
