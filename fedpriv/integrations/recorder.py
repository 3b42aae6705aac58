"""The recorder: writes a recorded run as messages pass a server, and disturbs nobody.

An adapter of a framework calls :meth:`Recorder.broadcast`, :meth:`Recorder.upload`, :meth:`Recorder.failed` and
:meth:`Recorder.settled` with what its framework shows it. None of them raises, none keeps or changes an array: a fault in
them is told in one line, recording stops, what was recorded stays, and the federation goes on.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import math
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from torch import Tensor

from fedpriv.integrations.run import KIND, TRAIN, Note, RecordedRun, Scalar, Seen, sets_bytes
from fedpriv.uploads.payload import check_names, check_plain, from_array
from fedpriv.util import folders
from fedpriv.util.errors import UserError, short_line

MOST_SETS: Final = 1000  # sets of arrays in one message
MOST_FACTS: Final = 200  # numbers and texts that are kept of one message
LONGEST_FACT: Final = 300  # characters of such a text
MOST_NOTES: Final = 10_000  # notes of one run; further ones are not written
LONGEST_CLIENT: Final = 200  # characters of a client's name

STORED: Final = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
)
"""Types of numbers that a file keeps as they are."""

Sets = Mapping[str, Mapping[str, Any]]
"""Name of a set (an ``ArrayRecord`` of Flower, a ``DXO`` of NVFlare) -> name of an array -> anything with numbers."""

Facts = Mapping[str, Any] | None


def to_stderr(line: str) -> None:
    """Say a line on standard error, if there is one."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(f"fedpriv: {line}", file=sys.stderr, flush=True)


