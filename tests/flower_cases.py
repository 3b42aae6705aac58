"""A Flower federation in one process: a grid that calls client apps itself, and logs every byte that crosses it."""

import os
from copy import deepcopy
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1", RAY_USAGE_STATS_ENABLED="0")
pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedpriv[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import recorddict_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

__all__ = [
    "Array",
    "ArrayRecord",
    "ClientApp",
    "ConfigRecord",
    "Error",
    "LocalGrid",
    "Message",
    "MetricRecord",
    "RecordDict",
]


class LocalGrid(Grid):
    """Calls one client app for every node, in order; nodes named in ``failing`` answer with an error, ``silent`` never."""

    def __init__(self, client, partitions, *, failing=(), silent=()):
        self.client, self.failing, self.silent = client, failing, silent
        self.contexts = {
            node: Context(1, node, {"partition-id": part, "num-partitions": len(partitions)}, RecordDict(), {})
            for node, part in partitions.items()
        }
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # a running app has them
        self.wire, self.waiting, self.names = [], {}, count(1)

    def set_run(self, run):
        self.own_run = run

    @property
    def run(self):
        return SimpleNamespace(run_id=1)

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        return Message(content, dst_node_id, message_type, group_id=group_id)

    def get_node_ids(self):
        return list(self.contexts)

    def push_messages(self, messages):
        names = []
        for message in messages:
            self.wire.append(serialised(message))
            name = message.metadata.__dict__["_message_id"] = str(next(self.names))
            node = message.metadata.dst_node_id
            names.append(name)
            if node in self.failing:
                self.waiting[name] = Message(Error(1, "out of memory"), reply_to=message)
            elif node not in self.silent:
                reply = self.client(deepcopy(message), self.contexts[node])  # clients may change what they got
                reply.metadata.__dict__["_reply_to_message_id"] = name
                self.wire.append(serialised(reply))
                self.waiting[name] = reply
        return names

    def pull_messages(self, message_ids):
        return [self.waiting.pop(name) for name in list(message_ids) if name in self.waiting]

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(messages))


def serialised(message):
    meta = message.metadata
    about = (meta.message_type, meta.src_node_id, meta.dst_node_id, meta.group_id)
    return about, message.has_content() and recorddict_to_proto(message.content).SerializeToString(deterministic=True)


def adding_client(*mods):
    """Return an app that adds its partition's number and one to every array."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message, context):
        partition = context.node_config["partition-id"]
        arrays = {
            name: Array(one.numpy() + np.float32(partition + 1)) for name, one in message.content["arrays"].items()
        }
        reply = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 10 + partition})}
        return Message(RecordDict(reply), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 10, "acc": 0.5})}), reply_to=message)

    return app
