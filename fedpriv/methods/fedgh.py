"""FedGH: upload class prototypes; the server trains a global head on them.

Source: Yi, Wang, Liu, Shi, Yu: FedGH: Heterogeneous Federated Learning with Generalized Global Header, ACM MM 2023.
Prototypes are exact class means taken in evaluation mode after training (the official code averages per-batch means of
a network in training mode). Each prototype is one training row for the head, by mean cross-entropy over a batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from fedpriv.federation.local_training import class_means, represent
from fedpriv.federation.method import ClientSetup, Method, ServerSetup, State, Uploads
from fedpriv.methods.shared import global_head, personal_model
from fedpriv.methods.shared.global_head import HeadTraining
from fedpriv.wire.payloads import Message, Prototypes


@dataclass(frozen=True)
class Options:
    """Hyperparameters of FedGH.

    Attributes:
        server: how the server trains the head.
    """

    server: HeadTraining = field(default_factory=HeadTraining)


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train by cross-entropy; upload the mean representation of every class the client holds."""
    trained = global_head.train_locally(setup, state, broadcast, rng)
    means, classes, _ = class_means(represent(setup.model, setup.train.images), setup.train.labels)
    return trained, (Prototypes(means, classes),)


def server_step(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> tuple[State, Message]:
    """Train the head on every uploaded prototype, or on what a defense made of them."""
    features, targets = global_head.uploaded_rows(uploads, setup.blueprint.n_classes)
    return global_head.train_head(state, features, targets, setup.options.server, rng, "mean")


METHOD = Method(
    name="fedgh",
    source="Yi et al., ACM MM 2023",
    options=Options,
    uploads=("prototype",),
    broadcasts=("classifier",),
    start=global_head.start,
    init=personal_model.init,
    apply_broadcast=global_head.apply_broadcast,
    client_step=client_step,
    server_step=server_step,
    predict=personal_model.predict,
    accepted_substitutes=("entangled",),
)
