"""A client's job and what came of it as Flower's records: named arrays, and a few words beside them.

A job carries the run's configuration, so that any node can run any client of any run, and keeps nothing: private states go
with the job and come back with the result, in a record of their own beside the upload. What a node would compute with other
data, or with another version of fedpriv, is refused.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

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
from fedpriv.wire.message_files import message_blocks, message_of
from fedpriv.wire.plain_tensor import MOST_VALUES, check_names

STATE: Final = "private-state"
BROADCAST: Final = "broadcast"
UPLOAD: Final = "upload"
TRACE: Final = "private-trace"
ABOUT: Final = "about"
LONGEST_HEADER: Final = 10_000
"""Characters of the header of an array, which NumPy parses."""


@dataclass(frozen=True)
class Asked:
    """A job as a node gets it.

    Attributes:
        config: of the run.
        device: where to compute, as :func:`fedpriv.util.device.pick_device` takes it.
        job: the job, on the CPU.
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
    found = hashlib.sha256()
    for value in (setup.train.images, setup.train.labels):
        found.update(repr((tuple(value.shape), str(value.dtype))).encode())
        found.update(value.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def pack_job(config: RunConfig, device: str, job: ClientJob, data: str) -> Any:
    """Return the ``flwr.app.RecordDict`` of a job."""
    from flwr.app import ConfigRecord, RecordDict

    about = {
        "fedpriv": fedpriv.__version__,
        "config": json.dumps(plain(config), sort_keys=True),
        "device": device,
        "data": data,
        "round": job.round,
        "client": job.client,
        "kinds": _kinds(job.broadcast),
    }
    arrays = {STATE: job.state, BROADCAST: message_blocks(job.broadcast)}
    return RecordDict({ABOUT: ConfigRecord(about)} | {name: _packed(held) for name, held in arrays.items()})


def read_job(records: Any) -> Asked:
    """Return the job that a node is handed.

    Raises:
        UserError: for what is no job of this version.
    """
    about = _about(records, {"fedpriv": str, "config": str, "device": str, "data": str, "round": int, "client": int})
    if about["fedpriv"] != fedpriv.__version__:
        raise UserError(f"the node has fedpriv {fedpriv.__version__}, the server {about['fedpriv']}; install the same")
    try:
        config = parse(RunConfig, json_value(about["config"]), "configuration of the run")
    except ValueError as error:
        raise UserError(f"configuration of the run: no JSON ({error})") from error
    if not 0 <= about["client"] < config.clients:
        raise UserError(f"client {about['client']}: the run has {config.clients}")
    broadcast = message_of("broadcast", _kinds_of(about), _read(records, BROADCAST))
    job = ClientJob(about["round"], about["client"], _read(records, STATE), broadcast)
    return Asked(config, about["device"], job, about["data"])


def pack_result(result: ClientResult) -> Any:
    """Return the ``flwr.app.RecordDict`` of a result: the upload, and what is private to the client."""
    from flwr.app import ConfigRecord, RecordDict

    about = {"client": result.client, "kinds": _kinds(result.upload), "refused": ""}
    arrays = {
        UPLOAD: message_blocks(result.upload),
        STATE: result.state,
        TRACE: trace_blocks(result.trace.result()),
    }
    return RecordDict({ABOUT: ConfigRecord(about)} | {name: _packed(held) for name, held in arrays.items()})


def pack_refusal(client: int, why: str) -> Any:
    """Return the ``flwr.app.RecordDict`` of a job that the user's settings make impossible."""
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({ABOUT: ConfigRecord({"client": client, "kinds": "", "refused": why})})


def read_result(records: Any, client: int, device: torch.device) -> ClientResult:
    """Return a result, on a device.

    Raises:
        RefusedError: where the node refused the job.
        UserError: for what is no result of that client.
    """
    about = _about(records, {"client": int, "refused": str})
    if about["refused"]:
        raise RefusedError(about["refused"])
    if about["client"] != client:
        raise UserError(f"client {client} was asked, and client {about['client']} answered")
    upload = message_of("upload", _kinds_of(about), _read(records, UPLOAD))
    try:
        trace = Trace(trace_of(_read(records, TRACE)))
    except (KeyError, RuntimeError) as error:
        raise UserError(f"client {client}: its trace is damaged ({error})") from error
    return ClientResult(client, on_device(device, _read(records, STATE)), message_on(device, upload), trace)


def _kinds(message: Any) -> str:
    return ",".join(payload.kind for payload in message)


def _kinds_of(about: Mapping[str, Any]) -> list[str]:
    return [kind for kind in about["kinds"].split(",") if kind]


def _about(records: Any, wanted: Mapping[str, type]) -> Mapping[str, Any]:
    found = records.get(ABOUT)
    for name, kind in {**wanted, "kinds": str}.items():
        value = None if found is None else found.get(name)
        if type(value) is not kind:
            raise UserError(f"record {ABOUT!r}: {name}: expected {kind.__name__}, got {shown(value)}")
    return dict(found)


def _packed(tensors: Mapping[str, Tensor]) -> Any:
    from flwr.app import Array, ArrayRecord

    return ArrayRecord({name: Array(value.detach().cpu().contiguous().numpy()) for name, value in tensors.items()})


def _read(records: Any, name: str) -> dict[str, Tensor]:
    found = records.get(name)
    if found is None:
        raise UserError(f"record {name!r} is missing")
    check_names(f"record {name!r}", [*found])
    return {key: _tensor(f"record {name!r}: {key!r}", array) for key, array in found.items()}


def _tensor(where: str, array: Any) -> Tensor:
    """Return an array of Flower's as a tensor; its header is held against its bytes before anything is allocated."""
    held = io.BytesIO(array.data)
    try:
        version = np.lib.format.read_magic(held)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, columns_first, dtype = read(held, max_header_size=LONGEST_HEADER)
    except (ValueError, OverflowError) as error:
        raise UserError(f"{where}: not readable as an array ({error})") from error
    values = int(np.prod([int(side) for side in shape], dtype=object)) if shape else 1
    left = len(array.data) - held.tell()
    if dtype.kind not in "fiub" or dtype.byteorder == ">" or columns_first:
        raise UserError(f"{where}: an array of {dtype}; expected plain numbers, rows first")
    if not 0 <= values <= MOST_VALUES or values * dtype.itemsize != left:
        raise UserError(f"{where}: shape {tuple(shape)} of {dtype}, in {left:,} bytes")
    try:
        return torch.from_numpy(np.frombuffer(array.data, dtype, values, held.tell()).reshape(shape).copy())
    except TypeError as error:
        raise UserError(f"{where}: an array of {dtype}, which no tensor holds") from error
