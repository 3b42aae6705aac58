"""Long work: who hears of its progress, and processes with one thread each that jobs are handed to in order."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from fedpriv.util.compute import free_memory, pick_device
from fedpriv.util.errors import UserError, WorkError, shown
from fedpriv.util.registry import VARIABLE, allowed

Report = Callable[[int, int, str], None]
"""Called with (units done, units planned, what is being done)."""


class Listener:
    """Hears of the work and shows nothing; a command line or a notebook overrides what it wants to show."""

    command: str | None = None  # that was typed to start the work; None where a verb was called from Python

    def progress(self, title: str) -> AbstractContextManager[Report]:
        """Follow one piece of work; entering gives what the work calls as it advances."""
        return contextlib.nullcontext(lambda done, planned, what: None)

    def say(self, line: str) -> None:
        """Hear a notice that a person should see and that is no result."""

    def warn(self, line: str) -> None:
        """Hear of something that the results lack, which nobody should miss."""
        self.say(f"warning: {line}")

    def resumable(self) -> None:
        """Hear that from now on an interrupt loses nothing: the folder is there, and the work in it can be resumed."""


SILENT = Listener()


Hear = Callable[..., None] | None
"""What is done with news from jobs."""

J = TypeVar("J")
R = TypeVar("R")

PATIENCE = 20.0
"""Seconds of work from which on more processes are worth their start and what they hand over, five of a core each."""
MEMORY, CARD_MEMORY = 2 << 30, 4 << 30
"""Bytes that a process may come to need, and of a GPU's."""
SHARING = 8
"""Most processes that share a GPU."""


class WorkerKilled(WorkError):
    """A process of a pool was killed; what was saved stays."""


