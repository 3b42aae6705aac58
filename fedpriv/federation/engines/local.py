"""The reference engine: clients one after another in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from fedpriv.federation.method import ClientSetup, Method
from fedpriv.federation.rounds import ClientJob, ClientResult
from fedpriv.federation.trace import Trace


def run_clients(
    method: Method, setups: Mapping[int, ClientSetup] | Sequence[ClientSetup], jobs: Sequence[ClientJob]
) -> Iterator[ClientResult]:
    """Run client steps in the order of the jobs, yielding each result as it is ready."""
    for job in jobs:
        setup = replace(setups[job.client], trace=Trace())
        state, upload = method.client_step(setup, job.state, job.broadcast, job.rng)
        yield ClientResult(job.client, state, upload, setup.trace)
