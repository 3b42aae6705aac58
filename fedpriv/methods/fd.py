"""FD (federated distillation, FedDistill): exchange the mean output of each class.

Source: Jeong, Oh, Kim, Park, Bennis, Kim: Communication-Efficient On-Device Machine Learning: Federated
Distillation and Augmentation under Non-IID Private Data, NeurIPS 2018 workshop on machine learning on the phone. A
client minimises

    CE(z, y) + lambda * D(t_y, z),

where z are its logits and t_y is the global mean output of the sample's class, or the client's own detached output
where nobody has sent one. What the outputs are and how they are compared is ``targets``:

- ``softmax`` (default, the paper): softmax vectors, D is cross-entropy with t_y as soft labels;
- ``logits_mse``: logits, D is the mean squared error;
- ``raw``: logits, D is cross-entropy with t_y as if it were a distribution. This is what HtFLlib does; t_y has
  negative entries and any sum, the loss is unbounded below, and training diverges. For parity only.

The server averages each class's outputs over the clients that sent it, every client counting once, the receiver
among them (the paper leaves the receiver out; HtFLlib does not). A class that nobody sent in a round keeps its last
mean. Outputs are collected in evaluation mode after training, over all training samples, or (``collect =
"training"``, as the paper and HtFLlib) in training mode from the batches that the client trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

from fedpriv.federation.local_training import class_means, classify, train
from fedpriv.federation.method import ClientSetup, Method, ServerSetup, State, Uploads
from fedpriv.federation.states import put, take
from fedpriv.methods.shared import personal_model
from fedpriv.methods.shared.class_table import ClassTable
from fedpriv.wire.payloads import ClassLogits, Message, find_payload, get_payload

VALUES, KNOWN = "logits.values", "logits.known"
OUTPUTS = ClassTable(VALUES, KNOWN)
Targets = Literal["softmax", "logits_mse", "raw"]


@dataclass(frozen=True)
class Options:
    """Hyperparameters of FD.

    Attributes:
        weight: lambda, the weight of distillation; 0 gives local training.
        targets: what is averaged, and how it is compared.
        collect: when a client collects its outputs: ``after`` training or in ``training``.
    """

    weight: Annotated[float, Ge(0)] = 1.0
    targets: Targets = "softmax"
    collect: Literal["after", "training"] = "after"


def init(setup: ClientSetup, rng: torch.Generator) -> State:
    """Return the initial model; no class has a global mean output yet."""
    return personal_model.init(setup, rng) | OUTPUTS.empty(setup.n_classes, setup.n_classes, setup.train.labels.device)


def apply_broadcast(setup: ClientSetup, state: State, broadcast: Message) -> State:
    """Take over the broadcast outputs."""
    received = find_payload(broadcast, ClassLogits)
    return state if received is None else OUTPUTS.replaced(state, received.values, received.classes)


def exchanged(logits: Tensor, targets: Targets) -> Tensor:
    """Return the averaged form of logits ``(n, C)``: their softmax, or themselves."""
    return logits.softmax(1) if targets == "softmax" else logits


def distillation(logits: Tensor, wanted: Tensor, targets: Targets) -> Tensor:
    """Return the mean distance of logits ``(n, C)`` from target outputs ``(n, C)``."""
    return mse_loss(logits, wanted) if targets == "logits_mse" else cross_entropy(logits, wanted)


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train by cross-entropy and distillation; upload the mean output of each class."""
    options: Options = setup.options
    state, model = apply_broadcast(setup, state, broadcast), setup.model
    put(model, state, "model")
    values, known = state[VALUES], state[KNOWN]
    distil = bool(known.any())
    seen: list[tuple[Tensor, Tensor]] = []

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        logits: Tensor = model(images)
        own = exchanged(logits.detach(), options.targets)
        if options.collect == "training":
            seen.append((own, labels))
        value = cross_entropy(logits, labels)
        if not distil:
            return value
        wanted = torch.where(known[labels][:, None], values[labels], own)
        return value + options.weight * distillation(logits, wanted, options.targets)

    train(model, setup.train, setup.training, rng, loss, setup.trace)
    if options.collect == "after":
        seen = [(exchanged(classify(model, setup.train.images), options.targets), setup.train.labels)]
    outputs = torch.cat([values[:0], *(own for own, _ in seen)])
    means, classes, _ = class_means(outputs, torch.cat([setup.train.labels[:0], *(labels for _, labels in seen)]))
    return state | take(model, "model"), (ClassLogits(means, classes),)


def start(setup: ServerSetup, rng: torch.Generator) -> tuple[State, Message]:
    """Start without outputs; the first broadcast is empty."""
    return OUTPUTS.empty(setup.blueprint.n_classes, setup.blueprint.n_classes, setup.device), ()


def server_step(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> tuple[State, Message]:
    """Average each class's outputs over the clients that sent it, every client counting once."""
    sent = [get_payload(upload, ClassLogits) for _, upload in uploads]
    state = OUTPUTS.averaged(state, [(own.values, own.classes, None) for own in sent])
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
    predict=personal_model.predict,
)
