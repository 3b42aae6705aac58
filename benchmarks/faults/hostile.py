"""Random command lines, and files damaged by chance: each command ends in 0, 1, 2 or 130, with one line where it fails.

    python benchmarks/faults/hostile.py --lines 5000 --files 5000 --seed 0

Command lines are drawn from the flags that commands declare, with good, odd and hostile values. Files are those of a run, a
result and a study: one is damaged, then a command that reads it is carried out. Everything happens in this process, in a
fresh copy of a small folder, without a network. Prints a table; exits with 1 where anything fails.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import re
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import click
import numpy as np
from PIL import Image

from fedpriv.cli.main import COMMANDS, main, run
from fedpriv.util.files import MARKER

TINY = shlex.split("--dataset digits --per-class 12 --clients 2 --alpha 10 --rounds 2 --models small-mlp")
TINY_TOML = 'dataset = "digits"\nper_class = 12\nclients = 2\nalpha = 10.0\nrounds = 2\nmodels = "small-mlp"\n'
STUDY = (
    'methods = ["fedgh"]\ndefenses = ["none"]\nattacks = ["dip"]\nseeds = [0]\ntargets = 2\nlocal = false\n'
    f"control = false\n[federation]\n{TINY_TOML}"
)
PICTURE = "images/a/0.png"
FOREIGN = ("foreign", "images", "file.txt", "flags.toml", "study.toml", "bad.toml")
"""Files of another owner, which no command may change."""

ODD = """
    - -- -1 --out = a= =b a=b=c a=b,c=d , ,, a,b,, : a: :b nan NaN inf -inf 1e400 1e-400 0x10 1_000 １２ ٣ ½ true null None
    [] {} ü 名前 🙂 ../.. /proc . .. ~ ~nobody %s%n {0} $(id) `id` ' " \\ <script> * json:loads nothing:here math:pi
    builtins:len fedpriv.methods.server_head:FedRE a.b.c:d.e
"""
HOSTILE = (
    *ODD.split(),
    *("", " ", "\t", "a b", "\u202egnp.exe", "\udcff\udcfe", "a\nb", "\r", "\x1b[31mred", "\x07", "\x7f", "a\u0301"),
    *("x" * 300, "x" * 5000, "1" * 400, "9" * 5000, "a," * 2000, "a=1," * 500),
)
PLACES = """
    run attacked broken-run foreign images empty file.txt link dangling flags.toml study.toml bad.toml missing
    missing/deeper file.txt/inside new new/deeper run/below attacked/pixels . .. /proc/nothing /dev/null -dash
"""
PATHS = (*PLACES.split(), "", "ünï cödé", "a\nb", "n" * 300, "/".join(["d"] * 300), "\udcff")
GOOD: dict[str, Sequence[str]] = {
    "dataset": ("digits", "fashion", "file.txt", "images"),
    "models": ("small-mlp", "small-cnn", "lenet-sigmoid", "small-mlp,small-cnn"),
    "method": ("fedgh", "fedproto", "fedre", "fedavg", "all"),
    "methods": ("fedgh", "fedproto,fedre"),
    "target": ("prototype", "entangled", "model", "representation"),
    "attacks": ("all-rounds", "pixels", "dip", "membership", "dip,membership"),
    "defense": ("none", "noise", "clip:bound=0.1", "dp-noise:epsilon=1", "quantise:bits=4", "noise:scale=0.1/1"),
    "knowledge": ("labels=given", "labels=inferred", "nothing=x"),
    "option": ("mechanism=VAP", "alpha=0.5", "temperature=1"),
    "axes": ("alpha=10,20", "seeds=0,1", "defenses.noise.scale=0.1,1"),
}
NUMBERS = ("0", "-1", "1", "1", "2", "2.5", "0.1", "", "x", "nan", "1e-6")
PIECES = (
    *(b"[" * 64, b"]" * 64, b"{a=" * 64, b'{"a":' * 600, b"[" * 4000, b"a." * 3000, b'"""', b"9" * 5000, b"1e999"),
    *(b"-inf", b"nan", b"-1", b"true", b"null", b"\\ud800", b"\xff\xfe", b"\x1b[2J", b"\r", b"[[a]]", b"x" * 12_000),
    *(b'"', b"=", b",", b":", b"../", b"\x00" * 8, b"\xff\xff\xff\x7f", (1 << 63).to_bytes(8, "little"), b"name"),
)
READERS = {
    "run": (
        "report run --out new",
        "attack --run run --target prototype --attack pixels --iterations 2 --targets 2 --out new",
    ),
    "attacked": ("score attacked", "report attacked --out new", "compare attacked attacked"),
    "study.toml": ("audit study.toml --dry-run",),
    "images": ("train --dataset images --clients 2 --rounds 1 --out new",),
}
"""What is damaged, and the commands that read it."""

