"""FedAllRep: upload every representation with its label; the server trains the head on all of them.

Source: the baseline of FedRE: A Representation Entanglement Framework for Model-Heterogeneous Federated Learning
(table 4). The server trains by mean cross-entropy with the hyperparameters of the paper's FedRE and FedGH.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import torch

from fedpriv.federation.local_training import represent
from fedpriv.federation.method import ClientSetup, Method, ServerSetup, Uploads
from fedpriv.federation.states import State
from fedpriv.methods.shared import global_head, weights
from fedpriv.methods.shared.global_head import HeadTraining
from fedpriv.wire.payloads import Classifier, Message, Representations


@dataclass(frozen=True)
class Options:
    """Hyperparameters of FedAllRep and FedGH.

    Attributes:
        server: how the server trains the head.
    """

    server: HeadTraining = field(default_factory=HeadTraining)


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train by cross-entropy; upload the representation and label of every training image."""
    trained = weights.train_locally(Classifier, setup, state, broadcast, rng)
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
    start=partial(weights.start, Classifier),
    init=weights.init,
    apply_broadcast=partial(weights.receive, Classifier),
    client_step=client_step,
    server_step=server_step,
    predict=weights.predict,
    accepted_substitutes=("entangled",),
)
