"""Some of the trials of ``benchmarks/faults``: kills, two commands at once, damaged files. Each is a process of its own."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
FAULTS = HOME / "benchmarks" / "faults"


@pytest.mark.slow
@pytest.mark.skipif(not FAULTS.is_dir() or not Path("/proc/self/fd").is_dir(), reason="needs the benchmarks, and Linux")
@pytest.mark.parametrize(
    "program",
    [
        "kills.py --trials 2 --real 1 --renames 12 --others 6 --command train",
        "kills.py --trials 2 --real 0 --renames 8 --others 4 --command attack",
        "kills.py --trials 1 --real 0 --renames 3 --others 1 --workers 1 --command 'audit, 2 workers'",
        "pairs.py --trials 3 --pair train --pair data --pair score",
        "mutations.py --trials 60 --stored 'run, interrupted' --stored attack",
    ],
)
def test_a_small_campaign_finds_no_fault(program):
    name, *arguments = shlex.split(program)
    ended = subprocess.run(
        [sys.executable, FAULTS / name, *arguments],
        env={**os.environ, "PYTHONPATH": str(HOME), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "| --- |" in ended.stdout
