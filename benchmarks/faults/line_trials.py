"""Carry one command line out and judge how it ended."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv.cli import bars, main

HANG = 60.0
"""Seconds without a line after which a command that ought to say something hangs."""

PATIENCE = 8.0
"""Seconds after which long work that says how far it is is interrupted, as a person would."""

BETWEEN = 2.0
"""Seconds between two lines of progress, in place of what people are shown."""

_TOLD = re.compile(r"Traceback \(most recent call last\)|^.*Warning: ", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """The end of a command line.

    Attributes:
        code: exit code; None where an exception escaped.
        out, err: what was written.
        seconds: that it took.
        hung: true where it said nothing for too long.
        interrupted: true where the trial ended it, as it went on and said so.
        escaped: the exception that came out, in words.
    """

    code: int | None
    out: str
    err: str
    seconds: float
    hung: bool = False
    interrupted: bool = False
    escaped: str = ""

    @property
    def last(self) -> str:
        """The last line on standard error."""
        return self.err.strip().rpartition("\n")[2]

    def faults(self, command: str) -> list[str]:
        """Return in words what is wrong with this end; nothing where all is well."""
        found = []
        if self.escaped:
            found.append(f"an exception came out: {self.escaped}")
        elif self.hung:
            found.append(f"said nothing for {HANG:.0f} s")
        elif self.code not in (0, 1, 2, 130):
            found.append(f"exit code {self.code}")
        if self.interrupted and self.code == 0:
            found.append("exit code 0 after an interrupt")
        ours = [row for row in self.err.splitlines() if row.startswith("fedpriv: ")]
        if self.code in (1, 2, 130) and not self.escaped:
            cells = command == "audit" and self.code == 1  # a line a cell that failed
            found_ill = command == "doctor" and self.code == 1 and not ours  # what it found is its result
            if not found_ill and (not ours or not (cells or (len(ours) == 1 and self.last == ours[0]))):
                found.append(f"{len(ours)} lines of its own, the last: {self.last[:200]!r}")
        if self.code == 0 and ours:
            found.append(f"exit code 0 with {ours[0][:200]!r}")
        told = _TOLD.search(self.err) or _TOLD.search(self.out)
        return [*found, *([f"a line of a library: {told.group()[:200]!r}"] if told else [])]


class _Stream(io.TextIOWrapper):
    """Writes as standard output and error do, and knows when it was last written to."""

    def __init__(self, errors: str) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", errors=errors, newline="\n", write_through=True)
        self.spoke = time.monotonic()

    def write(self, text: str) -> int:
        self.spoke = time.monotonic()
        return super().write(text)

    def text(self) -> str:
        """Return what was written."""
        self.flush()
        found: Any = self.buffer
        return found.getvalue().decode("utf-8", "replace")


class _Watch:
    """Ends what hangs, and what goes on for long."""

    def __init__(self, *streams: _Stream, quiet: bool) -> None:
        self.quiet = quiet  # then silence is what was asked for
        self.began = time.monotonic()
        self.hung = self.interrupted = False
        self._streams = streams

    def __call__(self, number: int, frame: object) -> None:
        now, spoke = time.monotonic(), max(stream.spoke for stream in self._streams)
        silent = now - max(spoke, self.began) > HANG
        says = spoke > self.began + BETWEEN / 2 and now - spoke < 3 * BETWEEN
        self.hung = self.hung or (silent and not self.quiet)
        self.interrupted = self.interrupted or (now - self.began > PATIENCE and says) or (silent and self.quiet)
        if self.hung or self.interrupted:
            raise KeyboardInterrupt


@contextlib.contextmanager
def _watched(watch: _Watch, every: float = 0.5) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, watch)
    signal.setitimer(signal.ITIMER_REAL, every, every)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def here(words: Sequence[str], folder: Path) -> Outcome:
    """Carry out a command line in this process, in ``folder``."""
    out, err = _Stream("strict"), _Stream("backslashreplace")
    watch, code, escaped = _Watch(out, err, quiet="--quiet" in words), None, ""
    before, real, between = Path.cwd(), (sys.stdout, sys.stderr, sys.argv), bars.EVERY
    os.chdir(folder)
    sys.stdout, sys.stderr, sys.argv, bars.EVERY = out, err, ["fedpriv", *words], BETWEEN
    try:
        with warnings.catch_warnings(), _watched(watch):
            warnings.simplefilter("default")
            code = main.run(list(words))
    except BaseException as error:
        escaped = f"{type(error).__name__}: {error}"[:300]
    finally:
        bars.EVERY = between
        sys.stdout, sys.stderr, sys.argv = real
        os.chdir(before)
    seconds = time.monotonic() - watch.began
    return Outcome(code, out.text(), err.text(), seconds, watch.hung, watch.interrupted, escaped)


def apart(words: Sequence[str], folder: Path) -> Outcome:
    """Carry out a command line as a process of its own, in ``folder``; one that takes two minutes is interrupted."""
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "fedpriv", *(os.fsencode(word) for word in words)],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    interrupted = False
    try:
        out, err = process.communicate(timeout=2 * HANG)
    except subprocess.TimeoutExpired:
        interrupted = True
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=HANG)
    told = (text.decode("utf-8", "replace") for text in (out, err))
    return Outcome(process.returncode, *told, time.monotonic() - began, interrupted=interrupted)
