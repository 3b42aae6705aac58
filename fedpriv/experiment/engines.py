"""The engines by name: what each needs to be there, and the one that a run's configuration chooses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fedpriv.util.config import plain
from fedpriv.util.errors import UserError, shown
from fedpriv.util.parallel import SILENT, Listener, Pool, Relay, number_of_workers, patience_for

if TYPE_CHECKING:
    from fedpriv.federation.prepared import Federation
    from fedpriv.federation.rounds import ClientJob, ClientResult, Engine
    from fedpriv.federation.run_directory import EngineChoice, RunConfig

AHEAD = 2
"""Clients whose results wait for an earlier client's, a process."""


def check_engine(choice: EngineChoice, device: str) -> str:
    """Return where this process computes under an engine, of where it was told to."""
    if choice.name == "local":
        return device
    from fedpriv.integrations.flower_engine import require_flower

    require_flower()
    if device not in ("auto", "cpu"):
        raise UserError(f"device={shown(device)}: simulated nodes compute on the CPU; use cpu, or the local engine")
    return "cpu"


def refuse_workers(workers: int | str, choice: EngineChoice) -> None:
    """Check a number of processes before anything is made."""
    number_of_workers(workers, "cpu")
    if choice.name != "local" and str(workers) not in ("auto", "1"):
        raise UserError(f"workers={shown(workers)}: goes with the local engine; {choice.name} has its own nodes")


@contextmanager
def opened(federation: Federation, clients_by: Engine | int | str = 1, listener: Listener = SILENT) -> Iterator[Engine]:
    """Open the engine that a federation's configuration names, or give the one that is handed in."""
    choice = federation.config.engine
    if callable(clients_by):
        yield clients_by
    elif choice.name == "local":
        device = federation.server.device.type
        most = len(federation.participants(1)) if device == "cpu" else 1
        number, key = number_of_workers(clients_by, device, most), _key(federation.config)
        _PREPARED[key] = federation
        try:
            with Pool(number, patience_for(clients_by), listener=listener) as pool:
                yield lambda current, jobs: pool.map(_run_client, _with_config(current, jobs), AHEAD * number)
        finally:
            del _PREPARED[key]
    else:
        from fedpriv.experiment.flower_nodes import answer
        from fedpriv.integrations.flower_engine import simulated

        with simulated(choice.nodes or len(federation.participants(1)), answer) as simulation:
            yield simulation


_PREPARED: dict[str, Federation] = {}
"""Federations that this process has prepared, by their configuration."""


def _key(config: RunConfig) -> str:
    return json.dumps(plain(config), sort_keys=True)


def _with_config(federation: Federation, jobs: Sequence[ClientJob]) -> Iterator[tuple[RunConfig, ClientJob]]:
    for job in jobs:
        yield federation.config, job


def _run_client(run_configs: tuple[RunConfig, ClientJob], _: Relay) -> ClientResult:
    import torch

    from fedpriv.federation.rounds import client_part
    from fedpriv.sources.run import prepare

    config, job = run_configs
    key = _key(config)
    if key not in _PREPARED:
        _PREPARED[key] = prepare(config, torch.device("cpu"))
    return client_part(_PREPARED[key], job)
