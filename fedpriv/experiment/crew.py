"""Processes that carry out a suite of attacks together: this one and some workers, each of which takes share after share."""

from __future__ import annotations

import contextlib
import json
import pickle
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from fedpriv.experiment.processes import Process, cause, start
from fedpriv.experiment.shares import Share, Shares, Suite, left_to_do, perform
from fedpriv.util.code import carried
from fedpriv.util.files import mark
from fedpriv.util.listener import Listener, Report

if TYPE_CHECKING:
    from fedpriv.pipeline.execute import AttackContext

WORKER = "fedpriv.experiment.crew_worker"


@contextlib.contextmanager
def crew(number: int, listener: Listener, *, patience: float) -> Iterator[Crew]:
    """Keep processes ready to carry out a suite; they end with the block.

    Args:
        number: of processes, this one included.
        listener: hears of the progress of all, one piece of news at a time, though from several threads.
        patience: seconds after which the others are started, so that what takes less is done by this one alone.
    """
    made = Crew(number, listener, patience)
    try:
        yield made
    finally:
        made.stop()


class Crew:
    """This process, and threads that attend to a worker process each."""

    def __init__(self, number: int, listener: Listener, patience: float) -> None:
        self._listener, self._progress = listener, _Progress(listener)
        self._patience = patience
        self._suites: Sequence[Suite] = ()
        self._left = Shares()
        self._processes: list[Process] = []
        self._ready, self._drained, self._stopped = threading.Event(), threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=carried(self._attend), daemon=True) for _ in range(1, number)]
        for thread in self._threads:
            thread.start()

    def work_off(self, suites: Sequence[Suite], grounds: Sequence[AttackContext]) -> None:
        """Carry out what is not saved of suites, as far as nothing fails: that is for whoever then asks for the results.

        With nobody to share with there is nothing to do.
        """
        if not self._threads:
            return
        self._suites = suites
        shares = left_to_do(suites)
        for divided in (share for share in shares if len(share.divided()) > 1):
            for name in divided.plan.results():  # two processes will write there, so it must be known as ours by then
                mark(suites[divided.suite].folder / name, "attack")
        self._left = Shares(shares)
        self._ready.set()
        networks: set[str] = set()
        while share := self._left.take(networks):
            perform(suites[share.suite], share, grounds[share.suite], self._progress)
            self._left.done(share)
        self._drained.set()
        for thread in self._threads:
            while thread.is_alive():  # in short waits, so that an interrupt is heard
                thread.join(0.2)

    def stop(self) -> None:
        """End every worker, whatever it is doing."""
        with self._lock:
            for event in (self._stopped, self._drained, self._ready):
                event.set()
            for process in self._processes:
                process.terminate()
        for thread in self._threads:
            thread.join()

    def _attend(self) -> None:
        """Start a worker in due time, and hand it share after share."""
        if self._drained.wait(self._patience):
            return
        with self._lock:
            if self._stopped.is_set():
                return
            process = start(WORKER)
            self._processes.append(process)
        with contextlib.suppress(BrokenPipeError), process:
            self._ready.wait()
            networks: set[str] = set()
            while (share := self._left.take(networks)) and not self._stopped.is_set():
                try:
                    self._hand_over(process, share)
                except Exception as error:
                    process.kill()
                    self._give_back(share, " ".join(str(error).split()))
                    return
                self._left.done(share)

    def _hand_over(self, process: Process, share: Share) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pickle.dump((self._suites[share.suite], share), process.stdin)
            process.stdin.flush()
            _follow(process.stdout, self._progress)
        except (BrokenPipeError, EOFError) as error:
            raise ChildProcessError(f"its process ended: {cause(process.wait())}") from error

    def _give_back(self, share: Share, why: str) -> None:
        if self._stopped.is_set():
            return
        self._left.give_back(share)
        with self._progress.lock:
            self._listener.say(f"a worker failed at {share}: {why}; this is now left to the others")


def _follow(lines: Iterable[bytes], listener: Listener, report: Report | None = None) -> None:
    """Tell a listener what a worker says, to the end of its share, or of one piece of work in it.

    Raises:
        ChildProcessError: with what the worker says went wrong.
        EOFError: when it breaks off.
    """
    for line in lines:
        what, *told = json.loads(line)
        if what == "begin":
            with listener.progress(*told) as within:
                _follow(lines, listener, within)
        elif what == "at" and report is not None:
            report(*told)
        elif what == "failed":
            raise ChildProcessError(*told)
        else:
            return
    raise EOFError


class _Progress(Listener):
    """Hands progress on to a listener, one piece of news at a time. Notices come when all results are read back."""

    def __init__(self, listener: Listener) -> None:
        self._listener, self.lock = listener, threading.RLock()

    @contextlib.contextmanager
    def progress(self, title: str) -> Iterator[Report]:
        followed = self._listener.progress(title)
        with self.lock:
            report = followed.__enter__()

        def told(done: int, planned: int, what: str) -> None:
            with self.lock:
                report(done, planned, what)

        try:
            yield told
        except BaseException:
            with self.lock:
                if not followed.__exit__(*sys.exc_info()):
                    raise
        else:
            with self.lock:
                followed.__exit__(None, None, None)
