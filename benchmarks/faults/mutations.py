"""Stored files damaged in every way that comes to mind, then used: each damage is named, or changes no result.

    python benchmarks/faults/mutations.py --trials 2000 --seed 0

A run, an attack and a study, finished and interrupted, are copied; one file is damaged; a command goes on with what is
there, scores it again, attacks it or reports on it. Right is a refusal (exit code 2, one line that names the file), a report
that names what it leaves out, a cell of a study that fails with the file's name, or the result of the same command on what
is whole, byte for byte.
"""

from __future__ import annotations

import argparse
import random
import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from comparing import contents, differences
from points import Points
from trials import CHEAP, SMALL, STUDY, Ended, mixed, must, orphans, prepare, run, workplace

from fedpriv.util.files import MARKER

TRAIN = ["train", "--method", "fedproto", *SMALL, "--out", "made/run", "--quiet"]
ATTACK = ["attack", "--target", "prototype", *CHEAP, "--workers", "1", "--quiet"]
FOUND = [*ATTACK, "--run", "../inputs/run", "--out", "made/found"]
AUDIT = ["audit", "study.toml", "--out", "made/study", "--quiet"]
REPORT = ["--out", "made/page"]  # not quiet: what is left out is said
RESUMED = ["audit", "--resume", "--out", "made/study", "--quiet"]


@dataclass(frozen=True)
class Standing:
    """What is stored, and what is done with it.

    Attributes:
        made: the command that makes it.
        used: name -> command that reads it.
        halfway: the command that makes it is killed midway.
        weight: of its trials among all.
    """

    made: list[str]
    used: dict[str, list[str]]
    halfway: bool = False
    weight: int = 4


STANDINGS = {
    "run": Standing(
        TRAIN,
        {
            "report": ["report", "made/run", *REPORT],
            "attack": [*ATTACK, "--run", "made/run", "--out", "made/found"],
            "train --resume": ["train", "--resume", "--out", "made/run", "--quiet"],
        },
    ),
    "run, interrupted": Standing(
        TRAIN, {"train --resume": ["train", "--resume", "--out", "made/run", "--quiet"]}, halfway=True, weight=6
    ),
    "attack": Standing(
        FOUND,
        {
            "score": ["score", "made/found", "--quiet"],
            "report": ["report", "made/found", *REPORT],
            "attack --resume": [*FOUND, "--resume"],
        },
        weight=6,
    ),
    "attack, interrupted": Standing(FOUND, {"attack --resume": [*FOUND, "--resume"]}, halfway=True),
    "study": Standing(AUDIT, {"report": ["report", "made/study", *REPORT], "audit --resume": RESUMED}, weight=3),
    "study, interrupted": Standing(AUDIT, {"audit --resume": RESUMED}, halfway=True, weight=2),
}


# ---------------------------------------------------------------- damages

Damage = Callable[[Path, random.Random, "Beside"], Sequence[Path] | None]
"""Damages a file; returns the files that are no longer what they were, or None where it cannot be done to this one."""


@dataclass(frozen=True)
class Beside:
    """What there is beside a file.

    Attributes:
        made: the folder it is in, with everything.
        other: the same made with another seed, or interrupted.
        away: a folder elsewhere.
    """

    made: Path
    other: Path
    away: Path


def _bytes(change: Callable[[bytes, random.Random], bytes]) -> Damage:
    def damage(path: Path, draw: random.Random, beside: Beside) -> Sequence[Path] | None:
        before = path.read_bytes()
        if not before:
            return None
        path.write_bytes(change(before, draw))
        return [path]

    return damage


def _flipped(held: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(held))
    return held[:place] + bytes([held[place] ^ 1 << draw.randrange(8)]) + held[place + 1 :]


def _other_byte(held: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(held))
    return held[:place] + bytes([(held[place] + draw.randrange(1, 256)) % 256]) + held[place + 1 :]


def _pieces(held: bytes) -> list[bytes]:
    """Return lines; of what has few, blocks."""
    lines = held.splitlines(keepends=True)
    return lines if len(lines) > 1 else [held[start : start + 64] for start in range(0, len(held), 64)]


def _doubled(held: bytes, draw: random.Random) -> bytes:
    pieces = _pieces(held)
    place = draw.randrange(len(pieces))
    return b"".join([*pieces[: place + 1], *pieces[place:]])


def _dropped(held: bytes, draw: random.Random) -> bytes:
    pieces = _pieces(held)
    del pieces[draw.randrange(len(pieces))]
    return b"".join(pieces)


