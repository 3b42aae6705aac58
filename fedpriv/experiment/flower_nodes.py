"""A node of Flower's: it runs any client's part of any round, and keeps nothing but the federation it prepared last."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from typing import Any

from fedpriv.federation.prepared import Federation
from fedpriv.federation.rounds import ClientResult, client_part
from fedpriv.federation.run_directory import RunConfig
from fedpriv.federation.states import message_on, on_device
from fedpriv.integrations.flower_engine import pack_refusal, pack_result, read_job
from fedpriv.sources.run import prepare
from fedpriv.util.compute import pick_device
from fedpriv.util.config import parse, plain
from fedpriv.util.errors import UserError


def answer(message: Any, context: Any) -> Any:
    """Return the reply to a message that asks for a client's part of a round."""
    from flwr.app import Message

    try:
        content = pack_result(_part(message.content))
    except UserError as error:  # the same anywhere: the run has to end, and its user to hear of it
        about = message.content.get("about") or {}
        content = pack_refusal(int(about.get("client", -1)), str(error) or "refused")
    return Message(content, reply_to=message)


def _part(records: Any) -> ClientResult:
    config, device_name, job = read_job(records)
    federation = _prepared(json.dumps(plain(config), sort_keys=True), device_name)
    device = federation.server.device
    there = replace(job, state=on_device(device, job.state), broadcast=message_on(device, job.broadcast))
    return client_part(federation, there)


@functools.lru_cache(maxsize=1)
def _prepared(config: str, device: str) -> Federation:
    return prepare(parse(RunConfig, json.loads(config), "configuration of the run"), pick_device(device))