PATIENCE = 20
"""Seconds after which a command is interrupted."""

LIBRARY_WORDS = re.compile(r"Traceback \(most recent call last\)|^.*Warning: ", re.MULTILINE)


@dataclass
class Outcome:
    """The end of a command line: its exit code, None where an exception came out, and what it wrote."""

    code: int | None
    out: str
    err: str
    escaped: str = ""

    def faults(self, command: str) -> list[str]:
        """Return in words what is wrong with this end."""
        if self.escaped or self.code not in (0, 1, 2, 130):
            return [self.escaped or f"exit code {self.code}"]
        ours = [line for line in self.err.splitlines() if line.startswith("fedpriv: ")]
        result = self.code == 1 and command in ("doctor", "audit")  # doctor's findings; a line for every failed cell
        found = []
        if self.code and not result and (len(ours) != 1 or self.err.strip().rpartition("\n")[2] != ours[0]):
            found.append(f"exit code {self.code}, {len(ours)} lines of its own: {self.err.strip()[-200:]!r}")
        if self.code == 0 and ours:
            found.append(f"exit code 0 with {ours[0][:200]!r}")
        noise = LIBRARY_WORDS.search(self.err) or LIBRARY_WORDS.search(self.out)
        return [*found, *([f"a line of a library: {noise.group()[:200]!r}"] if noise else [])]


@dataclass
class Tally:
    """Ends of many trials of one kind."""

    kind: str
    codes: Counter[int | None] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    work_failed: list[str] = field(default_factory=list)

    def row(self) -> str:
        """Return a line of the table."""
        codes = [str(self.codes[code]) for code in (0, 1, 2, 130)]
        return f"| {self.kind} | {self.codes.total()} | {' | '.join(codes)} | {len(self.failures)} |"


class Stream(io.TextIOWrapper):
    """Takes what is written to standard output or error."""

    def __init__(self, errors: str) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", errors=errors, newline="\n", write_through=True)

    def text(self) -> str:
        """Return what was written."""
        buffer: Any = self.buffer
        return buffer.getvalue().decode("utf-8", "replace")


def carry_out(words: Sequence[str], folder: Path) -> Outcome:
    """Carry out a command line in a folder; what takes long is interrupted as a person would."""

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    out, err, code, escaped = Stream("strict"), Stream("backslashreplace"), None, ""
    before, streams = Path.cwd(), (sys.stdout, sys.stderr, sys.argv)
    os.chdir(folder)
    sys.stdout, sys.stderr, sys.argv = out, err, ["fedpriv", *words]
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            code = run(list(words))
    except BaseException as error:
        escaped = f"an exception came out: {type(error).__name__}: {error}"[:300]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout, sys.stderr, sys.argv = streams
        os.chdir(before)
    return Outcome(code, out.text(), err.text(), escaped)


# ---------------------------------------------------------------- the folder of a trial


