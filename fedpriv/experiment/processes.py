"""Processes of our own, one thread each: started, ended with whoever started them, and their end in words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import TextIO

from fedpriv.util.code import for_children

Process = subprocess.Popen[bytes]

OVER_TO_YOU = {"over": True}
"""What a process says, as a line of JSON, when it has done what it was handed and waits for more."""


def start(module: str, arguments: Sequence[str] = ()) -> Process:
    """Start ``python -m module`` with pipes for its input and output; it finds and may import every module as here.

    An interrupt from the keyboard is not handed on: it is for whoever started the process to handle.
    """
    found = os.pathsep.join(place or os.getcwd() for place in sys.path)
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env={"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": found, **for_children()},
    )


def cause(code: int) -> str:
    """Return an exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return name + (", perhaps for want of memory" if name == "SIGKILL" else "")


def own_output() -> TextIO:
    """Return this process's standard output for lines of ours alone; what libraries print goes to standard error."""
    said = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return said
