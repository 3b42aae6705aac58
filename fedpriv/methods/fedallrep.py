"""FedAllRep: upload every representation with its label; the server trains the head on all of them.

Source: the baseline of FedRE: A Representation Entanglement Framework for Model-Heterogeneous Federated Learning
(table 4). The paper says only that the server trains the global classifier; here by mean cross-entropy over a batch,
one epoch of plain SGD a round, the hyperparameters of its FedRE and FedGH.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from fedpriv.federation.local_training import represent
from fedpriv.federation.method import ClientSetup, Method, ServerSetup, State, Uploads
from fedpriv.methods.shared import global_head, personal_model
from fedpriv.methods.shared.global_head import HeadTraining
from fedpriv.wire.payloads import Message, Representations


@dataclass(frozen=True)
class Options:
    """Hyperparameters of FedAllRep and FedGH.

    Attributes:
        server: how the server trains the head.
    """

    server: HeadTraining = field(default_factory=HeadTraining)


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train by cross-entropy; upload the representation and label of every training image."""
    trained = global_head.train_locally(setup, state, broadcast, rng)
    return trained, (Representations(represent(setup.model, setup.train.images), setup.train.labels),)


def server_step(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> tuple[State, Message]:
    """Train the head on every uploaded representation, or on what a defense made of them."""
    features, targets = global_head.uploaded_rows(uploads, setup.blueprint.n_classes)
    return global_head.train_head(state, features, targets, setup.options.server, rng, "mean")


METHOD = Method(
    name="fedallrep",
    source="baseline of FedRE (Yao et al.)",
    options=Options,
    uploads=("representation",),
    broadcasts=("classifier",),
    start=global_head.start,
    init=personal_model.init,
    apply_broadcast=global_head.apply_broadcast,
    client_step=client_step,
    server_step=server_step,
    predict=personal_model.predict,
    accepted_substitutes=("entangled",),
)