@contextlib.contextmanager
def world() -> Iterator[Path]:
    """Make the folder that every trial starts from a copy of; within, there is no network."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise OSError("the network is unreachable")

    known = socket.getaddrinfo
    socket.getaddrinfo = refuse  # type: ignore[assignment]
    with tempfile.TemporaryDirectory(prefix="fedpriv-hostile-") as name:
        folder = Path(name).resolve() / "world"
        folder.mkdir()
        _fill(folder)
        try:
            yield folder
        finally:
            socket.getaddrinfo = known


def _fill(folder: Path) -> None:
    for words in (
        ["train", "--method", "fedgh", *TINY, "--out", "run", "--quiet"],
        shlex.split(
            "attack --run run --target prototype --attack pixels --iterations 2 --targets 2 --out attacked --quiet"
        ),
    ):
        outcome = carry_out(words, folder)
        if outcome.code:
            raise RuntimeError(f"the folder of the trials could not be made: {words}: {outcome.err}")
    shutil.copytree(folder / "run", folder / "broken-run")
    (folder / "broken-run" / "config.json").write_text('{"method": ')
    for name in ("foreign", "empty", "images/a", "images/b"):
        (folder / name).mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(24):
        picture = Image.fromarray(rng.integers(0, 255, (8, 8), dtype=np.uint8))
        picture.save(folder / "images" / "ab"[number % 2] / f"{number}.png")
    (folder / "link").symlink_to("foreign")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "foreign" / "config.json").write_text('{"name": "theirs"}')
    for name, text in {
        "file.txt": "text",
        "flags.toml": TINY_TOML,
        "study.toml": STUDY,
        "bad.toml": "a = [1\nx",
    }.items():
        (folder / name).write_text(text)


def fresh(world: Path) -> Path:
    """Return a copy of the world in place of what the last trial left."""
    folder = world.parent / "trial"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(world, folder, symlinks=True)
    return folder


def foreign_files(folder: Path) -> dict[str, bytes]:
    """Return the files of another owner by path."""
    places = [folder / name for name in FOREIGN]
    files = [file for place in places for file in ([place] if place.is_file() else sorted(place.rglob("*.*")))]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files if file.is_file()}


# ---------------------------------------------------------------- command lines


def command_line(rng: random.Random) -> list[str]:
    """Return the words of a random command line, without the program's name."""
    if rng.random() < 0.02:
        return [rng.choice(HOSTILE) for _ in range(rng.randrange(3))]
    command = rng.choice([name for name in COMMANDS if name != "doctor"])
    declared = main.get_command(click.Context(main), command)
    assert declared is not None
    options = [one for one in declared.params if isinstance(one, click.Option)]
    words = _beginning(rng, command)
    for option in rng.sample(options, min(rng.choice((0, 0, 0, 1, 1, 1, 2, 2, 3, 5, 8)), len(options))):
        words += _given(rng, option)
    if rng.random() < 0.03:
        words.insert(rng.randrange(len(words) + 1), rng.choice(HOSTILE))
    if rng.random() < 0.02:
        words.append(rng.choice(("--help", "-h", "--nothing", "--rouds=1", "-x")))
    if command in ("audit", "reproduce"):
        words.append("--dry-run")  # where there is none, it is refused
    return [command, *(word for word in words if word != "--download")]


def _beginning(rng: random.Random, command: str) -> list[str]:
    """Return the words that make a command do something small."""
    out = ["--out", "new" if rng.random() < 0.8 else rng.choice(PATHS)]
    run, result = ("run", "attacked") if rng.random() < 0.7 else (rng.choice(PATHS), rng.choice(PATHS))
    small = ["--run", run, "--iterations", "2", "--targets", "2"]
    begun = {
        "train": ["--method", rng.choice(GOOD["method"]), *TINY, *out],
        "attack": ["--target", "prototype", "--attack", rng.choice(GOOD["attacks"]), *small, *out],
        "audit": [rng.choice(("study.toml", "study.toml", *PATHS[:12])), *out],
        "audit-dp": [
            "--canaries",
            "16",
            "--defense",
            rng.choice(("local-dp", "dp-sgd:epsilon=1", "clip")),
            *TINY,
            *out,
        ],
        "score": [result],
        "report": [result, *out],
        "compare": [result, rng.choice(("attacked", *PATHS))],
        "cost": ["--method", rng.choice(GOOD["method"]), *TINY],
        "explain": [rng.choice((*GOOD["method"], *GOOD["attacks"], *HOSTILE))],
        "reproduce": [rng.choice(("fedre-table-2", *PATHS)), *out],
    }
    return list(begun.get(command, [rng.choice((*PATHS, *HOSTILE))]))


