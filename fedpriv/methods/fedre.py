"""FedRE: one entangled representation and its label encoding are uploaded.

Yao et al.: FedRE: A Representation Entanglement Framework for Model-Heterogeneous Federated Learning, algorithm 1 and
equations 3, 7-12. The server's loss is the plain sum over the uploads of a batch (equation 3), which is cross-entropy
with soft targets, as each label encoding sums to one. The published code leaves the broadcast out; here the head is
broadcast every round, as the paper says.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import torch

from fedpriv.algebra.entanglement import Distribution, Mechanism, Normalisation, entangle, sample_weights
from fedpriv.federation.local_training import represent
from fedpriv.federation.method import ClientSetup
from fedpriv.federation.states import State
from fedpriv.methods.fedallrep import METHOD as FEDALLREP
from fedpriv.methods.server_head import train_head
from fedpriv.methods.weights import ServerTraining, train_locally
from fedpriv.uploads.payloads import Classifier, Entangled, Message

WEIGHTS = "entanglement.weights"
"""Where a client of FedRE keeps fixed weights of its training images ``(n,)`` in its state."""


@dataclass(frozen=True)
class FedReOptions:
    """Hyperparameters of FedRE.

    Attributes:
        mechanism: which of the six entanglement mechanisms.
        distribution: of the random weights (table 8 of the paper).
        normalisation: how draws become weights that sum to one.
        sampling: ``resampled`` draws new weights every round, ``fixed`` draws them once per client.
        server: how the server trains the head.
    """

    mechanism: Mechanism = "RAP"
    distribution: Distribution = "uniform"
    normalisation: Normalisation = "absolute"
    sampling: Literal["resampled", "fixed"] = "resampled"
    server: ServerTraining = field(default_factory=ServerTraining)


def send_mixture(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train by cross-entropy; upload the entangled representation of the whole training set."""
    options: FedReOptions = setup.options
    trained = train_locally(Classifier, setup, state, broadcast, rng)
    features, labels, weights = represent(setup.model, setup.train.images), setup.train.labels, state.get(WEIGHTS)
    if weights is None:
        weights = sample_weights(labels, options.mechanism, rng, options.distribution, options.normalisation)
    if options.sampling == "fixed":
        trained[WEIGHTS] = weights
    setup.trace.mixture(weights)
    return trained, (Entangled(*entangle(features, labels, weights, setup.n_classes)),)


METHOD = replace(
    FEDALLREP,
    name="fedre",
    about="FedRE: upload one entangled representation and its entangled label encoding.",
    source="Yao et al., FedRE",
    options=FedReOptions,
    uploads=("entangled",),
    client_step=send_mixture,
    server_step=partial(train_head, "sum"),
    accepted_substitutes=(),
)
