"""A head that the server trains on uploaded rows, and that replaces every client's head (FedAllRep, FedGH, FedRE).

Clients train by cross-entropy. The head starts as a copy of the clients' common initial head.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear, one_hot

from fedpriv.federation.method import ServerSetup, Uploads
from fedpriv.federation.states import State, inner
from fedpriv.methods.weights import ServerTraining, descend
from fedpriv.uploads.payloads import (
    Classifier,
    Entangled,
    Message,
    Prototypes,
    Representations,
    find_payload,
    get_payload,
)


@dataclass(frozen=True)
class HeadOptions:
    """Hyperparameters of FedAllRep and FedGH.

    Attributes:
        server: how the server trains the head.
    """

    server: ServerTraining = field(default_factory=ServerTraining)


def uploaded_rows(uploads: Uploads, n_classes: int) -> tuple[Tensor, Tensor]:
    """Return a round's rows ``(n, d)`` with classes ``(n,)``, or soft labels ``(n, C)`` where any upload is entangled."""
    rows: list[tuple[Tensor, Tensor]] = []
    for _, upload in uploads:
        mixed, means = find_payload(upload, Entangled), find_payload(upload, Prototypes)
        if mixed is not None:
            rows.append((mixed.feature[None], mixed.label_encoding[None]))
        elif means is not None:
            rows.append((means.features, means.classes))
        else:
            single = get_payload(upload, Representations)
            rows.append((single.features, single.labels))
    targets = [target for _, target in rows]
    if any(target.dim() == 2 for target in targets):
        targets = [target if target.dim() == 2 else one_hot(target, n_classes).float() for target in targets]
    return torch.cat([features for features, _ in rows]), torch.cat(targets)


def train_head(
    reduction: Literal["mean", "sum"], setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator
) -> tuple[State, Message]:
    """Train the head on a round's rows, or on what a defense made of them; ``reduction`` is of the loss of a batch."""
    features, targets = uploaded_rows(uploads, setup.blueprint.n_classes)

    def loss(head: State, index: Tensor) -> Tensor:
        logits = linear(features[index], head["global.weight"], head["global.bias"])
        return cross_entropy(logits, targets[index], reduction=reduction)

    trained = descend(state, features, loss, setup.options.server, rng)
    return trained, (Classifier(inner(trained, "global")),)
