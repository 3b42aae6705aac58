"""FD (federated distillation, FedDistill): exchange the mean output of each class.

Source: Jeong, Oh, Kim, Park, Bennis, Kim: Communication-Efficient On-Device Machine Learning: Federated
Distillation and Augmentation under Non-IID Private Data, NeurIPS 2018 workshop on machine learning on the phone. A
client minimises

    CE(z, y) + lambda * CE(z, t_y),

where z are its logits and t_y is the global mean softmax output of the sample's class, or the client's own detached output
where there is none yet. (HtFLlib takes mean logits for t_y, with which the loss has no lower bound.)

The server averages each class's outputs over the clients that sent it, every client counting once, the receiver
among them (the paper leaves the receiver out; HtFLlib does not). A class that no client sent in a round keeps its last
mean. Outputs are collected in evaluation mode after training, over all training samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedpriv.federation.local_training import class_means, classify, train
from fedpriv.federation.method import ClientSetup, Method, ServerSetup, Uploads
from fedpriv.federation.states import State, put, take
from fedpriv.methods.shared import weights
from fedpriv.methods.shared.prototypes import ClassTable
from fedpriv.wire.payloads import ClassLogits, Message, find_payload, get_payload

VALUES, KNOWN = "logits.values", "logits.known"
OUTPUTS = ClassTable(VALUES, KNOWN)


@dataclass(frozen=True)
class Options:
    """Hyperparameters of FD.

    Attributes:
        weight: lambda, the weight of distillation; 0 gives local training.
    """

    weight: Annotated[float, Ge(0)] = 1.0


def init(setup: ClientSetup, rng: torch.Generator) -> State:
    """Return the initial model; no class has a global mean output yet."""
    return weights.init(setup, rng) | OUTPUTS.empty(setup.n_classes, setup.n_classes, setup.train.labels.device)


def apply_broadcast(setup: ClientSetup, state: State, broadcast: Message) -> State:
    """Take over the broadcast outputs."""
    received = find_payload(broadcast, ClassLogits)
    return state if received is None else OUTPUTS.replaced(state, received.values, received.classes)


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train by cross-entropy and distillation; upload the mean output of each class."""
    state, model = apply_broadcast(setup, state, broadcast), setup.model
    put(model, state, "model")
    values, known = state[VALUES], state[KNOWN]
    distil = bool(known.any())

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        logits: Tensor = model(images)
        value = cross_entropy(logits, labels)
        if distil:
            wanted = torch.where(known[labels][:, None], values[labels], logits.detach().softmax(1))
            value = value + setup.options.weight * cross_entropy(logits, wanted)
        return value

    train(model, setup.train, setup.training, rng, loss, setup.trace)
    means, classes, _ = class_means(classify(model, setup.train.images).softmax(1), setup.train.labels)
    return state | take(model, "model"), (ClassLogits(means, classes),)


def start(setup: ServerSetup, rng: torch.Generator) -> tuple[State, Message]:
    """Start without outputs; the first broadcast is empty."""
    return OUTPUTS.empty(setup.blueprint.n_classes, setup.blueprint.n_classes, setup.device), ()


def server_step(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> tuple[State, Message]:
    """Average each class's outputs over the clients that sent it, every client counting once."""
    sent = [get_payload(upload, ClassLogits) for _, upload in uploads]
    state = OUTPUTS.averaged(state, [(current.values, current.classes, None) for current in sent])
    return state, (ClassLogits(*OUTPUTS.rows(state)),)


METHOD = Method(
    name="fd",
    source="Jeong et al., NeurIPS 2018 workshop",
    options=Options,
    uploads=("logits",),
    broadcasts=("logits",),
    start=start,
    init=init,
    apply_broadcast=apply_broadcast,
    client_step=client_step,
    server_step=server_step,
    predict=weights.predict,
)