def _digit(held: bytes, draw: random.Random) -> bytes:
    """Another digit in a number, which leaves JSON valid."""
    places = [place for place, byte in enumerate(held) if chr(byte).isdigit()]
    if not places:
        return _other_byte(held, draw)
    place = draw.choice(places)
    return held[:place] + draw.choice([b"%d" % n for n in range(10) if n != held[place] - 48]) + held[place + 1 :]


def _swapped(path: Path, draw: random.Random, beside: Beside) -> Sequence[Path] | None:
    alike = [one for one in beside.made.rglob(f"*{path.suffix}") if one.is_file() and one.suffix == path.suffix]
    others = sorted(one for one in alike if one.read_bytes() != path.read_bytes())
    if not others or not path.suffix:
        return None
    near = [one for one in others if one.parent == path.parent or one.name == path.name]
    other = draw.choice(near or others)
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)
    return [path, other]


def _deleted(path: Path, draw: random.Random, beside: Beside) -> Sequence[Path]:
    path.unlink()
    return [path]


def _a_folder(path: Path, draw: random.Random, beside: Beside) -> Sequence[Path]:
    path.unlink()
    path.mkdir()
    return [path]


def _a_link(path: Path, draw: random.Random, beside: Beside) -> Sequence[Path]:
    target = beside.away / path.name
    shutil.move(path, target)
    path.symlink_to(target if draw.random() < 0.5 else beside.away / "nowhere")
    return [path]


def _of_another(path: Path, draw: random.Random, beside: Beside) -> Sequence[Path] | None:
    other = beside.other / path.relative_to(beside.made)
    if not other.is_file() or other.read_bytes() == path.read_bytes():
        return None
    shutil.copyfile(other, path)
    return [path]


DAMAGES: dict[str, Damage] = {
    "a bit flipped": _bytes(_flipped),
    "a byte changed": _bytes(_other_byte),
    "a digit changed": _bytes(_digit),
    "cut": _bytes(lambda held, draw: held[: draw.randrange(len(held))]),
    "appended to": _bytes(lambda held, draw: held + draw.choice([b"\n", b"{}\n", b"x", draw.randbytes(40)])),
    "a line doubled": _bytes(_doubled),
    "a line dropped": _bytes(_dropped),
    "emptied": _bytes(lambda held, draw: b""),
    "two files swapped": _swapped,
    "deleted": _deleted,
    "a folder in its place": _a_folder,
    "a link in its place": _a_link,
    "that of another seed": _of_another,
}


# ---------------------------------------------------------------- trials

PRIVATE, PICTURED = ("truth.safetensors", "judge.safetensors"), ("report.html", "report.md")
"""Files that may be left out of a result when it is passed on, and pages that show pictures where they are there."""

Outcome = Literal["refused", "left out", "cell failed", "unchanged", "failure"]


