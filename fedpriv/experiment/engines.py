"""The engines by name: what each needs to be there, and the one that a run's configuration chooses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError

if TYPE_CHECKING:
    from fedpriv.federation.client_part import Engine
    from fedpriv.federation.prepared import Federation
    from fedpriv.federation.run_directory import EngineChoice, RunDirectory
    from fedpriv.federation.summary import RunSummary
    from fedpriv.util.listener import Listener


def check_engine(choice: EngineChoice, device: str) -> str:
    """Return where this process computes under an engine, of where it was told to.

    Raises:
        UserError: where what the engine needs is not there, or the device is not one that it computes on.
    """
    if choice.name == "local":
        return device
    from fedpriv.experiment.flower.switches import require_flower

    simulation = choice.superlink is None
    require_flower(simulation=simulation)
    if simulation and device not in ("auto", "cpu"):
        raise UserError(
            f"{argument('device', device)}: simulated nodes compute on the CPU; use cpu, or the local engine"
        )
    return "cpu" if simulation else device


@contextmanager
def opened(federation: Federation, engine: Engine | None = None) -> Iterator[Engine]:
    """Open the engine that a federation's configuration names, or give the one that is handed in."""
    choice = federation.config.engine
    if engine is not None:
        yield engine
    elif choice.name == "local":
        from fedpriv.federation.engines.local import run_clients

        yield run_clients
    else:
        from fedpriv.experiment.flower.simulation import simulated

        with simulated(choice.nodes or len(federation.participants(1))) as simulation:
            yield simulation


def deployed(directory: RunDirectory, device: str, listener: Listener) -> RunSummary:
    """Have a SuperLink run what a run directory describes, or the rest of it; return its summary."""
    from fedpriv.experiment.flower.deployment import submit

    return submit(directory, device, listener)
