"""Nodes simulated on this machine, by Flower's simulation on Ray."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Queue
from typing import Any, Final

from fedpriv.experiment.flower.engine import FlowerEngine
from fedpriv.experiment.flower.switches import require_flower, switch_off
from fedpriv.util.code import carried, exported
from fedpriv.util.errors import WorkError

ENDS_IN: Final = 60.0
"""Seconds that a simulation is given to end by itself."""


@contextmanager
def simulated(nodes: int) -> Iterator[FlowerEngine]:
    """Run a simulation of so many nodes beside this thread, and give the engine that uses them.

    As many nodes compute at a time as this machine has processors.

    Raises:
        UserError: where Flower or Ray is not installed.
        WorkError: where the simulation cannot be started.
    """
    require_flower(simulation=True)
    switch_off()
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    from fedpriv.experiment.flower.client import answer

    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    grids: Queue[Any] = Queue()
    over, faults = threading.Event(), list[str]()

    def hand_over(grid: Any, context: Any) -> None:
        grids.put(grid)
        over.wait()

    def simulate() -> None:
        server, client = ServerApp(), ClientApp()
        server.main()(hand_over)
        client.train()(answer)
        quiet = {"logging_level": logging.CRITICAL, "log_to_driver": False, "include_dashboard": False}
        resources = {"num_cpus": 1, "num_gpus": 0.0}
        try:
            with exported():
                run_simulation(
                    server, client, nodes, backend_config={"init_args": quiet, "client_resources": resources}
                )
        except BaseException as error:
            faults.append(
                f"Flower's simulation ended: {type(error.__cause__ or error).__name__}: {error.__cause__ or error}"
            )
        finally:
            grids.put(None)

    thread = threading.Thread(target=carried(simulate), name="flower-simulation", daemon=True)
    thread.start()
    try:
        grid = grids.get()
        if grid is None:
            raise WorkError(faults[0] if faults else "Flower's simulation did not start")
        yield FlowerEngine(grid, "cpu", nodes=nodes, fault=lambda: faults[0] if faults else "")
    finally:
        over.set()
        thread.join(ENDS_IN)
