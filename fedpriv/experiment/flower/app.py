"""The app that a SuperLink and its SuperNodes run: they import it from the fedpriv that is installed where they are."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedpriv.experiment.flower.client import answer
from fedpriv.experiment.flower.deployment import Outcome, write_outcome
from fedpriv.experiment.flower.engine import FlowerEngine
from fedpriv.experiment.training import train_run
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.util.errors import UserError, WorkError


def serve(grid: Any, context: Any) -> None:
    """Run what a run directory describes, or the rest of it, on the nodes of a SuperLink, and leave word of how it went.

    Args:
        grid: a ``flwr.serverapp.Grid``.
        context: a ``flwr.app.Context``, whose run configuration names the directory and the device.
    """
    path, device = Path(str(context.run_config["run"])), str(context.run_config["device"])
    try:
        config = RunDirectory.open(path).config
        engine = FlowerEngine(grid, device, nodes=config.engine.nodes or 1)
        train_run(path, config, device=device, resume=True, clients_by=engine)
    except UserError as error:
        write_outcome(path, Outcome(2, str(error)))
    except WorkError as error:
        write_outcome(path, Outcome(1, str(error)))
    except Exception as error:
        write_outcome(path, Outcome(1, f"{type(error).__name__}: {error}"))
        raise
    else:
        write_outcome(path, Outcome(0, ""))


def _server() -> Any:
    from flwr.serverapp import ServerApp

    app = ServerApp()
    app.main()(serve)
    return app


def _client() -> Any:
    from flwr.clientapp import ClientApp

    app = ClientApp()
    app.train()(answer)
    return app


if find_spec("flwr") is not None:  # whoever imports all modules need not have it
    server_app = _server()
    client_app = _client()