@dataclass
class Tally:
    """Outcomes of trials, and the failures in words."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


class Ground:
    """A standing, and what the commands that use it make of it while it is whole."""

    def __init__(self, name: str, home: Path) -> None:
        self.name, self.standing, self.home = name, STANDINGS[name], home
        self.work, self.made = home / "work", home / "work" / "made"
        place = home / name.replace(" ", "-")
        self.before, self.other = place / "before", place / "other"
        self._make(self.before, self.standing.made, halfway=self.standing.halfway)
        # What may be mistaken for it: the same with another seed, of the same age.
        self._make(self.other, self._of_another_seed(), halfway=False)
        self.expected = {use: self._whole(use) for use in self.standing.used}

    def _of_another_seed(self) -> list[str]:
        if self.standing.made is AUDIT:
            (self.work / "study.toml").write_text("seeds = [1]\n" + STUDY)
            return AUDIT
        return [*self.standing.made, "--seed", "1"]

    def _make(self, place: Path, command: list[str], *, halfway: bool) -> None:
        self.clear()
        points = Points(self.home / "points.log", self.made, others=False)
        points.log.unlink(missing_ok=True)
        must(run(command, self.work, inside=points.install))
        if halfway:
            self.clear()
            number = len(points.counted()) * 3 // 5
            points.log.unlink()
            run(command, self.work, inside=Points(points.log, self.made, number, others=False).install)
            orphans()
        shutil.copytree(self.made, place)

    def _whole(self, use: str) -> dict[str, bytes | None]:
        self.clear()
        shutil.copytree(self.before, self.made, dirs_exist_ok=True)
        must(run(self.standing.used[use], self.work))
        return contents(self.made)

    def clear(self) -> None:
        """Make the workplace as it is before every trial, without anything made."""
        for place in (self.made, self.work / "tmp", self.home / "away"):
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
        (self.work / "study.toml").write_text(STUDY)

    def trial(self, draw: random.Random) -> tuple[str, str, Outcome, str]:
        """Damage a file and use what is there; return the damage, the use, the outcome, and what happened in words."""
        use = draw.choice(list(self.standing.used))
        while True:
            self.clear()
            shutil.copytree(self.before, self.made, dirs_exist_ok=True)
            files = sorted(path for path in self.made.rglob("*") if path.is_file() and not path.name.endswith(".lock"))
            path, kind = draw.choice(files), draw.choice(list(DAMAGES))
            touched = DAMAGES[kind](path, draw, Beside(self.made, self.other, self.home / "away"))
            if touched is not None:
                break
        names = [one.relative_to(self.made).as_posix() for one in touched]
        damaged = {name: contents(self.made).get(name) for name in names}
        ended = run(self.standing.used[use], self.work)
        orphans()
        outcome, why = self._outcome(use, names, damaged, ended)
        return kind, use, outcome, f"{self.name}: {kind}: {', '.join(names)}: {use}: {why}"

    def _outcome(
        self, use: str, names: list[str], damaged: dict[str, bytes | None], ended: Ended
    ) -> tuple[Outcome, str]:
        named = _names(ended.err, names)
        if ended.refused:
            return ("refused", "") if named else ("failure", f"another file is named: {ended.told}")
        if ended.code == 1 and use.startswith("audit") and "Traceback" not in ended.err:
            return (
                ("cell failed", "") if named else ("failure", f"a cell failed, and the file is not named: {ended.told}")
            )
        if ended.code != 0:
            return "failure", ended.told
        now = contents(self.made)
        untouched = {name for name in names if now.get(name) == damaged[name]}
        untouched |= {name for name in names if name.endswith(MARKER)}  # no result: what it lists is checked by its use
        if any(name.endswith(MARKER) for name in names):  # nothing of what it listed; a run without it has no identity
            untouched |= {name for name in now if name.endswith("request.json")}
        other = differences(self.expected[use], self.made, besides=untouched)
        if all(name.rpartition("/")[2] in PRIVATE and not (self.made / name).exists() for name in names):
            other = [line for line in other if not line.endswith(PICTURED)]
        if not other:
            return "unchanged", ""
        if use == "report" and named:
            return "left out", ""
        return "failure", f"exit 0, {', '.join(other)[:300]}; said: {ended.err.strip()[-200:]}"


def _names(said: str, names: Sequence[str]) -> bool:
    """True where a message names one of the files, by its own name; or any file, where that is the list of all."""
    return any(name.rpartition("/")[2] in said or (name.endswith(MARKER) and "made/" in said) for name in names)


def table(found: dict[tuple[str, str], Tally]) -> str:
    """Return the trials as a Markdown table, by standing and use."""
    columns: tuple[Outcome, ...] = ("refused", "left out", "cell failed", "unchanged", "failure")
    lines = [
        "| stored | used by | trials | refused, named | left out, named | cell failed, named | unchanged | failures |"
    ]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for (stored, use), tally in found.items():
        numbers = [tally.outcomes.total(), *(tally.outcomes[name] for name in columns)]
        lines.append(f"| {stored} | `{use}` | " + " | ".join(map(str, numbers)) + " |")
    failures = [f"- {line}" for tally in found.values() for line in tally.failures]
    return "\n".join([*lines, *([""] if failures else []), *failures])


def main() -> int:
    """Carry out the trials and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--stored", action="append", choices=STANDINGS, help="only this (repeat for more)")
    parser.add_argument("--minutes", type=float, default=1e6, help="end after so many, with what was done by then")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    prepare()
    found: dict[tuple[str, str], Tally] = {}
    with workplace() as home:
        for name in ("inputs", "work"):
            (home / name).mkdir()
        must(run(["train", "--method", "fedproto", *SMALL, "--out", "run", "--quiet"], home / "inputs"))
        names = given.stored or list(STANDINGS)
        weights = [STANDINGS[name].weight for name in names]
        grounds = {name: Ground(name, home) for name in names}
        until = time.monotonic() + 60 * given.minutes
        for number in range(given.trials):
            if time.monotonic() > until:
                break
            draw = mixed(given.seed, number)
            ground = grounds[draw.choices(names, weights)[0]]
            _, use, outcome, why = ground.trial(draw)
            tally = found.setdefault((ground.name, use), Tally())
            tally.outcomes[outcome] += 1
            if outcome == "failure":
                tally.failures.append(why)
                print(f"trial {number}: {why}", file=sys.stderr, flush=True)
    ordered = {key: found[key] for key in sorted(found, key=lambda key: (list(STANDINGS).index(key[0]), key[1]))}
    print(f"`python {shlex.join(sys.argv)}`\n\n{table(ordered)}")
    return int(any(tally.failures for tally in found.values()))


if __name__ == "__main__":
    sys.exit(main())
