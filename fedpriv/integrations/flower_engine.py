"""Flower as an engine: a round's jobs are spread over nodes that are simulated here, and awaited for so long.

A job carries the run's configuration, so that any node can run any client, and keeps nothing: private states go with the job
and come back with the result, in a record of their own beside the upload.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from queue import Queue
from typing import Any, Final

import torch
from torch import Tensor

from fedpriv.federation.capture import trace_blocks, trace_of
from fedpriv.federation.prepared import Federation
from fedpriv.federation.rounds import ClientJob, ClientResult
from fedpriv.federation.run_directory import RunConfig
from fedpriv.federation.states import message_on, on_device
from fedpriv.uploads.messages import message_blocks, message_of
from fedpriv.uploads.payload import Message, from_array
from fedpriv.util.config import parse, plain
from fedpriv.util.errors import UserError, WorkError, short_line
from fedpriv.util.registry import exported

PAUSE: Final = 0.1  # seconds between looks for answers, and for nodes
LINGERS: Final = 60.0  # seconds that a message outlives its time, so that the engine tells which client was late
ENDS_IN: Final = 60.0  # seconds that a simulation is given to end by itself

OFF: Final = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",
}
"""Environment in which Flower reports nothing, looks for no update and installs no app's dependencies, nor Ray reports. The
last two take back a warning of Ray's about devices that simulated nodes do not use, and its habit to let them wait for every
other process of the machine, by which they were seen to starve."""


def require_flower() -> None:
    """Check that Flower is installed, with what it simulates by."""
    for name in ("flwr", "ray"):
        if importlib.util.find_spec(name) is None:
            raise UserError(f"engine='flower': needs {name}, which is not installed: pip install \"fedpriv[flower]\"")


class FlowerEngine:
    """Runs the jobs of rounds on the nodes of a Flower federation; see :data:`fedpriv.federation.rounds.Engine`.

    Nodes take turns, whichever are there as the round begins; the first round waits for so many. None keeps anything of a
    client: one that goes away takes no state with it, and one that comes late is told all it needs. ``device`` is where
    nodes compute, unless they know better; ``fault`` tells of a fault of what is behind the ``flwr.serverapp.Grid``.
    """

    def __init__(self, grid: Any, device: str, *, nodes: int = 1, fault: Callable[[], str] = str) -> None:
        self._grid, self._device, self._least_nodes, self._fault = grid, device, nodes, fault

    def __call__(self, federation: Federation, jobs: Sequence[ClientJob]) -> Iterator[ClientResult]:
        """Run the jobs of a round; WorkError where a client fails, or has not answered in time."""
        seconds, device = federation.config.engine.client_timeout, federation.server.device
        until = time.monotonic() + seconds
        nodes = self._nodes(until)
        numbers = {}
        for index, job in enumerate(jobs):
            numbers[self._send(federation, job, nodes[index % len(nodes)], seconds)] = job.client
        results: dict[int, ClientResult] = {}
        for client in [*numbers.values()]:
            while client not in results:
                if time.monotonic() >= until:
                    raise WorkError(f"client {client}: no answer in {seconds:g} s")
                if not self._collect(numbers, results, device):
                    time.sleep(PAUSE)
            yield results.pop(client)

    def _nodes(self, until: float) -> list[int]:
        """Return the nodes that are there, ascending; wait for some until a moment."""
        while True:
            self._refuse_fault()
            nodes = sorted(self._grid.get_node_ids())  # none at first, whichever are there
            if len(nodes) >= self._least_nodes or (nodes and time.monotonic() >= until):
                self._least_nodes = 1
                return nodes
            if time.monotonic() >= until:
                raise WorkError("no node of the federation is there")
            time.sleep(PAUSE)

    def _send(self, federation: Federation, job: ClientJob, node: int, seconds: float) -> str:
        """Send one job alone, since a request has a largest size; return its message's id."""
        from flwr.app import Message

        content, group, lives = pack_job(federation.config, self._device, job), str(job.round), seconds + LINGERS
        message = Message(content, dst_node_id=node, message_type="train", group_id=group, ttl=lives)
        for sent in self._grid.push_messages([message]):
            return str(sent)
        raise WorkError(f"client {job.client}: its job could not be sent")

    def _collect(self, numbers: dict[str, int], results: dict[int, ClientResult], device: torch.device) -> bool:
        """Take the answers that have come in; False where there were none."""
        self._refuse_fault()
        replies = list(self._grid.pull_messages([*numbers]))
        for reply in replies:
            client = numbers.pop(reply.metadata.reply_to_message_id)
            if reply.has_error():
                why = short_line(str(reply.error.reason or f"Flower's error {reply.error.code}"))
                raise WorkError(f"client {client} failed: {why}")
            results[client] = read_result(reply.content, client, device)
        return bool(replies)

    def _refuse_fault(self) -> None:
        if fault := self._fault():
            raise WorkError(fault)


