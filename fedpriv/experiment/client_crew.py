"""Processes that run the clients of a round together: this one and some workers, each of which takes client after client."""

from __future__ import annotations

import contextlib
import pickle
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from fedpriv.experiment.processes import Process, cause, start
from fedpriv.experiment.worker_number import number_of_workers, patience_for
from fedpriv.federation.engine import ClientJob, ClientResult, client_part, run_clients
from fedpriv.federation.prepared import Federation
from fedpriv.federation.trace import Trace
from fedpriv.integrations.flower_wire import fingerprint
from fedpriv.util.code import carried
from fedpriv.util.errors import UserError
from fedpriv.util.listener import Listener
from fedpriv.wire.message_files import packed, unpacked

WORKER = "fedpriv.experiment.client_worker"

AHEAD = 2
"""Clients whose results wait for an earlier client's, a process."""


@contextlib.contextmanager
def client_crew(federation: Federation, workers: int | str, listener: Listener) -> Iterator[ClientCrew]:
    """Keep processes ready to run clients; they end with the block.

    Args:
        federation: whose clients; workers prepare it again, and run a client only on the very images that it has here.
        workers: processes, this one included, or ``auto``; never more than a round has clients, and on a GPU one.
        listener: hears of a worker that failed.

    Raises:
        UserError: where ``workers`` is neither.
    """
    device = federation.server.device.type
    most = len(federation.participants(1)) if device == "cpu" else 1
    crew = ClientCrew(federation, number_of_workers(workers, device, most), listener, patience_for(workers))
    try:
        yield crew
    finally:
        crew.stop()


class ClientCrew:
    """An engine: this process, and threads that attend to a worker process each, take the jobs of a round in turn."""

    def __init__(self, federation: Federation, number: int, listener: Listener, patience: float) -> None:
        self._federation, self._listener = federation, listener
        self._ripe = time.monotonic() + patience
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._workers: list[Process | None] = [None] * (number - 1)
        self._failed: set[int] = set()
        self._fingerprints: dict[int, str] = {}

    def __call__(self, federation: Federation, jobs: Sequence[ClientJob]) -> Iterator[ClientResult]:
        """Run the jobs of a round, yielding each result in the order of the jobs."""
        if not self._workers or len(jobs) == 1:
            yield from run_clients(federation, jobs)
            return
        turn = _Turn(len(jobs), AHEAD * (len(self._workers) + 1))
        for number in range(len(self._workers)):
            if time.monotonic() >= self._ripe and number not in self._failed and self._workers[number] is None:
                self._start(number)
            threading.Thread(target=carried(self._attend), args=(number, turn, jobs), daemon=True).start()
        try:
            for place in range(len(jobs)):
                yield self._result(federation, jobs, turn, place)
        finally:
            turn.end()

    def stop(self) -> None:
        """End every worker, whatever it is doing."""
        with self._lock:
            self._stopped.set()
            for worker in self._workers:
                if worker is not None:
                    worker.kill()
                    worker.wait()

    def _result(self, federation: Federation, jobs: Sequence[ClientJob], turn: _Turn, place: int) -> ClientResult:
        """Return a job's result, running jobs here until it is there."""
        while not turn.has(place):
            own = turn.take()
            if own is None:
                turn.wait(place)
                continue
            try:
                turn.put(own, client_part(federation, jobs[own]))
            except UserError as error:
                turn.put(own, error)
        found = turn.hand_over(place)
        if isinstance(found, UserError):
            raise found
        return found

    def _attend(self, number: int, turn: _Turn, jobs: Sequence[ClientJob]) -> None:
        """Start a worker in due time, and hand it job after job of a round."""
        if number in self._failed or turn.over.wait(max(0.0, self._ripe - time.monotonic())):
            return
        while not turn.over.is_set():
            place = turn.take()
            if place is None:
                turn.over.wait(0.02)
                continue
            try:
                turn.put(place, self._run(number, jobs[place]))
            except UserError as error:
                turn.put(place, error)
            except Exception as error:
                turn.give_back(place)
                self._give_up(number, " ".join(str(error).split()))
                return

    def _run(self, number: int, job: ClientJob) -> ClientResult:
        worker = self._workers[number] or self._start(number)
        assert worker.stdin is not None
        assert worker.stdout is not None
        if job.client not in self._fingerprints:
            self._fingerprints[job.client] = fingerprint(self._federation.clients[job.client])
        try:
            asked = (job.round, job.client, job.state, packed(job.broadcast), self._fingerprints[job.client])
            pickle.dump(asked, worker.stdin, pickle.HIGHEST_PROTOCOL)
            worker.stdin.flush()
            what, *told = pickle.load(worker.stdout)
        except (BrokenPipeError, EOFError) as error:
            raise ChildProcessError(f"its process ended: {cause(worker.wait())}") from error
        if what == "refused":
            raise UserError(*told)
        if what == "failed":
            raise ChildProcessError(*told)
        state, upload, trace = told
        return ClientResult(job.client, state, unpacked(upload), Trace(trace))

    def _start(self, number: int) -> Process:
        with self._lock:
            if self._stopped.is_set():
                raise ChildProcessError("training has ended")
            worker = self._workers[number] = start(WORKER)
        assert worker.stdin is not None
        pickle.dump((self._federation.config, torch.get_num_threads()), worker.stdin)
        return worker

    def _give_up(self, number: int, why: str) -> None:
        with self._lock:
            self._failed.add(number)
            worker, self._workers[number] = self._workers[number], None
            if worker is not None:
                worker.kill()
                worker.wait()
            if not self._stopped.is_set():
                self._listener.say(f"a worker failed: {why}; its clients are left to the others")


@dataclass
class _Turn:
    """The places of a round's jobs, as several threads take them.

    Attributes:
        number: of jobs.
        ahead: places that may be taken beyond the first whose result was not handed over.
        over: nothing is left to take.
    """

    number: int
    ahead: int
    over: threading.Event = field(default_factory=threading.Event)
    _next: int = 0
    _handed: int = 0
    _returned: list[int] = field(default_factory=list)
    _found: dict[int, ClientResult | UserError] = field(default_factory=dict)
    _news: threading.Condition = field(default_factory=threading.Condition)

    def take(self) -> int | None:
        """Return a place whose job is to be run by whoever asks; None where there is none now."""
        with self._news:
            if self._returned:
                return self._returned.pop()
            if self.over.is_set() or self._next >= min(self.number, self._handed + self.ahead):
                return None
            self._next += 1
            return self._next - 1

    def put(self, place: int, found: ClientResult | UserError) -> None:
        """Leave what came of a job."""
        with self._news:
            self._found[place] = found
            self._news.notify_all()

    def give_back(self, place: int) -> None:
        """Leave a job to others."""
        with self._news:
            self._returned.append(place)
            self._news.notify_all()

    def has(self, place: int) -> bool:
        """True where a job's result is there."""
        with self._news:
            return place in self._found

    def wait(self, place: int) -> None:
        """Wait a moment for a job's result, or for a job; in short waits, so that an interrupt is heard."""
        with self._news:
            if place not in self._found and not self._returned:
                self._news.wait(0.2)

    def hand_over(self, place: int) -> ClientResult | UserError:
        """Return a job's result, which is then forgotten."""
        with self._news:
            self._handed = place + 1
            return self._found.pop(place)

    def end(self) -> None:
        """Let nobody take anything any more."""
        self.over.set()
