"""The recorder: writes a recorded run as messages pass a server, and disturbs nobody.

An adapter of a framework calls :meth:`Recorder.broadcast`, :meth:`Recorder.upload`, :meth:`Recorder.failed` and
:meth:`Recorder.settled` with what its framework shows it. None of them raises, none keeps or changes an array: a fault in
them is told in one line, recording stops, what was recorded stays, and the federation goes on.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from fedpriv.integrations.arrays import Sets, digest, plain_sets
from fedpriv.integrations.run import KIND, TRAIN, Note, RecordedRun, Scalar, Seen
from fedpriv.util import folders
from fedpriv.util.errors import UserError, short_line

MOST_FACTS: Final = 200
"""Numbers and texts that are kept of one message."""
LONGEST_FACT: Final = 300
"""Characters of such a text."""
MOST_NOTES: Final = 10_000
"""Notes of one run; further ones are not written."""
LONGEST_CLIENT: Final = 200
"""Characters of a client's name."""

ONCE_A_RUN: Final = frozenset({"type", "told"})
"""Codes of notes that are the same for every message: written down at their first."""

Facts = Mapping[str, Any] | None


def to_stderr(line: str) -> None:
    """Say a line on standard error, if there is one."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(f"fedpriv: {line}", file=sys.stderr, flush=True)


class _Known:
    """Everything that was written so far, as far as it says what comes next."""

    def __init__(self) -> None:
        self.sent: dict[tuple[int, str], dict[str, str]] = defaultdict(dict)
        """(round, phase) -> client -> SHA-256 of the arrays of the broadcast."""
        self.answered: dict[tuple[int, str], set[str]] = defaultdict(set)
        self.files: dict[tuple[int, str, str], str] = {}
        """(round, phase, SHA-256) -> file of a broadcast."""
        self.lines: Counter[int] = Counter()

    def enter(self, seen: Seen) -> None:
        """Take a line into account."""
        self.lines[seen.round] += 1
        key = seen.round, seen.phase
        if seen.direction == "up":
            self.answered[key].update(seen.clients)
            return
        for client in seen.clients:
            self.sent[key].setdefault(client, seen.sha256)
        if seen.file:
            self.files.setdefault((*key, seen.sha256), seen.file)


class Recorder:
    """Writes a recorded run. Every method may be called from any thread, and none raises.

    Args:
        path: folder of the run, which must be free.
        framework: that makes the federation, with its version: ``flwr 1.41.0``.
        named_by_data: clients' names are those of their data, as names of sites are; numbers that are drawn are not.
        say: hears each line for people; standard error by default.
    """

    def __init__(
        self, path: str | Path, framework: str, *, named_by_data: bool = False, say: Callable[[str], None] = to_stderr
    ) -> None:
        self.path, self.stopped = Path(path).absolute(), False
        self._say, self._lock, self._folder = say, threading.RLock(), contextlib.ExitStack()
        self._known, self._notes, self._said = _Known(), 0, set[str]()
        self._run: RecordedRun | None = None
        with self.guarded():
            self._folder.enter_context(folders.output(self.path, KIND))
            self._run = RecordedRun.make(self.path, framework, named_by_data=named_by_data)
            atexit.register(self.close)

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Run a block of an adapter: a fault in it is told, and recording stops."""
        with self._lock:
            try:
                yield
            except Exception as error:  # whatever it is, the federation is not ours to break
                self._stop(error)

    def broadcast(
        self, round_: int, clients: Sequence[str], sets: Sets, *, phase: str = TRAIN, facts: Facts = None
    ) -> None:
        """Record what some clients are sent; call it once for each group of clients that get the same."""
        with self.guarded():
            self._add("down", round_, tuple(clients), sets, phase, facts)

    def upload(self, round_: int, client: str, sets: Sets, *, phase: str = TRAIN, facts: Facts = None) -> None:
        """Record a client's answer; arguments as :meth:`broadcast` has them."""
        with self.guarded():
            self._add("up", round_, (client,), sets, phase, facts)

    def failed(self, round_: int, client: str, reason: str, *, phase: str = TRAIN) -> None:
        """Record that a client answered with an error."""
        with self.guarded():
            self._add("up", round_, (client,), {}, phase, None, error=short_line(str(reason)) or "no reason given")

    def settled(self, round_: int, *, phase: str = TRAIN) -> None:
        """Hear that no more answers of a round are waited for: one in which nobody answered is recorded as such."""
        with self.guarded():
            requested = list(self._known.sent[round_, phase])
            missing = [client for client in requested if client not in self._known.answered[round_, phase]]
            if missing and len(missing) == len(requested):
                self._note("silent", f"{phase}: nobody of {len(requested)} answered", round_)
            elif missing:
                line = f"{phase}: {len(missing)} of {len(requested)} did not answer, {missing[0]} first"
                self._note("silent", line, round_)

    def note(self, code: str, line: str, round_: int | None = None, client: str = "") -> None:
        """Write down something unusual that only the adapter can see, and say the first of each code."""
        with self.guarded():
            self._note(code, line, round_, client)

    def close(self) -> None:
        """Let go of the folder."""
        with self.guarded():
            self._run = None
            self._folder.close()

    def _add(
        self,
        direction: Literal["down", "up"],
        round_: int,
        clients: tuple[str, ...],
        sets: Sets,
        phase: str,
        facts: Facts,
        error: str = "",
    ) -> None:
        run, known = self._run, self._known
        if run is None:
            return
        for name in (*clients, phase):
            if not isinstance(name, str) or not name or len(name) > LONGEST_CLIENT or not name.isprintable():
                raise UserError(f"a client or a phase is called {name!r}; expected a printable text")
        arrays, odd = plain_sets(sets)
        sha256 = digest(arrays) if any(arrays.values()) else ""
        if direction == "down":
            clients = tuple(client for client in clients if not self._repeats(round_, phase, client))
        elif clients[0] in known.answered[round_, phase]:
            self._note("twice", f"{phase}: answered twice; the first is kept", round_, clients[0])
            return
        if not clients:
            return
        for oddity in odd:
            self._note(oddity.code, oddity.line, round_, "" if direction == "down" else clients[0])
        seen = Seen(
            round=round_,
            phase=phase,
            direction=direction,
            clients=clients,
            file=known.files.get((round_, phase, sha256), "") if direction == "down" else "",
            sha256=sha256,
            sets={name: len(array) for name, array in arrays.items()},
            facts=_bounded(facts or {}),
            error=error,
        )
        if not seen.file:
            seen = run.store(seen, arrays, known.lines[round_] + 1)
        known.enter(seen)
        run.add(seen)
        if error:
            self._note("error", f"{phase}: answered with an error: {error}", round_, clients[0])

    def _repeats(self, round_: int, phase: str, client: str) -> bool:
        """True for a second broadcast of a round, which is told."""
        repeats = client in self._known.sent[round_, phase]
        if repeats:
            self._note("twice", f"{phase}: sent twice in this round; the first is kept", round_, client)
        return repeats

    def _note(self, code: str, line: str, round_: int | None = None, client: str = "") -> None:
        key = f"{code}: {line}" if code in ONCE_A_RUN else ""
        if self._run is None or self._notes >= MOST_NOTES or key in self._said - {""}:
            return
        self._run.add(Note(code=code, told=short_line(line), round=round_, client=client))
        self._notes += 1
        if code not in self._said:
            where = "" if round_ is None else f"round {round_}, "
            self._say(f"recording: {where}{f'client {client}: ' if client else ''}{line}")
        self._said |= {code, key}

    def _stop(self, error: Exception) -> None:
        if self.stopped:
            return
        reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        run, self._run, self.stopped = self._run, None, True
        with contextlib.suppress(Exception):
            self._say(short_line(f"recording stops: {reason}; the federation goes on, and what was recorded stays"))
        with contextlib.suppress(Exception):
            if run is not None:
                run.add(Note(code="stopped", told=short_line(reason)))
        with contextlib.suppress(Exception):
            self._folder.close()


def _bounded(facts: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return the numbers and short texts among facts."""
    kept: dict[str, Scalar] = {}
    for name, value in facts.items():
        whole = isinstance(value, int) and abs(value) < 1 << 63
        text = isinstance(value, str) and len(value) <= LONGEST_FACT
        fits = whole or text or (isinstance(value, float) and math.isfinite(value))
        if fits and isinstance(name, str) and len(name) <= LONGEST_FACT and len(kept) < MOST_FACTS:
            kept[name] = value
    return kept
