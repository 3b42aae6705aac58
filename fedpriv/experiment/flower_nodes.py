"""The apps of Flower's server and nodes: a node runs any client's part of any round, and keeps no state of a client.

A SuperLink and its SuperNodes import this module from the fedpriv that is installed where they are.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedpriv.experiment.federation import prepare
from fedpriv.experiment.training import train_run
from fedpriv.federation.engine import ClientResult, client_part
from fedpriv.federation.prepared import Federation
from fedpriv.federation.run_directory import RunConfig, RunDirectory
from fedpriv.federation.states import message_on, on_device
from fedpriv.integrations.flower_deployment import Outcome, write_outcome
from fedpriv.integrations.flower_engine import FlowerEngine
from fedpriv.integrations.flower_wire import fingerprint, pack_refusal, pack_result, read_job
from fedpriv.util.arguments import spelled
from fedpriv.util.code import OfAnotherProcess
from fedpriv.util.config import parse, plain
from fedpriv.util.device import pick_device
from fedpriv.util.errors import UserError, WorkError


def serve(grid: Any, context: Any) -> None:
    """Run what a run directory describes, or the rest of it, on the nodes of a SuperLink, and leave word of how it went.

    Args:
        grid: a ``flwr.serverapp.Grid``.
        context: a ``flwr.app.Context``, whose run configuration names the directory and the device.
    """
    path, device = Path(str(context.run_config["run"])), str(context.run_config["device"])
    try:
        with spelled(OfAnotherProcess()):
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


def answer(message: Any, context: Any) -> Any:
    """Return the reply to a message that asks for a client's part of a round.

    Of the node's own configuration, ``data-dir`` says where the data set lies on this machine, and ``device`` where to
    compute, in place of what the server says.

    Args:
        message: a ``flwr.app.Message``.
        context: the node's ``flwr.app.Context``.
    """
    from flwr.app import Message

    try:
        with spelled(OfAnotherProcess()):
            content = pack_result(_part(message.content, context.node_config))
    except UserError as error:  # the same anywhere: the run has to end, and its user to hear of it
        about = message.content.get("about") or {}
        content = pack_refusal(int(about.get("client", -1)), str(error) or "refused")
    return Message(content, reply_to=message)


def _part(records: Any, node: Mapping[str, Any]) -> ClientResult:
    config, device_name, job, data = read_job(records)
    if "data-dir" in node:
        config = replace(config, data_dir=os.path.realpath(str(node["data-dir"])))
    federation = _prepared(json.dumps(plain(config), sort_keys=True), str(node.get("device", device_name)))
    if fingerprint(federation.clients[job.client]) != data:
        raise UserError(
            f"client {job.client}: its images on the node are not those on the server; "
            "give the node the same data set (--node-config data-dir)"
        )
    device = federation.server.device
    there = replace(job, state=on_device(device, job.state), broadcast=message_on(device, job.broadcast))
    return client_part(federation, there)


@functools.lru_cache(maxsize=1)
def _prepared(config: str, device: str) -> Federation:
    return prepare(parse(RunConfig, json.loads(config), "configuration of the run"), pick_device(device))


if find_spec("flwr") is not None:  # a process that imports all modules need not have it
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

    server_app, client_app = ServerApp(), ClientApp()
    server_app.main()(serve)
    client_app.train()(answer)
