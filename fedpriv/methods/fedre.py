"""FedRE: upload one entangled representation and its entangled label encoding.

Source: Yao et al.: FedRE: A Representation Entanglement Framework for Model-Heterogeneous Federated Learning, algorithm
1 and equations 3, 7-12. The server's loss is the plain sum over the uploads of a batch (equation 3), which equals
cross-entropy with soft targets because each label encoding sums to one. The published code leaves the broadcast out;
here the head is broadcast every round, as the paper says.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from fedpriv.algebra.entanglement import Distribution, Mechanism, Normalisation, entangle, sample_weights
from fedpriv.federation.local_training import represent
from fedpriv.federation.method import ClientSetup, ServerSetup, Uploads
from fedpriv.federation.states import State
from fedpriv.methods import fedallrep
from fedpriv.methods.shared import global_head
from fedpriv.methods.shared import weights as shared_weights
from fedpriv.methods.shared.global_head import HeadTraining
from fedpriv.wire.payloads import Classifier, Entangled, Message

WEIGHTS = "entanglement.weights"
"""Where a client keeps fixed weights of its training images ``(n,)`` in its state."""


@dataclass(frozen=True)
class Options:
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
    server: HeadTraining = field(default_factory=HeadTraining)


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train by cross-entropy; upload the entangled representation of the whole training set."""
    options: Options = setup.options
    trained = shared_weights.train_locally(Classifier, setup, state, broadcast, rng)
    features = represent(setup.model, setup.train.images)
    weights = state.get(WEIGHTS)
    if weights is None:
        weights = sample_weights(
            setup.train.labels, options.mechanism, rng, options.distribution, options.normalisation
        )
    if options.sampling == "fixed":
        trained[WEIGHTS] = weights
    setup.trace.mixture(weights)
    feature, encoding = entangle(features, setup.train.labels, weights, setup.n_classes)
    return trained, (Entangled(feature, encoding),)


def server_step(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> tuple[State, Message]:
    """Train the head on the uploads of the round's clients."""
    features, encodings = global_head.uploaded_rows(uploads, setup.blueprint.n_classes)
    return global_head.train_head(state, features, encodings, setup.options.server, rng, "sum")


METHOD = replace(
    fedallrep.METHOD,
    name="fedre",
    source="Yao et al., FedRE",
    options=Options,
    uploads=("entangled",),
    client_step=client_step,
    server_step=server_step,
    accepted_substitutes=(),
)
