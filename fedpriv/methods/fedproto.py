"""FedProto: clients train towards the mean prototypes of all clients.

Tan et al.: FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022. The regulariser is the
squared distance averaged over batch and features, as in the reference libraries: lambda = 10 is about the paper's 0.1
with an unaveraged distance. Prediction is the nearest global prototype; before the first broadcast, and as a second
figure ``head``, the client's own head predicts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedpriv.federation.local_training import represent_by, train
from fedpriv.federation.method import ClientSetup
from fedpriv.federation.states import State, put, take
from fedpriv.methods import weights
from fedpriv.methods.local import METHOD as LOCAL
from fedpriv.methods.prototypes import FEATURES, KNOWN, PROTOTYPES, of_client
from fedpriv.uploads.ledger import FederationSizes, Scalars
from fedpriv.uploads.payloads import Message


@dataclass(frozen=True)
class FedProtoOptions:
    """Hyperparameters of FedProto.

    Attributes:
        weight: lambda, the weight of the regulariser; 0 gives local training.
        averaging: of a class's prototypes over clients: ``uniform`` as the official code, or ``counts`` by numbers of
            samples as the paper, in which case the counts are uploaded.
    """

    weight: Annotated[float, Ge(0)] = 10.0
    averaging: Literal["uniform", "counts"] = "uniform"


def train_towards_prototypes(
    setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator
) -> tuple[State, Message]:
    """Train by cross-entropy + lambda * mean squared distance to the class's global prototype; upload prototypes."""
    state, model = PROTOTYPES.receive(setup, state, broadcast), setup.model
    anchors, known, weight = state[FEATURES], state[KNOWN], float(setup.options.weight)
    put(model, state, "model")

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        features = model.represent(images)
        # A class without a global prototype contributes zero but stays in the mean, as in the reference libraries.
        distance = (features - anchors[labels]).square().mean(1) * known[labels]
        return cross_entropy(model.head(features), labels) + weight * distance.mean()

    train(model, setup.train, setup.training, rng, loss, setup.trace)
    counted = getattr(setup.options, "averaging", "uniform") == "counts"
    return state | take(model, "model"), (of_client(setup, counted),)


def predict(setup: ClientSetup, state: State, images: Tensor) -> Tensor:
    """Return minus the mean squared distance to every class's prototype; classes without one score -inf."""
    if not state[KNOWN].any():
        return weights.predict(setup, state, images)
    features = represent_by(setup, state, images)
    distance = torch.cdist(features, state[FEATURES]).square() / features.shape[1]
    return (-distance).masked_fill(~state[KNOWN], -torch.inf)


def _counts(facts: FederationSizes) -> Scalars:
    weighted = facts.options.averaging == "counts"
    return {("upload", "prototype.counts"): facts.need("pairs")} if weighted else {}


def broadcast_scalars(facts: FederationSizes, prototypes: int) -> Scalars:
    """Return the scalars of so many prototypes to every client."""
    sent = facts.clients * prototypes
    return {("broadcast", "prototype.features"): sent * facts.width, ("broadcast", "prototype.classes"): sent}


METHOD = replace(
    LOCAL,
    name="fedproto",
    about="FedProto: pull local representations towards global class prototypes.",
    source="Tan et al., AAAI 2022",
    options=FedProtoOptions,
    uploads=("prototype",),
    broadcasts=("prototype",),
    start=PROTOTYPES.start,
    init=PROTOTYPES.init,
    apply_broadcast=PROTOTYPES.receive,
    client_step=train_towards_prototypes,
    server_step=PROTOTYPES.average,
    predict=predict,
    sizes=_counts,
    extra_predictors={"head": weights.predict},
)
