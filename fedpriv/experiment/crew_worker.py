"""A process that carries out shares of a suite of attacks for another: ``python -m fedpriv.experiment.crew_worker``.

By standard input come pairs of the suite and a share, pickled by the process that started this one; where they end, this
process does, whatever it is doing. By standard output it says, in lines of JSON, ``["begin", title]`` and ``["end"]`` of a
piece of work, ``["at", done, planned, what]`` within it, and ``["done"]`` or ``["failed", why]`` of a share.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from fedpriv.experiment.processes import own_output
from fedpriv.util.errors import UserError
from fedpriv.util.listener import Listener, Report

if TYPE_CHECKING:
    from fedpriv.experiment.execution import AttackContext

PAUSE = 0.1
"""Seconds between two pieces of news of the same work."""


class Telling(Listener):
    """Tells of progress by lines."""

    def __init__(self, said: TextIO) -> None:
        self._said = said

    def tell(self, *words: object) -> None:
        """Say a line."""
        print(json.dumps(words), file=self._said, flush=True)

    @contextlib.contextmanager
    def progress(self, title: str) -> Iterator[Report]:
        """Tell of a piece of work that ends well."""
        last = 0.0

        def report(done: int, planned: int, what: str) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last >= PAUSE:
                last = now
                self.tell("at", done, planned, what)

        self.tell("begin", title)
        yield report
        self.tell("end")


def main() -> None:
    """Carry out shares until no more come."""
    asked: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
    given, listener = os.fdopen(os.dup(0), "rb"), Telling(own_output())
    threading.Thread(target=_receive, args=(given, asked), daemon=True).start()
    # What takes long to load is there when the first share comes.
    from fedpriv.experiment.execution import open_ground
    from fedpriv.experiment.shares import perform

    grounds: dict[Path, AttackContext] = {}
    while True:
        try:
            suite, share = asked.get().result()
            if suite.run not in grounds:
                grounds[suite.run] = open_ground(suite.run, suite.plan)
            perform(suite, share, grounds[suite.run], listener)
        except UserError as error:
            listener.tell("failed", str(error))
        except Exception as error:
            listener.tell("failed", f"{type(error).__name__}: {error}")
        else:
            listener.tell("done")


def _receive(given: BinaryIO, asked: queue.SimpleQueue[Future[Any]]) -> None:
    while True:
        one: Future[Any] = Future()
        try:
            one.set_result(pickle.load(given))
        except EOFError:
            # An orphan must not go on writing into a folder that somebody resumes.
            os._exit(0)
        except Exception as error:
            one.set_exception(error)
        asked.put(one)


if __name__ == "__main__":
    main()