_STATE, _BROADCAST, _UPLOAD, _TRACE, _ABOUT = "private-state", "broadcast", "upload", "private-trace", "about"


def pack_job(config: RunConfig, device: str, job: ClientJob) -> Any:
    """Return the ``flwr.app.RecordDict`` of a job."""
    words = {"config": json.dumps(plain(config), sort_keys=True), "device": device, "kinds": _kinds(job.broadcast)}
    tensors = {_STATE: job.state, _BROADCAST: message_blocks(job.broadcast)}
    return _records({**words, "round": job.round, "client": job.client}, tensors)


def read_job(records: Any) -> tuple[RunConfig, str, ClientJob]:
    """Return the configuration of the run, the device to compute on, and the job, on the CPU."""
    about = records[_ABOUT]
    config = parse(RunConfig, json.loads(about["config"]), "configuration of the run")
    state, broadcast = _read(records, _STATE), message_of("broadcast", _kinds_of(about), _read(records, _BROADCAST))
    return config, about["device"], ClientJob(about["round"], about["client"], state, broadcast)


def pack_result(result: ClientResult) -> Any:
    """Return the ``flwr.app.RecordDict`` of a result: the upload, and what is private to the client."""
    about = {"client": result.client, "kinds": _kinds(result.upload), "refused": ""}
    private = {_STATE: result.state, _TRACE: trace_blocks(result.trace)}
    return _records(about, {_UPLOAD: message_blocks(result.upload), **private})


def pack_refusal(client: int, why: str) -> Any:
    """Return the ``flwr.app.RecordDict`` of a job that the user's settings make impossible."""
    return _records({"client": client, "kinds": "", "refused": why}, {})


def read_result(records: Any, client: int, device: torch.device) -> ClientResult:
    """Return a result, on a device."""
    about = records[_ABOUT]
    if about["refused"]:
        raise UserError(about["refused"])
    upload, trace = message_of("upload", _kinds_of(about), _read(records, _UPLOAD)), trace_of(_read(records, _TRACE))
    return ClientResult(client, on_device(device, _read(records, _STATE)), message_on(device, upload), trace)


def _kinds(message: Message) -> str:
    return ",".join(payload.kind for payload in message)


def _kinds_of(about: Mapping[str, Any]) -> list[str]:
    return [kind for kind in about["kinds"].split(",") if kind]


def _records(about: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> Any:
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    arrays = {
        name: ArrayRecord({key: Array(value.detach().cpu().contiguous().numpy()) for key, value in values.items()})
        for name, values in tensors.items()
    }
    return RecordDict({_ABOUT: ConfigRecord(dict(about)), **arrays})


def _read(records: Any, name: str) -> dict[str, Tensor]:
    return {key: from_array(f"record {name!r}: {key!r}", array.numpy()) for key, array in records[name].items()}


@contextmanager
def simulated(nodes: int, answer: Callable[[Any, Any], Any]) -> Iterator[FlowerEngine]:
    """Run Flower's simulation of so many nodes, on Ray, beside this thread, and give the engine that uses them.

    As many nodes compute at a time as this machine has processors.
    """
    require_flower()
    os.environ.update(OFF)  # Flower reads some of it when it is imported
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

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
        backend = {"init_args": quiet, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
        try:
            with exported():
                run_simulation(server, client, nodes, backend_config=backend)
        except BaseException as error:
            cause = error.__cause__ or error
            faults.append(f"Flower's simulation ended: {type(cause).__name__}: {cause}")
        finally:
            grids.put(None)

    thread = threading.Thread(target=copy_context().run, args=(simulate,), name="flower-simulation", daemon=True)
    thread.start()
    try:
        grid = grids.get()
        if grid is None:
            raise WorkError(faults[0] if faults else "Flower's simulation did not start")
        yield FlowerEngine(grid, "cpu", nodes=nodes, fault=lambda: faults[0] if faults else "")
    finally:
        over.set()
        thread.join(ENDS_IN)
