"""A client's part of a round, the jobs of a round, and the engine that runs them one after another in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from fedpriv.federation.defense import Sender
from fedpriv.federation.prepared import Federation
from fedpriv.federation.states import State
from fedpriv.federation.summary import ClientFailure
from fedpriv.federation.trace import Trace
from fedpriv.util.errors import UserError
from fedpriv.wire.payload import all_finite
from fedpriv.wire.payloads import Message


@dataclass(frozen=True)
class ClientJob:
    """One client's part in one round, to be run."""

    round: int  # from 1
    client: int  # its number
    state: State  # its private state before the round
    broadcast: Message  # the server's message


@dataclass(frozen=True)
class ClientResult:
    """A client's part in a round, done."""

    client: int  # its number
    state: State  # its private state after the round
    upload: Message  # its message behind its defenses; may be empty
    trace: Trace  # its notes, for scorers


Engine = Callable[[Federation, Sequence[ClientJob]], Iterator[ClientResult | ClientFailure]]
"""Runs the jobs of a round and yields one answer each, in their order: the result of :func:`client_part`, or a
:class:`ClientFailure` for a client that failed or timed out. Each job is asked for once, since it loads a state."""


def client_part(federation: Federation, job: ClientJob) -> ClientResult:
    """Run a client's step and the defenses of its upload."""
    setup = replace(federation.clients[job.client], trace=Trace())
    rng = federation.client_rng(job.round, job.client)
    state, upload = federation.method.client_step(setup, job.state, job.broadcast, rng)
    _refuse_non_finite(job, state, upload)
    sender = Sender(
        round=job.round,
        client=job.client,
        n_classes=setup.n_classes,
        labels=setup.train.labels.cpu(),
        broadcast=job.broadcast,
        rounds=federation.config.rounds,
        trace=setup.trace,
    )
    sent = federation.pipeline.upload(upload, sender, federation.config.seed)
    return ClientResult(job.client, state, sent, setup.trace)


def _refuse_non_finite(job: ClientJob, state: State, upload: Message) -> None:
    results = [f"{payload.kind}.{name}" for payload in upload if (name := payload.non_finite()) is not None]
    if not upload:  # then nothing but the state shows it
        results = [name for name, value in state.items() if not all_finite(value)]
    if results:
        raise UserError(
            f"round {job.round}, client {job.client}: {results[0]} became NaN or infinite; "
            f"training diverged, try a smaller lr"
        )


@dataclass(frozen=True)
class RoundJobs(Sequence[ClientJob]):
    """The jobs of a round; each is made when it is asked for, with its client's state as it stands then."""

    round: int  # from 1
    clients: tuple[int, ...]  # of the round, ascending
    states: Sequence[State] = field(repr=False)  # of all clients
    broadcast: Message = field(repr=False)  # the server's message

    def __len__(self) -> int:
        return len(self.clients)

    def __getitem__(self, number: int) -> ClientJob:  # type: ignore[override]
        client = self.clients[number]
        return ClientJob(self.round, client, self.states[client], self.broadcast)


def run_clients(federation: Federation, jobs: Sequence[ClientJob]) -> Iterator[ClientResult]:
    """Run the jobs in their order, yielding each result as it is ready."""
    for job in jobs:
        yield client_part(federation, job)