def number_of_workers(requested: int | str, device: str = "cpu", most: int | None = None) -> int:
    """Return a number of processes, at most ``most``."""
    if str(requested) == "auto":
        from joblib.externals.loky import cpu_count  # less where a container rations them

        free = free_memory()
        number = int(cpu_count()) if free is None else min(int(cpu_count()), 1 + free // MEMORY)
        position = pick_device(device)
        if position.type == "cuda":
            import torch

            number = min(number, SHARING, torch.cuda.mem_get_info(position)[0] // CARD_MEMORY)
    else:
        try:
            number = int(requested)
        except ValueError:
            number = 0
        if number < 1 or isinstance(requested, bool):
            raise UserError(f"workers={shown(requested)}: expected auto or a whole number of at least 1")
    return max(1, number if most is None else min(number, most))


def patience_for(number: int | str, expected: float = 0.0) -> float:
    """Return the seconds that one process works alone: none where a number was asked for, or longer work is expected."""
    return PATIENCE if str(number) == "auto" and expected <= PATIENCE else 0.0


class Relay(Listener):
    """The listener of a job: it hands on to the pool's, and takes any other news by :meth:`tell`."""

    def __init__(self, listener: Listener, hear: Callable[..., None]) -> None:
        self.progress, self.say, self.tell = listener.progress, listener.say, hear  # type: ignore[method-assign]


class Pool:
    """Processes that take jobs; this one works alone while the work may be short, so that short work starts no other.

    Results do not depend on the number of processes where those of the jobs do not depend on each other. What jobs in other
    processes say and tell is handed on; their progress is not.
    """

    def __init__(
        self,
        workers: int,
        patience: float = 0.0,
        *,
        jobs: int = 0,
        joins: bool = False,
        listener: Listener = SILENT,
        hear: Hear = None,
    ) -> None:
        """Make a pool; its processes start when they are first needed, and end with the ``with`` block.

        That is after so many seconds of ``patience``, or once two of so many ``jobs`` that are alike have shown that all
        take longer; the first is slower than the others. This process is one of them where it ``joins`` in, and otherwise
        waits, so that a job that is killed leaves it alive.
        """
        self._workers = 1 if "__main__" in allowed() else workers
        self._joins = joins
        self._ripe, self._patience, self._jobs = time.monotonic() + patience, patience, jobs
        self._seconds: list[float] = []
        self._listener, self._hear = listener, hear or (lambda *news: None)
        self._pool: Any = None
        self._news: Any = None
        self._over, self._failure = threading.Event(), list[Exception]()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *raised: Any) -> None:
        if self._pool is None:
            return
        self._pool.shutdown(wait=True, kill_workers=True)
        self._over.set()
        self._thread.join(60 if raised[0] is None else 5)  # a process killed while it spoke leaves half a message
        if self._failure and raised[1] is None:
            raise self._failure[0]

    def map(self, function: Callable[[J, Relay], R], jobs: Iterable[J], ahead: int = 1 << 30) -> Iterator[R]:
        """Yield ``function(job, relay)`` of every job, in the order of the jobs."""
        left, here = iter(jobs), Relay(self._listener, self._hear)
        while self._workers == 1 or time.monotonic() < self._ripe:
            for job in itertools.islice(left, 1):
                began = time.monotonic()
                result = function(job, here)
                self._seconds.append(time.monotonic() - began)
                if len(self._seconds) == 2 and min(self._seconds) * self._jobs > self._patience:
                    self._ripe = began
                yield result
                break
            else:
                return
        try:
            yield from self._jointly(function, left, here, ahead)
        except BrokenProcessPool as error:
            how = "SIGKILL, perhaps for want of memory" if "SIGKILL" in str(error) else "its process ended"
            raise WorkerKilled(f"a worker was killed: {how}") from error

    def _jointly(self, function: Callable[[J, Relay], R], left: Iterator[J], here: Relay, ahead: int) -> Iterator[R]:
        """Hand every job to whoever is free: the other processes, and this one if it joins in."""
        ready, waiting, lock, busy = deque[J](), deque[Future[R]](), threading.RLock(), 0

        def hand_on(ended: Future[R] | None = None) -> None:
            nonlocal busy
            with lock:
                busy -= ended is not None
                if ended is not None and (ended.cancelled() or ended.exception()):
                    return  # the pool may be at its end
                while ready and busy < (self._workers - 1 if self._joins else ahead):
                    busy += 1
                    waiting.append(self._started().submit(_run, function, ready.popleft()))
                    waiting[-1].add_done_callback(hand_on)

        while True:
            with lock:
                ready.extend(itertools.islice(left, max(0, ahead - len(waiting) - len(ready))))
                own = None
                if self._joins and ready and not (waiting and waiting[0].done()):
                    job, own = ready.popleft(), Future[R]()
                    waiting.append(own)
                hand_on()  # after this process took one: the last job starts no other
            if own is not None:
                try:
                    own.set_result(function(job, here))
                except Exception as error:  # raised in its turn
                    own.set_exception(error)
            elif waiting:
                yield waiting.popleft().result()
            elif not ready:
                return

    def _started(self) -> Any:
        if self._pool is None:
            from joblib.externals import loky

            context = loky.backend.get_context("loky")
            self._news = context.SimpleQueue()
            self._pool = loky.ProcessPoolExecutor(
                self._workers - self._joins,
                context=context,
                initializer=_begin,
                initargs=(self._news, os.getpid()),
                env={"OMP_NUM_THREADS": "1", VARIABLE: ",".join(sorted(allowed()))},
            )
            self._thread.start()
        return self._pool

    def _listen(self) -> None:
        try:
            over = False
            while not over:
                over = self._over.wait(0.05)  # before the last look: nothing is said afterwards
                while not self._news.empty():
                    spoken, news = self._news.get()
                    (self._listener.say if spoken else self._hear)(*news)
        except Exception as error:  # raised where the pool ends
            self._failure.append(error)


_NEWS: list[Any] = []
"""In a process of a pool: the queue to the one that started it."""


class _Apart(Listener):
    """Sends what is said to the process that started this one."""

    def say(self, line: str) -> None:
        _NEWS[0].put((True, (line,)))


def _begin(news: Any, parent: int) -> None:
    import torch
    from joblib.externals.loky import process_executor

    # A worker that has grown by 300 MB would be replaced, and import and prepare everything anew.
    process_executor._MAX_MEMORY_LEAK_SIZE = sys.maxsize
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # for the process that started this one to handle
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # standard output is the command's own
    _NEWS[:] = [news]
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process when the one that started it is gone: nobody else may resume in its folders meanwhile."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


def _run(function: Callable[[Any, Relay], Any], job: Any) -> Any:
    return function(job, Relay(_Apart(), lambda *news: _NEWS[0].put((False, news))))
