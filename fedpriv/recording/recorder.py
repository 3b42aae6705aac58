"""The recorder: what an adapter of a framework hands the messages to, that can harm nobody's federation.

An adapter calls :meth:`Recorder.broadcast`, :meth:`Recorder.upload`, :meth:`Recorder.failed` and :meth:`Recorder.settled`
with what its framework shows it. None of them raises, none keeps or changes an array: a fault in them is told in one line,
recording stops, what was recorded stays, and the federation goes on.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fedpriv.recording.arrays import Form, Sets, difference, digest, form_of, plain_sets
from fedpriv.recording.run import KIND, TRAIN, Note, RecordedRun, Scalar, Seen, is_recorded, refuse_unrecorded
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


def to_stderr(line: str) -> None:
    """Say a line on standard error, if there is one."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(f"fedpriv: {line}", file=sys.stderr, flush=True)


@dataclass
class _Known:
    """Everything that the lines of a run say about what comes next.

    Attributes:
        sent: (round, phase) -> client -> SHA-256 of the arrays of the broadcast.
        answered: (round, phase) -> clients that answered.
        files: (round, phase, SHA-256) -> file of a broadcast.
        forms: (direction, phase, client, set) -> its form, of messages of this process.
        lines: round -> number of lines.
        last: the newest round that an earlier process recorded, or -1.
    """

    sent: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)
    answered: dict[tuple[int, str], set[str]] = field(default_factory=dict)
    files: dict[tuple[int, str, str], str] = field(default_factory=dict)
    forms: dict[tuple[str, str, str, str], tuple[int, Form]] = field(default_factory=dict)
    lines: dict[int, int] = field(default_factory=dict)
    last: int = -1

    def enter(self, seen: Seen) -> None:
        """Take a line into account."""
        self.lines[seen.round] = self.lines.get(seen.round, 0) + 1
        for client in seen.clients:
            if seen.direction == "down":
                self.sent.setdefault((seen.round, seen.phase), {}).setdefault(client, seen.sha256)
            else:
                self.answered.setdefault((seen.round, seen.phase), set()).add(client)
        if seen.direction == "down" and seen.file:
            self.files.setdefault((seen.round, seen.phase, seen.sha256), seen.file)


