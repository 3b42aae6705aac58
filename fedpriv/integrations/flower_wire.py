"""A client's job and its result as Flower's records: named arrays, and a few words beside them.

A job carries the run's configuration, so that any node can run any client of any run, and keeps nothing: private states go
with the job and come back with the result, in a record of their own beside the upload. What a node would compute with other
data, or with another version of fedpriv, is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

import fedpriv
from fedpriv.federation.capture import trace_blocks, trace_of
from fedpriv.federation.engine import ClientJob, ClientResult
from fedpriv.federation.method import ClientSetup
from fedpriv.federation.run_directory import RunConfig
from fedpriv.federation.states import message_on, on_device
from fedpriv.federation.trace import Trace
from fedpriv.util.config import parse, plain
from fedpriv.util.errors import UserError, shown
from fedpriv.util.foreign import json_value
from fedpriv.wire.messages import message_blocks, message_of
from fedpriv.wire.payload import check_names, from_array

STATE: Final = "private-state"
BROADCAST: Final = "broadcast"
UPLOAD: Final = "upload"
TRACE: Final = "private-trace"
ABOUT: Final = "about"


class NodeJob(NamedTuple):
    """A job as a node gets it, on the CPU.

    Attributes:
        config: of the run.
        device: where to compute, as :func:`fedpriv.util.compute.pick_device` takes it.
        job: the job.
        data: fingerprint of the client's training images, as the server has them.
    """

    config: RunConfig
    device: str
    job: ClientJob
    data: str


class RefusedError(UserError):
    """A node's refusal of a job, for a reason that holds on every node and that the user can mend."""


def fingerprint(setup: ClientSetup) -> str:
    """Return the SHA-256 of a client's training images and classes."""
    sha256 = hashlib.sha256()
    for value in (setup.train.images, setup.train.labels):
        sha256.update(repr((tuple(value.shape), str(value.dtype))).encode())
        sha256.update(value.detach().cpu().contiguous().numpy().tobytes())
    return sha256.hexdigest()


def pack_job(config: RunConfig, device: str, job: ClientJob, data: str) -> Any:
    """Return the ``flwr.app.RecordDict`` of a job."""
    about = {
        "fedpriv": fedpriv.__version__,
        "config": json.dumps(plain(config), sort_keys=True),
        "device": device,
        "data": data,
        "round": job.round,
        "client": job.client,
        "kinds": _kinds(job.broadcast),
    }
    return _records(about, {STATE: job.state, BROADCAST: message_blocks(job.broadcast)})


def read_job(records: Any) -> NodeJob:
    """Return the job that a node is handed."""
    about = _about(records, {"fedpriv": str, "config": str, "device": str, "data": str, "round": int, "client": int})
    if about["fedpriv"] != fedpriv.__version__:
        raise UserError(f"the node has fedpriv {fedpriv.__version__}, the server {about['fedpriv']}; install the same")
    try:
        config = parse(RunConfig, json_value(about["config"]), "configuration of the run")
    except ValueError as error:
        raise UserError(f"configuration of the run: no JSON ({error})") from error
    if not 0 <= about["client"] < config.clients:
        raise UserError(f"client {about['client']}: the run has {config.clients}")
    broadcast = message_of("broadcast", about["kinds"], _read(records, BROADCAST))
    return NodeJob(
        config,
        about["device"],
        ClientJob(about["round"], about["client"], _read(records, STATE), broadcast),
        about["data"],
    )


def pack_result(result: ClientResult) -> Any:
    """Return the ``flwr.app.RecordDict`` of a result: the upload, and what is private to the client."""
    about = {"client": result.client, "kinds": _kinds(result.upload), "refused": ""}
    trace = trace_blocks(result.trace.result())
    return _records(about, {UPLOAD: message_blocks(result.upload), STATE: result.state, TRACE: trace})


def pack_refusal(client: int, why: str) -> Any:
    """Return the ``flwr.app.RecordDict`` of a job that the user's settings make impossible."""
    return _records({"client": client, "kinds": "", "refused": why}, {})


def read_result(records: Any, client: int, device: torch.device) -> ClientResult:
    """Return a result, on a device."""
    about = _about(records, {"client": int, "refused": str})
    if about["refused"]:
        raise RefusedError(about["refused"])
    if about["client"] != client:
        raise UserError(f"client {client} was asked, and client {about['client']} answered")
    upload = message_of("upload", about["kinds"], _read(records, UPLOAD))
    try:
        trace = Trace(trace_of(_read(records, TRACE)))
    except (KeyError, RuntimeError) as error:
        raise UserError(f"client {client}: its trace is damaged ({error})") from error
    return ClientResult(client, on_device(device, _read(records, STATE)), message_on(device, upload), trace)


def _kinds(message: Any) -> str:
    return ",".join(payload.kind for payload in message)


def _about(records: Any, fields: Mapping[str, type]) -> dict[str, Any]:
    """Return the words of a record, with the kinds of its payloads as a list."""
    record = records.get(ABOUT)
    for name, kind in {**fields, "kinds": str}.items():
        value = None if record is None else record.get(name)
        if type(value) is not kind:
            raise UserError(f"record {ABOUT!r}: {name}: expected {kind.__name__}, got {shown(value)}")
    return {**record, "kinds": [kind for kind in record["kinds"].split(",") if kind]}


def _records(about: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> Any:
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    arrays = {
        name: ArrayRecord({key: Array(value.detach().cpu().contiguous().numpy()) for key, value in values.items()})
        for name, values in tensors.items()
    }
    return RecordDict({ABOUT: ConfigRecord(dict(about)), **arrays})


def _read(records: Any, name: str) -> dict[str, Tensor]:
    record = records.get(name)
    if record is None:
        raise UserError(f"record {name!r} is missing")
    check_names(f"record {name!r}", [*record])
    return {key: _tensor(f"record {name!r}: {key!r}", array) for key, array in record.items()}


def _tensor(where: str, array: Any) -> Tensor:
    try:
        values = array.numpy()
    except Exception as error:  # of bytes that came from a node, anything
        raise UserError(f"{where}: not readable as an array ({error})") from error
    return from_array(where, np.ascontiguousarray(values).reshape(values.shape))
