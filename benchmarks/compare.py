"""CPU seconds of a whole command at two commits, in turns, as a ratio with its interval.

    python benchmarks/compare.py OLD NEW                                    # commits; attack --target entangled
    python benchmarks/compare.py v0.1.0 . --turns 5 -- train --method fedproto --rounds 5

A commit is checked out into a folder of its own; a folder, such as ``.``, is taken as it is. Both get one thread a process
and the same workers; the clock is that of the process and its children, start-up included. Rates of the machine are measured
before every pair and after it; a pair in which one of them changed by a fifth is repeated, twice at most.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HOME))
COMMAND = ("attack", "--target", "entangled")
CHANGED, REPEATS = 0.2, 2
START = "import sys; sys.argv[0] = 'fedpriv'; from fedpriv.cli.main import entry; sys.exit(entry())"


def checkout(commit: str, scratch: Path) -> Path:
    """Return a folder with a commit's files."""
    if Path(commit).is_dir():
        return Path(commit).resolve()
    folder = scratch / commit.replace("/", "-")
    subprocess.run(["git", "-C", str(HOME), "worktree", "add", "-q", "--detach", str(folder), commit], check=True)
    return folder


def seconds(folder: Path, command: list[str], out: Path) -> float:
    """Return the CPU seconds of a command and of all that it starts."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(folder)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", START, *command, "--out", str(out), "--quiet"],
        env=env,
        cwd=out.parent,  # from where a package beside the command would be imported
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{folder}: {done.stderr.strip().splitlines()[-1]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def interval(ratios: list[float]) -> str:
    """Return the geometric mean of ratios, with its 95 % interval where there are two at least."""
    from scipy.special import stdtrit

    logs = [math.log(ratio) for ratio in ratios]
    middle = statistics.mean(logs)
    if len(logs) < 2:
        return f"{math.exp(middle):.2f}"
    half = stdtrit(len(logs) - 1, 0.975) * statistics.stdev(logs) / math.sqrt(len(logs))
    return f"{math.exp(middle):.2f} [{math.exp(middle - half):.2f}, {math.exp(middle + half):.2f}]"


def main() -> None:
    """Take turns, and print each pair and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("command", nargs="*", default=list(COMMAND), help="after --; without --out")
    options = parser.parse_args()
    from fedpriv.util.rates import measure_rates

    with tempfile.TemporaryDirectory() as scratch:
        folders = [checkout(commit, Path(scratch)) for commit in (options.old, options.new)]
        try:
            pairs, repeats, rates = list[tuple[float, float]](), 0, measure_rates()
            while len(pairs) < options.turns:
                number = f"{len(pairs)}-{repeats}"
                old, new = (seconds(f, options.command, Path(scratch) / f"{number}-{i}") for i, f in enumerate(folders))
                last, rates = rates, measure_rates()
                steady = all(abs(math.log(b / a)) < math.log(1 + CHANGED) for a, b in zip(last, rates, strict=True))
                print(
                    f"{old:8.1f} s  {new:8.1f} s  {new / old:.2f}  {rates}{'' if steady else ' (changed)'}", flush=True
                )
                repeats += not steady
                if steady or repeats > REPEATS:
                    pairs.append((old, new))
            print(f"new / old: {interval([new / old for old, new in pairs])}")
        finally:
            for commit, folder in zip((options.old, options.new), folders, strict=True):
                if not Path(commit).is_dir():
                    subprocess.run(["git", "-C", str(HOME), "worktree", "remove", "--force", str(folder)], check=False)


if __name__ == "__main__":
    main()