class Recorder:
    """Writes a recorded run. Every method may be called from any thread, and none raises.

    A run that is there already is gone on with: rounds that it holds are left as they are, provided that their broadcasts
    are the same.

    Args:
        path: folder of the run: free, or a recorded run.
        framework: who makes the federation, with its version: ``flwr 1.41.0``.
        named_by_data: clients' names are those of their data, as names of sites are; numbers that are drawn are not.
        say: hears each line for people; standard error by default.
    """

    def __init__(
        self, path: str | Path, framework: str, *, named_by_data: bool = False, say: Callable[[str], None] = to_stderr
    ) -> None:
        self.path, self.stopped = Path(path).absolute(), False
        self._say, self._lock, self._held = say, threading.RLock(), contextlib.ExitStack()
        self._known, self._notes, self._said = _Known(), 0, set[str]()
        self._run: RecordedRun | None = None
        self._lines: list[Seen] | None = None
        with self.guarded():
            self._run = self._open(framework, named_by_data)
            atexit.register(self.close)

    def _open(self, framework: str, named_by_data: bool) -> RecordedRun:
        refuse_unrecorded(self.path)
        there = is_recorded(self.path)
        self._held.enter_context(folders.output(self.path, KIND, resume=there))
        if not there:
            return RecordedRun.make(self.path, framework, named_by_data=named_by_data)
        run = RecordedRun.open(self.path)
        for number in run.rounds():
            for seen in run.messages(number):
                self._known.enter(seen)
        self._known.last = max(run.rounds(), default=-1)
        self._notes = len(run.notes())
        self._say(f"{self.path}: {len(run.rounds())} round(s) are recorded here already; going on")
        return run

    # ------------------------------------------------------------ what adapters call

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Run a block of an adapter's own: a fault in it is told, and recording stops."""
        with self._lock:
            try:
                yield
            except Exception as error:  # whatever it is, the federation is not ours to break
                self._stop(error)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Run a block whose messages came at once, guarded; their lines are written together at its end, which is faster."""
        with self.guarded():
            outer, self._lines = self._lines, [] if self._lines is None else self._lines
            try:
                yield
            finally:
                fresh, self._lines = self._lines or [], outer
                if outer is None and self._run is not None:
                    self._run.add_lines(fresh)

    def broadcast(
        self,
        round_: int,
        clients: Sequence[str],
        sets: Sets,
        *,
        phase: str = TRAIN,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Record what some clients are sent; call it once for each group of clients that get the same.

        Args:
            round_: of the federation, at least 0.
            clients: the receivers' names.
            sets: name of a set -> name of an array -> NumPy array or tensor; read before this returns.
            phase: what is asked for.
            facts: numbers and texts beside the arrays; of other things nothing is kept.
        """
        with self.guarded():
            if self._run is not None:
                self._add("down", round_, tuple(clients), sets, phase, facts or {})

    def upload(
        self, round_: int, client: str, sets: Sets, *, phase: str = TRAIN, facts: Mapping[str, Any] | None = None
    ) -> None:
        """Record a client's answer; arguments as :meth:`broadcast` has them."""
        with self.guarded():
            if self._run is not None:
                self._add("up", round_, (client,), sets, phase, facts or {})

    def failed(self, round_: int, client: str, reason: str, *, phase: str = TRAIN) -> None:
        """Record that a client answered with an error."""
        with self.guarded():
            if self._run is not None:
                self._add("up", round_, (client,), {}, phase, {}, error=short_line(str(reason)) or "no reason given")

    def settled(self, round_: int, *, phase: str = TRAIN) -> None:
        """Hear that no more answers of a round are waited for: one in which nobody answered is recorded as such."""
        with self.guarded():
            if self._run is None:
                return
            asked = list(self._known.sent.get((round_, phase), ()))
            answered = self._known.answered.get((round_, phase), set())
            if asked and not answered:
                self._note("silent", f"{phase}: nobody of {len(asked)} answered", round_)
            elif missing := [client for client in asked if client not in answered]:
                self._note(
                    "silent", f"{phase}: {len(missing)} of {len(asked)} did not answer, {missing[0]} first", round_
                )

    def note(self, code: str, told: str, round_: int | None = None, client: str = "") -> None:
        """Write down something unusual that only the adapter can see, and say the first of each code."""
        with self.guarded():
            if self._run is not None:
                self._note(code, told, round_, client)

    def close(self) -> None:
        """Let go of the folder."""
        with self.guarded():
            self._run = None
            self._held.close()

    # ------------------------------------------------------------ what they do

    def _add(
        self,
        direction: str,
        round_: int,
        clients: tuple[str, ...],
        sets: Sets,
        phase: str,
        facts: Mapping[str, Any],
        error: str = "",
    ) -> None:
        run, known = self._run, self._known
        assert run is not None
        _check_names(clients, phase)
        arrays, odd = plain_sets(sets)
        sha256 = digest(arrays) if any(arrays.values()) else ""
        fresh = clients
        if direction == "down":
            fresh = tuple(one for one in clients if not self._repeats(round_, phase, one, sha256))
        elif clients[0] in known.answered.get((round_, phase), ()):
            if round_ > known.last:
                self._note("twice", f"{phase}: answered twice; the first is kept", round_, clients[0])
            fresh = ()
        if not fresh or self.stopped:
            return
        for oddity in odd:
            self._note(oddity.code, oddity.told, round_, "" if direction == "down" else clients[0])
        self._compare(direction, phase, round_, fresh, {name: form_of(own) for name, own in arrays.items()})
        seen = Seen(
            round=round_,
            phase=phase,
            direction="down" if direction == "down" else "up",
            clients=fresh,
            sha256=sha256,
            sets={name: len(own) for name, own in arrays.items()},
            facts=_bounded(facts),
            error=error,
        )
        file = known.files.get((round_, phase, sha256), "") if direction == "down" else ""
        number = known.lines.get(round_, 0) + 1
        seen = seen.model_copy(update={"file": file}) if file else run.store(seen, arrays, number)
        known.enter(seen)
        if self._lines is None:
            run.add_lines([seen])
        else:
            self._lines.append(seen)
        if error:
            self._note("error", f"{phase}: answered with an error: {error}", round_, clients[0])

    def _repeats(self, round_: int, phase: str, client: str, sha256: str) -> bool:
        """True for a broadcast that is recorded already; one in whose place another is recorded is told.

        Raises:
            UserError: where an earlier process recorded another federation.
        """
        sent = self._known.sent.get((round_, phase), {})
        before = sent.get(client)
        if before is None and round_ <= self._known.last and sent and sha256 not in sent.values():
            before = next(iter(sent.values()))
        if before is None:
            return False
        if before != sha256 and round_ <= self._known.last:
            raise UserError(
                f"{self.path}: round {round_} is recorded already, of another federation than this; record it in a folder "
                "of its own"
            )
        if round_ > self._known.last:
            self._note("twice", f"{phase}: asked twice in this round; the first is kept", round_, client)
        return True

    def _compare(
        self, direction: str, phase: str, round_: int, clients: tuple[str, ...], forms: Mapping[str, Form]
    ) -> None:
        """Note by what a message differs in names, shapes or types from the one before of the same client."""
        told = set[str]()
        for client in clients:
            for name, form in forms.items():
                key = (direction, phase, client, name)
                before = self._known.forms.get(key)
                self._known.forms[key] = (round_, form)
                changed = "" if before is None else difference(name, before[1], form)
                if before is not None and changed and changed not in told:
                    told.add(changed)
                    what = "broadcast" if direction == "down" else "upload"
                    self._note("changed", f"{what}: {changed} in round {before[0]}", round_, client)

    def _note(self, code: str, told: str, round_: int | None = None, client: str = "") -> None:
        key = f"{code}: {told}" if code in ONCE_A_RUN else ""
        if self._run is None or self._notes >= MOST_NOTES or key in self._said - {""}:
            return
        self._run.add_note(Note(code=code, told=short_line(told), round=round_, client=client))
        self._notes += 1
        if code not in self._said:
            where = "" if round_ is None else f"round {round_}, "
            self._say(f"recording: {where}{f'client {client}: ' if client else ''}{told}")
        self._said |= {code, key}

    def _stop(self, error: Exception) -> None:
        if self.stopped:
            return
        told = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        run, self._run, self.stopped = self._run, None, True
        with contextlib.suppress(Exception):
            self._say(short_line(f"recording stops: {told}; the federation goes on, and what was recorded stays"))
        with contextlib.suppress(Exception):
            if run is not None:
                run.add_lines(self._lines or [])
        with contextlib.suppress(Exception):
            if run is not None:
                run.add_note(Note(code="stopped", told=short_line(told)))
        with contextlib.suppress(Exception):
            self._held.close()


def _check_names(clients: Sequence[str], phase: str) -> None:
    for name in (*clients, phase):
        if not isinstance(name, str) or not name or len(name) > LONGEST_CLIENT or not name.isprintable():
            raise UserError(f"a client or a phase is called {name!r}; expected a printable text")


def _bounded(facts: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return the numbers and short texts among facts."""
    found: dict[str, Scalar] = {}
    for name, value in facts.items():
        whole = isinstance(value, int) and abs(value) < 1 << 63
        text = isinstance(value, str) and len(value) <= LONGEST_FACT
        kept = whole or text or (isinstance(value, float) and math.isfinite(value))
        if kept and isinstance(name, str) and len(name) <= LONGEST_FACT and len(found) < MOST_FACTS:
            found[name] = value
    return found
