"""A client's part of a round, wherever it runs: its step, and the defenses of what it uploads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from fedpriv.federation.defense import Sender
from fedpriv.federation.method import State
from fedpriv.federation.prepared import Federation
from fedpriv.federation.summary import ClientFailure
from fedpriv.federation.trace import Trace
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.wire.payloads import Message
from fedpriv.wire.plain_tensor import all_finite


@dataclass(frozen=True)
class ClientJob:
    """One client's part in one round, to be run.

    Attributes:
        round: from 1.
        client: its number.
        state: its private state before the round.
        broadcast: what the server sent.
    """

    round: int
    client: int
    state: State
    broadcast: Message


@dataclass(frozen=True)
class ClientResult:
    """A client's part in a round, done.

    Attributes:
        client: its number.
        state: its private state after the round.
        upload: what leaves it, behind its defenses; empty where nothing does.
        trace: its notes of what it did, for scorers.
    """

    client: int
    state: State
    upload: Message
    trace: Trace


Engine = Callable[[Federation, Sequence[ClientJob]], Iterator[ClientResult | ClientFailure]]
"""Runs the jobs of a round, by whatever means. A job that is asked for brings its client's state into memory, so each is
asked for once, when its turn comes. Answers come in the order of the jobs, one each; a client that failed or
kept everybody waiting is answered for by a :class:`ClientFailure`, and leaves the round as if it had not been in it. A
result is that of :func:`client_part`, bit for bit, where it is computed with as many threads. What the user can mend is a
``UserError``."""


def client_part(federation: Federation, job: ClientJob) -> ClientResult:
    """Run a client's step and the defenses of its upload.

    Raises:
        UserError: where training diverged.
    """
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
    found = [f"{payload.kind}.{name}" for payload in upload if (name := payload.non_finite()) is not None]
    if not upload:  # then nothing but the state shows it
        found = [name for name, value in state.items() if not all_finite(value)]
    if found:
        raise UserError(
            f"round {job.round}, client {job.client}: {found[0]} became NaN or infinite; "
            f"training diverged, try a smaller {argument('lr')}"
        )
