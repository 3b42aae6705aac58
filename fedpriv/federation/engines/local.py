"""The reference engine: clients one after another in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedpriv.federation.client_part import ClientJob, ClientResult, client_part
from fedpriv.federation.prepared import Federation


def run_clients(federation: Federation, jobs: Sequence[ClientJob]) -> Iterator[ClientResult]:
    """Run the jobs in their order, yielding each result as it is ready."""
    for job in jobs:
        yield client_part(federation, job)
