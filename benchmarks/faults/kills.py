"""Kills at random moments: a command that was killed and resumed leaves what one that was not leaves, byte for byte.

    python benchmarks/faults/kills.py --trials 50 --seed 0

Each trial forks a process that carries out a command, kills it by a random signal at a random moment of its usual time, once
to three times, and lets the last one end. Clocks stand still in it, so that seconds in records are equal. Then every file
but locks, markers and the request is compared with those of a command that nobody killed; files that such a one does not
leave are litter. Prints a table; exits with 1 where anything differs.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from fedpriv.cli.main import entry
from fedpriv.util.files import LOCK, MARKER

TINY = "--dataset digits --per-class 20 --clients 3 --partition iid --models small-mlp --quiet"
ATTACKS = "--attack pixels --attack membership --targets 2 --iterations 40 --quiet --workers 1"
COMMANDS = {
    "train": f"train --method fedgh {TINY} --rounds 12 --workers 1 --out made",
    "attack": f"attack --run run --target prototype {ATTACKS} --out made",
    "audit": f"audit --methods fedgh,fedproto {TINY} --rounds 2 --attacks pixels:iterations=10,membership --targets 2 "
    "--workers 1 --out made",
    "report": "report result --out made --quiet",
}
AGAIN = {
    "train": "train --resume --out made --quiet",
    "attack": f"{COMMANDS['attack']} --resume",
    "audit": "audit --resume --out made --quiet",
    "report": f"{COMMANDS['report']} --force",
}
"""Commands that go on; where nothing was begun, the first command is typed again."""

BEFORE = (
    f"train --method fedgh {TINY} --rounds 2 --out run",
    f"attack --run run --target prototype {ATTACKS} --out result",
)
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
PASSING = (MARKER, LOCK, "request.json")
"""Files that say who wrote when, on what."""


def start(words: Sequence[str]) -> int:
    """Start a command in a process of its own, and return its number."""
    number = os.fork()
    if number:
        return number
    os.setsid()
    os.dup2(os.open("said.txt", os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 2)
    os.dup2(2, 1)
    time.perf_counter = lambda: 0.0
    for each in SIGNALS[1:]:
        signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL)
    sys.argv = ["fedpriv", *words]
    try:
        entry()
    except SystemExit as ending:
        sys.stdout.flush()
        os._exit(int(ending.code or 0))
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def ended(number: int, within: float | None = None, by: signal.Signals = signal.SIGKILL) -> int:
    """Wait for a process, or kill it after some seconds; return its exit status, negative for a signal."""
    until = None if within is None else time.monotonic() + within
    while until is not None and time.monotonic() < until:
        done, status = os.waitpid(number, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    if until is not None:
        os.kill(number, by)
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of each file that is compared."""
    files = [one for one in folder.rglob("*") if one.is_file() and one.name not in PASSING]
    return {one.relative_to(folder).as_posix(): one.read_bytes() for one in files}


def begin(name: str) -> int:
    """Start a command, or go on with what is there."""
    there = Path("made").exists() and any(Path("made").iterdir())
    return start(shlex.split(AGAIN[name] if there else COMMANDS[name]))


def last_words() -> str:
    """Return the end of what the last command said."""
    return Path("said.txt").read_text(encoding="utf-8").strip()[-300:]


def trial(name: str, rng: random.Random, seconds: float, expected: dict[str, bytes]) -> tuple[int, str]:
    """Kill a command, resume it, and return how often it was killed and what is wrong, nothing where all is right."""
    shutil.rmtree("made", ignore_errors=True)
    killed = 0
    for _ in range(rng.randint(1, 3)):
        status = ended(begin(name), rng.uniform(0, seconds), rng.choice(SIGNALS))
        killed += status != 0
        if status > 0 and status != 130:
            return killed, f"ended in {status}: {last_words()}"
    status = ended(begin(name))
    if status:
        return killed, f"resumed, ended in {status}: {last_words()}"
    found = contents(Path("made"))
    wrong = [f"missing {one}" for one in sorted(expected.keys() - found.keys())]
    wrong += [f"litter {one}" for one in sorted(found.keys() - expected.keys())]
    wrong += [f"differs {one}" for one in sorted(expected.keys() & found.keys()) if expected[one] != found[one]]
    return killed, "; ".join(wrong[:5])


def main() -> int:
    """Carry out the trials of each command, and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="*", help=f"of {', '.join(COMMANDS)}; all by default")
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    faults = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for line in BEFORE:
            if ended(start(shlex.split(line))):
                raise SystemExit(last_words())
        print("| command | trials | kills | wrong |\n| --- | ---: | ---: | ---: |")
        for name in options.commands or COMMANDS:
            shutil.rmtree("made", ignore_errors=True)
            began = time.monotonic()
            if ended(start(shlex.split(COMMANDS[name]))):
                raise SystemExit(last_words())
            seconds, expected = time.monotonic() - began, contents(Path("made"))
            rng = random.Random(f"{options.seed} {name}")
            kills, wrong = 0, list[str]()
            for number in range(options.trials):
                times, fault = trial(name, rng, seconds, expected)
                kills += times
                if fault:
                    wrong.append(f"{name} {number}: {fault}")
            print(f"| {name} | {options.trials} | {kills} | {len(wrong)} |", flush=True)
            print(*wrong, sep="\n", file=sys.stderr)
            faults += len(wrong)
        os.chdir("/")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
