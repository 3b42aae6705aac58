"""Commands run as a user runs them, in processes of their own: CPU seconds of all that they start, and those that pass."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path


def run_python(arguments: Sequence[str], folder: Path) -> dict[str, float]:
    """Run the Python that runs here in a folder; return its ``cpu`` and ``wall`` seconds.

    Threads and workers are as they are by default.

    Raises:
        RuntimeError: where it fails, with its last line.
    """
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    before, began = os.times(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    after = os.times()
    if done.returncode:
        last = (done.stderr.strip() or "it said nothing").splitlines()[-1]
        raise RuntimeError(f"{' '.join(arguments[1:])} ended with exit code {done.returncode}: {last}")
    cpu = after.children_user - before.children_user + after.children_system - before.children_system
    return {"cpu": cpu, "wall": time.perf_counter() - began}


def run_command(arguments: Sequence[str], folder: Path) -> dict[str, float]:
    """Run ``fedpriv`` with arguments, as :func:`run_python`."""
    return run_python(["-m", "fedpriv", *arguments], folder)
