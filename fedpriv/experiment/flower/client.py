"""A node of Flower's: it runs any client's part of any round, and keeps nothing but the federation it prepared last."""

from __future__ import annotations

import functools
import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedpriv.experiment.federation import prepare
from fedpriv.experiment.flower.wire import fingerprint, pack_refusal, pack_result, read_job
from fedpriv.federation.engine import client_part
from fedpriv.federation.prepared import Federation
from fedpriv.federation.run_directory import RunConfig
from fedpriv.federation.states import message_on, on_device
from fedpriv.util.config import parse, plain
from fedpriv.util.device import pick_device
from fedpriv.util.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping


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
        content = pack_result(_part(message.content, context.node_config))
    except UserError as error:  # the same anywhere: the run has to end, and its user to hear of it
        asked = message.content.get("about") or {}
        content = pack_refusal(int(asked.get("client", -1)), str(error) or "refused")
    return Message(content, reply_to=message)


def _part(records: Any, node: Mapping[str, Any]) -> Any:
    asked = read_job(records)
    config, job = asked.config, asked.job
    if "data-dir" in node:
        config = replace(config, data_dir=os.path.realpath(str(node["data-dir"])))
    federation = _prepared(json.dumps(plain(config), sort_keys=True), str(node.get("device", asked.device)))
    if fingerprint(federation.clients[job.client]) != asked.data:
        raise UserError(
            f"client {job.client}: its images on the node are not those on the server; "
            "give the node the same data set (--node-config data-dir)"
        )
    device = federation.server.device
    own = replace(job, state=on_device(device, job.state), broadcast=message_on(device, job.broadcast))
    return client_part(federation, own)


@functools.lru_cache(maxsize=1)
def _prepared(config: str, device: str) -> Federation:
    return prepare(parse(RunConfig, json.loads(config), "configuration of the run"), pick_device(device))
