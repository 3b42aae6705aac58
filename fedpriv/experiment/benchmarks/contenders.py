"""The processes of a case, from outside: started, told to take a turn, and ended whatever they are doing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedpriv.experiment.benchmarks.contract import Side
from fedpriv.experiment.benchmarks.turns import COUNT, MEASURE, WARM
from fedpriv.experiment.processes import Process, cause, start

WORKER = "fedpriv.experiment.benchmarks.worker"

Figures = Mapping[str, Any]
"""Told of a turn: ``cpu``, ``wall``, ``mib``, ``operations``, or why there is none: ``missing``, ``failed``."""


class Contender:
    """One side, in a process that is started when it first takes a turn.

    Args:
        side: it.
        scratch: a folder of its own for whatever it writes.
    """

    def __init__(self, side: Side, scratch: Path) -> None:
        self.side = side
        self._scratch = scratch
        self._process: Process | None = None
        self._out: Figures | None = None

    def warm_up(self, *, counted: bool) -> Figures:
        """Take a turn that is not measured; its operations are counted where that is wanted."""
        return {} if self.side.anew else self._turn(COUNT if counted else WARM)

    def measure(self) -> Figures:
        """Take a turn that is measured."""
        found = self._turn(MEASURE)
        if self.side.anew:
            self.stop()
        return found

    def stop(self) -> None:
        """End the process and those that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        with contextlib.suppress(ProcessLookupError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        process.wait()

    def _turn(self, word: str) -> Figures:
        """Return the figures of a turn; after a failure, the reason again."""
        if self._out is not None:
            return self._out
        if self._process is None:
            self._scratch.mkdir(parents=True, exist_ok=True)
            settings = {**self.side.settings, "scratch": str(self._scratch)}
            self._process = start(WORKER, [self.side.work, json.dumps(settings)])
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        line = b""
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(word.encode() + b"\n")
            process.stdin.flush()
        line = process.stdout.readline()
        found: Figures = json.loads(line) if line else {"failed": f"its process ended with {cause(process.wait())}"}
        if "missing" in found or "failed" in found:
            self._out = found
            self.stop()
        return found


@contextlib.contextmanager
def contenders(sides: tuple[Side, ...], scratch: Path) -> Iterator[tuple[Contender, ...]]:
    """Keep the processes of a case; they end with the block."""
    made = tuple(Contender(side, scratch / str(place)) for place, side in enumerate(sides))
    try:
        yield made
    finally:
        for one in made:
            one.stop()
