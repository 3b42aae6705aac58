"""Some of the inputs of ``benchmarks/faults/readers.py``, in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.hostile

HOME = Path(__file__).parents[2]
PROGRAM = HOME / "benchmarks" / "faults" / "readers.py"


@pytest.mark.skipif(not PROGRAM.is_file() or sys.platform != "linux", reason="needs the benchmarks, and Linux")
def test_damaged_inputs_are_read_or_refused():
    ended = subprocess.run(
        [sys.executable, PROGRAM, "--trials", "800", "--seed", "1"],
        env={**os.environ, "PYTHONPATH": str(HOME), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = [line for line in ended.stdout.splitlines() if line.startswith("|")][2:]
    assert len(rows) == 12
    for row in rows:
        _, name, trials, read, refused, failed, *_ = (cell.strip() for cell in row.split("|"))
        assert min(int(trials), int(read), int(refused)) > 0, (
            f"{name}: of valid and of damaged inputs some are expected"
        )
        assert failed == "0"
