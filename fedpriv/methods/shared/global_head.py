"""A head that the server trains on uploaded rows and that replaces every client's head: FedAllRep, FedGH and FedRE.

It starts as a copy of the clients' common initial head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn.functional import cross_entropy, linear, one_hot

from fedpriv.federation.method import Uploads
from fedpriv.federation.states import State, inner
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
        state: ``global.weight`` ``(C, d)`` and ``global.bias`` ``(C,)``.
        features: ``(n, d)`` uploaded rows.
        targets: ``(n,)`` int64 classes, or ``(n, C)`` soft labels whose rows sum to one.
        options: SGD hyperparameters.
        rng: draws the order of the rows; the tail batch is used.
        reduction: of the loss within a batch.
    """
    weight = state["global.weight"].clone().requires_grad_()
    bias = state["global.bias"].clone().requires_grad_()
    for _ in range(options.epochs):
        order = torch.randperm(len(features), generator=rng).to(features.device)
        for index in order.split(options.batch_size) if len(order) else ():
            loss = cross_entropy(linear(features[index], weight, bias), targets[index], reduction=reduction)
            for parameter, slope in zip((weight, bias), torch.autograd.grad(loss, (weight, bias)), strict=True):
                parameter.data.add_(slope, alpha=-options.learning_rate)
    trained = {"global.weight": weight.detach(), "global.bias": bias.detach()}
    return trained, (Classifier(inner(trained, "global")),)