class Recorder:
    """Writes a recorded run into a free folder. Every method may be called from any thread, and none raises.

    ``framework`` makes the federation (``flwr 1.41.0``); with ``named_by_data`` clients' names are those of their data, as
    names of sites are; ``say`` hears each line for people.
    """

    def __init__(
        self, path: str | Path, framework: str, *, named_by_data: bool = False, say: Callable[[str], None] = to_stderr
    ) -> None:
        self.path, self.stopped = Path(path).absolute(), False
        self._say, self._lock, self._folder = say, threading.RLock(), contextlib.ExitStack()
        self._sent: dict[tuple[int, str], dict[str, None]] = defaultdict(dict)  # (round, phase) -> clients
        self._answered: dict[tuple[int, str], set[str]] = defaultdict(set)
        self._files: dict[bytes, str] = {}  # digest of a broadcast's round, phase and arrays -> its file
        self._lines: Counter[int] = Counter()
        self._notes, self._said = 0, set[str]()
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
            sent = self._sent[round_, phase]
            for client in clients:
                if client in sent:
                    self._note("twice", f"{phase}: sent twice in this round; the first is kept", round_, client)
            fresh = tuple(client for client in clients if client not in sent)
            if fresh:
                self._add("down", round_, fresh, sets, phase, facts)
                sent.update(dict.fromkeys(fresh))

    def upload(self, round_: int, client: str, sets: Sets, *, phase: str = TRAIN, facts: Facts = None) -> None:
        """Record a client's answer; arguments as :meth:`broadcast` has them."""
        with self.guarded():
            self._answer(round_, client, sets, phase, facts)

    def failed(self, round_: int, client: str, reason: str, *, phase: str = TRAIN) -> None:
        """Record that a client answered with an error."""
        with self.guarded():
            error = short_line(str(reason)) or "no reason given"
            self._answer(round_, client, {}, phase, None, error=error)
            self._note("error", f"{phase}: answered with an error: {error}", round_, client)

    def settled(self, round_: int, *, phase: str = TRAIN) -> None:
        """Hear that no more answers of a round are waited for: one in which nobody answered is recorded as such."""
        with self.guarded():
            requested = self._sent[round_, phase]
            missing = [client for client in requested if client not in self._answered[round_, phase]]
            if missing:
                of = f"nobody of {len(requested)} answered"
                if len(missing) < len(requested):
                    of = f"{len(missing)} of {len(requested)} did not answer, {missing[0]} first"
                self._note("silent", f"{phase}: {of}", round_)

    def told(self, line: str) -> None:
        """Write down, once a run, something unusual that only the adapter can see."""
        with self.guarded():
            if line not in self._said:
                self._said.add(line)
                self._note("told", line)

    def close(self) -> None:
        """Let go of the folder."""
        with self.guarded():
            self._run = None
            self._folder.close()

    def _answer(self, round_: int, client: str, sets: Sets, phase: str, facts: Facts, error: str = "") -> None:
        if client in self._answered[round_, phase]:
            self._note("twice", f"{phase}: answered twice; the first is kept", round_, client)
            return
        self._add("up", round_, (client,), sets, phase, facts, error)
        self._answered[round_, phase].add(client)

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
        if self._run is None:
            return
        for name in (*clients, phase):
            if not isinstance(name, str) or not name or len(name) > LONGEST_CLIENT or not name.isprintable():
                raise UserError(f"a client or a phase is called {name!r}; expected a printable text")
        arrays, unreadable = plain_sets(sets)
        for line in unreadable:
            self._note("unreadable", line, round_, "" if direction == "down" else clients[0])
        seen = Seen(
            round=round_,
            phase=phase,
            direction=direction,
            clients=clients,
            sets={name: len(array) for name, array in arrays.items()},
            facts=_bounded(facts or {}),
            error=error,
        )
        if any(arrays.values()):
            content = sets_bytes(arrays)
            key = hashlib.sha256(f"{round_} {phase} ".encode() + content).digest()
            if direction == "down" and key in self._files:
                seen = seen.model_copy(update={"file": self._files[key]})
            else:
                seen = self._run.store(seen, content, self._lines[round_] + 1)
                self._files |= {key: seen.file} if direction == "down" else {}
        self._lines[round_] += 1
        self._run.add(seen)

    def _note(self, code: Any, line: str, round_: int | None = None, client: str = "") -> None:
        """Write down something unusual, and say the first of each code."""
        if self._run is None or self._notes >= MOST_NOTES:
            return
        self._run.add(Note(code=code, told=short_line(line), round=round_, client=client))
        self._notes += 1
        if code not in self._said:
            where = "" if round_ is None else f"round {round_}, "
            self._say(f"recording: {where}{f'client {client}: ' if client else ''}{line}")
            self._said.add(code)

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


def plain_sets(sets: Sets) -> tuple[dict[str, dict[str, Tensor]], list[str]]:
    """Return arrays as dense tensors on the CPU, each of its own type, and a line for each that no file can hold."""
    if len(sets) > MOST_SETS:
        raise UserError(f"{len(sets):,} sets of arrays in one message; at most {MOST_SETS:,}")
    check_names("sets of arrays", [*sets])
    plain: dict[str, dict[str, Tensor]] = {}
    lines = []
    for name, arrays in sets.items():
        check_names(f"set {name!r}", [*arrays])
        plain[name] = {}
        for key, array in arrays.items():
            try:
                plain[name][key] = _plain(array)
            except Exception as error:  # of bytes that came from a client, anything
                lines.append(f"set {name!r}: {key!r}: {short_line(str(error))}; not recorded")
    return plain, lines


def _plain(array: Any) -> Tensor:
    """Return an array as a tensor on the CPU that shares no memory which its owner may write."""
    if isinstance(array, Tensor):
        tensor = check_plain("array", array).detach().cpu().clone(memory_format=torch.contiguous_format)
    elif isinstance(array, (np.ndarray, np.generic, float, int)):
        tensor = from_array("array", np.asarray(array))
    elif hasattr(array, "numpy"):
        tensor = from_array("array", array.numpy())
    else:
        raise UserError(f"expected a NumPy array or a tensor, got {type(array).__name__}")
    if tensor.dtype not in STORED:
        raise UserError(f"an array of {tensor.dtype}, which is not kept")
    return tensor
