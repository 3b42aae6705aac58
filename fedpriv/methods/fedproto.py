"""FedProto: pull local representations towards global class prototypes.

Source: Tan et al.: FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022. The regulariser is
the squared distance averaged over batch and features, as in the reference libraries: lambda = 10 is about the paper's 0.1
with an unaveraged distance. Prototypes are exact class means in evaluation mode after training. A class that no client
uploaded in a round keeps its last global prototype. Prediction is the nearest global prototype; before the first broadcast,
and as a second figure ``head``, the client's own head predicts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedpriv.federation.local_training import represent_by, train
from fedpriv.federation.method import ClientSetup, Method, ServerSetup, Uploads
from fedpriv.federation.states import State, put, take
from fedpriv.methods.shared import prototypes, weights
from fedpriv.methods.shared.prototypes import ClassTable
from fedpriv.wire.ledger import FederationSizes, Scalars
from fedpriv.wire.payloads import Message, Prototypes, find_payload, get_payload

FEATURES, KNOWN = "prototypes.features", "prototypes.known"
PROTOTYPES = ClassTable(FEATURES, KNOWN)


@dataclass(frozen=True)
class Options:
    """Hyperparameters of FedProto.

    Attributes:
        weight: lambda, the weight of the regulariser; 0 gives local training.
        averaging: of a class's prototypes over clients: ``uniform`` as the official code, or ``counts`` by numbers of
            samples as the paper, in which case the counts are uploaded.
    """

    weight: Annotated[float, Ge(0)] = 10.0
    averaging: Literal["uniform", "counts"] = "uniform"


def init(setup: ClientSetup, rng: torch.Generator) -> State:
    """Return the initial model; no class has a global prototype yet."""
    return weights.init(setup, rng) | PROTOTYPES.empty(setup.n_classes, setup.width, setup.train.labels.device)


def apply_broadcast(setup: ClientSetup, state: State, broadcast: Message) -> State:
    """Take over the broadcast prototypes."""
    received = find_payload(broadcast, Prototypes)
    return state if received is None else PROTOTYPES.replaced(state, received.features, received.classes)


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train by cross-entropy + lambda * mean squared distance to the class's global prototype; upload prototypes."""
    options: Options = setup.options
    trained = train_towards_prototypes(setup, apply_broadcast(setup, state, broadcast), rng, options.weight)
    return trained, (prototypes.of_client(setup, counted=options.averaging == "counts"),)


def train_towards_prototypes(setup: ClientSetup, state: State, rng: torch.Generator, weight: float) -> State:
    """Train by cross-entropy + weight * mean squared distance; leaves the result in ``setup.model`` too."""
    model, anchors, known = setup.model, state[FEATURES], state[KNOWN]
    put(model, state, "model")

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        features = model.represent(images)
        # A class without a global prototype contributes zero but stays in the mean, as in the reference libraries.
        distance = (features - anchors[labels]).square().mean(1) * known[labels]
        return cross_entropy(model.head(features), labels) + weight * distance.mean()

    train(model, setup.train, setup.training, rng, loss, setup.trace)
    return state | take(model, "model")


def start(setup: ServerSetup, rng: torch.Generator) -> tuple[State, Message]:
    """Start without prototypes; the first broadcast is empty."""
    return PROTOTYPES.empty(setup.blueprint.n_classes, setup.blueprint.width, setup.device), ()


def server_step(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> tuple[State, Message]:
    """Average each class's prototypes over the clients that hold it, by the uploaded counts where there are any."""
    sent = [get_payload(upload, Prototypes) for _, upload in uploads]
    state = PROTOTYPES.averaged(state, [(current.features, current.classes, current.counts) for current in sent])
    return state, (Prototypes(*PROTOTYPES.rows(state)),)


def predict(setup: ClientSetup, state: State, images: Tensor) -> Tensor:
    """Return minus the mean squared distance to every class's prototype; classes without one score -inf."""
    if not state[KNOWN].any():
        return weights.predict(setup, state, images)
    features = represent_by(setup, state, images)
    distance = torch.cdist(features, state[FEATURES]).square() / features.shape[1]
    return (-distance).masked_fill(~state[KNOWN], -torch.inf)


def sizes(facts: FederationSizes) -> Scalars:
    """Return the counts, where the mean needs them."""
    weighted = facts.options.averaging == "counts"
    return {("upload", "prototype.counts"): facts.need("pairs")} if weighted else {}


def broadcast_scalars(facts: FederationSizes, prototypes: int) -> Scalars:
    """Return the scalars of so many prototypes to every client."""
    sent = facts.clients * prototypes
    return {("broadcast", "prototype.features"): sent * facts.width, ("broadcast", "prototype.classes"): sent}


METHOD = Method(
    name="fedproto",
    source="Tan et al., AAAI 2022",
    options=Options,
    uploads=("prototype",),
    broadcasts=("prototype",),
    start=start,
    init=init,
    apply_broadcast=apply_broadcast,
    client_step=client_step,
    server_step=server_step,
    predict=predict,
    sizes=sizes,
    extra_predictors={"head": weights.predict},
)