def _given(rng: random.Random, option: click.Option) -> list[str]:
    """Return an option with a value, as its words."""
    flag = rng.choice([*option.opts, *option.secondary_opts])
    if option.is_flag:
        return [flag]
    if rng.random() < 0.2:
        value = rng.choice(HOSTILE)
    elif isinstance(option.type, click.Path):
        value = rng.choice(PATHS)
    else:
        value = rng.choice(GOOD.get(str(option.name), NUMBERS))
    return [f"{flag}={value}"] if value.startswith("-") or rng.random() < 0.2 else [flag, value]


# ---------------------------------------------------------------- damaged files


def damage(path: Path, rng: random.Random) -> None:
    """Damage a file by one to three changes of bytes, or put something else in its place."""
    kind = rng.random()
    if kind < 0.1:
        path.unlink()
        if kind < 0.06:
            path.mkdir() if kind < 0.03 else path.symlink_to("/nowhere")
        return
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randint(0, min(len(content), rng.choice((64, 1 << 30))))  # sizes stand at the beginning
        sort = rng.randrange(6)
        if sort == 0 and at < len(content):
            content[at] ^= 1 << rng.randrange(8)
        elif sort == 1:
            del content[at:]
        elif sort == 2:
            del content[at : at + rng.choice((1, 4, 30))]
        elif sort == 3:
            content[at:at] = bytes(content[at : at + rng.choice((1, 8, 60))]) * rng.choice((1, 2, 40))
        else:
            piece = rng.choice(PIECES)
            content[at : at + (len(piece) if sort == 4 else 0)] = piece
    path.write_bytes(content)


def damaged(rng: random.Random, folder: Path) -> list[str]:
    """Damage a file in a folder and return the words of a command that reads it."""
    name = rng.choice(list(READERS))
    place = folder / name
    files = [place] if place.is_file() else [path for path in sorted(place.rglob("*.*")) if path.is_file()]
    for marker in [] if place.is_file() else place.rglob(MARKER):  # as a stranger's, who lists no digests
        marker.write_bytes(marker.read_bytes().partition(b"\n")[0] + b"\n")
    damage(rng.choice(files), rng)
    return rng.choice(READERS[name]).split()


# ---------------------------------------------------------------- the campaign


def campaign(kind: str, trials: int, seed: int, world: Path) -> Tally:
    """Carry out trials with random ``lines``, or with damaged ``files``."""
    tally = Tally(kind)
    for number in range(trials):
        rng, folder = random.Random(f"{kind} {seed} {number}"), fresh(world)
        words = command_line(rng) if kind == "lines" else damaged(rng, folder)
        before = foreign_files(folder)
        outcome = carry_out(words, folder)
        faults = outcome.faults(words[0] if words else "")
        if foreign_files(folder) != before:
            faults.append("changed a file of another owner")
        tally.codes[outcome.code] += 1
        line = f"{kind} {number}: {' '.join(repr(word)[:80] for word in words)}"
        tally.failures += [f"{line}\n    {fault}" for fault in faults]
        if outcome.code == 1:
            tally.work_failed.append(f"{line}\n    {outcome.err.strip()[-300:]}")
        if faults:
            print(line, *faults, sep="\n    ", file=sys.stderr, flush=True)
    return tally


def program() -> int:
    """Run the campaign and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=5000)
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    options, began = parser.parse_args(), time.monotonic()
    with world() as folder:
        tallies = [campaign(kind, getattr(options, kind), options.seed, folder) for kind in ("lines", "files")]
    print("| fault | trials | exit 0 | exit 1 | exit 2 | exit 130 | failures |\n| --- " + 6 * "| ---: " + "|")
    print(*(tally.row() for tally in tallies), f"\nseed {options.seed}, {time.monotonic() - began:.0f} s", sep="\n")
    print("\nexits of 1:", *(line for tally in tallies for line in tally.work_failed), sep="\n")
    return int(any(tally.failures for tally in tallies))


if __name__ == "__main__":
    sys.exit(program())
