"""A head that the server trains on what clients upload and that replaces every client's head.

Shared by FedAllRep, FedGH and FedRE, which differ in what is uploaded. The server's head starts as the clients' common
initial head, in a copy of its own: reference code hands out the very object that client 0 trains, so that all clients
receive client 0's head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn.functional import cross_entropy, linear, one_hot

from fedpriv.federation.local_training import classification_loss, train
from fedpriv.federation.method import ClientSetup, ServerSetup, State, Uploads
from fedpriv.federation.states import inner, outer, put, take
from fedpriv.methods.shared.personal_model import draw_seed
from fedpriv.models.build import build_model
from fedpriv.wire.payloads import Classifier, Entangled, Message, Prototypes, Representations, find_payload, get_payload


@dataclass(frozen=True)
class HeadTraining:
    """The server's training of the head: plain SGD.

    Attributes:
        learning_rate: step size.
        batch_size: uploaded rows a step.
        epochs: passes over the round's uploads.
    """

    learning_rate: Annotated[float, Gt(0)] = 0.01
    batch_size: Annotated[int, Ge(1)] = 10
    epochs: Annotated[int, Ge(1)] = 1


def start(setup: ServerSetup, rng: torch.Generator) -> tuple[State, Message]:
    """Build the initial head and broadcast it."""
    head = take(build_model(setup.blueprint, draw_seed(rng)).head, "head")
    head = {name: value.to(setup.device) for name, value in head.items()}
    return head, (Classifier(inner(head, "head")),)


def apply_broadcast(setup: ClientSetup, state: State, broadcast: Message) -> State:
    """Replace the client's head by the broadcast one."""
    head = get_payload(broadcast, Classifier).state
    return state | outer({name: value.clone() for name, value in head.items()}, "model.head")


def train_locally(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> State:
    """Receive the head, train the whole model by cross-entropy; leaves the result in ``setup.model`` too."""
    put(setup.model, apply_broadcast(setup, state, broadcast), "model")
    train(setup.model, setup.train, setup.training, rng, classification_loss(setup.model), setup.trace)
    return take(setup.model, "model")


def uploaded_rows(uploads: Uploads, n_classes: int) -> tuple[Tensor, Tensor]:
    """Return a round's rows ``(n, d)`` with classes ``(n,)``, or soft labels ``(n, C)`` where any upload is entangled."""
    features: list[Tensor] = []
    targets: list[Tensor] = []
    for _, upload in uploads:
        mixed, prototypes = find_payload(upload, Entangled), find_payload(upload, Prototypes)
        if mixed is not None:
            features.append(mixed.feature[None])
            targets.append(mixed.label_encoding[None])
        elif prototypes is not None:
            features.append(prototypes.features)
            targets.append(prototypes.classes)
        else:
            rows = get_payload(upload, Representations)
            features.append(rows.features)
            targets.append(rows.labels)
    if any(target.dim() == 2 for target in targets):
        targets = [target if target.dim() == 2 else one_hot(target, n_classes).float() for target in targets]
    return torch.cat(features), torch.cat(targets)


def train_head(
    state: State,
    features: Tensor,
    targets: Tensor,
    options: HeadTraining,
    rng: torch.Generator,
    reduction: Literal["mean", "sum"],
) -> tuple[State, Message]:
    """Train the head and broadcast it.

    Args:
        state: ``head.weight`` ``(C, d)`` and ``head.bias`` ``(C,)``.
        features: ``(n, d)`` uploaded rows.
        targets: ``(n,)`` int64 classes, or ``(n, C)`` soft labels whose rows sum to one.
        options: SGD hyperparameters.
        rng: draws the order of the rows; the tail batch is used.
        reduction: of the loss within a batch.
    """
    weight = state["head.weight"].clone().requires_grad_()
    bias = state["head.bias"].clone().requires_grad_()
    for _ in range(options.epochs):
        order = torch.randperm(len(features), generator=rng).to(features.device)
        for index in order.split(options.batch_size) if len(order) else ():
            loss = cross_entropy(linear(features[index], weight, bias), targets[index], reduction=reduction)
            for parameter, slope in zip((weight, bias), torch.autograd.grad(loss, (weight, bias)), strict=True):
                parameter.data.add_(slope, alpha=-options.learning_rate)
    trained = {"head.weight": weight.detach(), "head.bias": bias.detach()}
    return trained, (Classifier(inner(trained, "head")),)
