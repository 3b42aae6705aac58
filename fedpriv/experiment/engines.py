"""The engines by name: what each needs to be there, and the one that a run's configuration chooses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fedpriv.experiment.worker_number import number_of_workers
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.util.listener import SILENT, Listener

if TYPE_CHECKING:
    from fedpriv.federation.engine import Engine
    from fedpriv.federation.prepared import Federation
    from fedpriv.federation.run_directory import EngineChoice


def check_engine(choice: EngineChoice, device: str) -> str:
    """Return where this process computes under an engine, of where it was told to.

    Raises:
        UserError: where what the engine needs is not there, or the device is not one that it computes on.
    """
    if choice.name == "local":
        return device
    from fedpriv.integrations.flower_engine import require_flower

    require_flower()
    if device not in ("auto", "cpu"):
        raise UserError(
            f"{argument('device', device)}: simulated nodes compute on the CPU; use cpu, or the local engine"
        )
    return "cpu"


def refuse_workers(workers: int | str, choice: EngineChoice) -> None:
    """Check a number of processes before anything is made.

    Raises:
        UserError: where it is none, or where an engine runs the clients that has nodes for it.
    """
    number_of_workers(workers, "cpu")
    if choice.name != "local" and str(workers) not in ("auto", "1"):
        raise UserError(f"{argument('workers', workers)}: goes with the local engine; {choice.name} has its own nodes")


@contextmanager
def opened(federation: Federation, clients_by: Engine | int | str = 1, listener: Listener = SILENT) -> Iterator[Engine]:
    """Open the engine that a federation's configuration names, or give the one that is handed in.

    Args:
        federation: that is to run.
        clients_by: an engine that was handed in; or, where the engine is ``local``, the processes that run the clients of a
            round: a number, or ``auto``.
        listener: hears of processes that failed.
    """
    choice = federation.config.engine
    if callable(clients_by):
        yield clients_by
    elif choice.name == "local":
        from fedpriv.experiment.client_crew import client_crew

        with client_crew(federation, clients_by, listener) as crew:
            yield crew
    else:
        from fedpriv.experiment.flower_nodes import answer
        from fedpriv.integrations.flower_engine import simulated

        with simulated(choice.nodes or len(federation.participants(1)), answer) as simulation:
            yield simulation
