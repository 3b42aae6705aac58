"""FedProto: pull local representations towards global class prototypes.

Source: Tan et al.: FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022. The regulariser is
the squared distance averaged over batch and features, as the reference libraries have it: lambda = 10 here is about the
paper's 0.1 with an unaveraged distance. Prototypes are exact class means taken in evaluation mode after training
(reference code accumulates them while the model still changes). A class that nobody uploaded in a round keeps its last
global prototype (reference code forgets it). Prediction is the nearest global prototype over all classes that have one;
before the first broadcast, and as a second figure ``head``, the client's own head predicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedpriv.federation.local_training import class_means, represent, train
from fedpriv.federation.method import ClientSetup, Method, ServerSetup, State
from fedpriv.federation.states import put, take
from fedpriv.methods.shared import personal_model
from fedpriv.wire.payloads import Message, Prototypes, find_payload, get_payload
from fedpriv.wire.sizes import INTEGER, FederationSizes, Item, labels

FEATURES, KNOWN = "prototypes.features", "prototypes.known"


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
    return personal_model.init(setup, rng) | no_prototypes(setup.n_classes, setup.width, setup.train.labels.device)


def no_prototypes(n_classes: int, width: int, device: torch.device) -> State:
    """Return the state of somebody who knows no prototype."""
    return {
        FEATURES: torch.zeros(n_classes, width, device=device),
        KNOWN: torch.zeros(n_classes, dtype=torch.bool, device=device),
    }


def apply_broadcast(setup: ClientSetup, state: State, broadcast: Message) -> State:
    """Take over the broadcast prototypes."""
    received = find_payload(broadcast, Prototypes)
    if received is None:
        return state
    features, known = state[FEATURES].clone(), state[KNOWN].clone()
    features[received.classes], known[received.classes] = received.features, True
    return state | {FEATURES: features, KNOWN: known}


def client_step(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> tuple[State, Message]:
    """Train by cross-entropy + lambda * mean squared distance to the class's global prototype; upload prototypes."""
    options: Options = setup.options
    trained = train_towards_prototypes(setup, apply_broadcast(setup, state, broadcast), rng, options.weight)
    means, classes, counts = class_means(represent(setup.model, setup.train.images), setup.train.labels)
    return trained, (Prototypes(means, classes, counts if options.averaging == "counts" else None),)


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
    return no_prototypes(setup.blueprint.n_classes, setup.blueprint.width, setup.device), ()


def server_step(
    setup: ServerSetup, state: State, uploads: Sequence[tuple[int, Message]], rng: torch.Generator
) -> tuple[State, Message]:
    """Average each class's prototypes over the clients that hold it."""
    features, known = average_prototypes([get_payload(upload, Prototypes) for _, upload in uploads], state)
    classes = known.nonzero().squeeze(1)
    return {FEATURES: features, KNOWN: known}, (Prototypes(features[classes], classes),)


def average_prototypes(uploads: Sequence[Prototypes], state: State) -> tuple[Tensor, Tensor]:
    """Return the updated global prototypes ``(C, d)`` and which classes have one ``(C,)`` bool.

    Weights are the uploaded counts where there are any, else one.
    """
    sums, weights = torch.zeros_like(state[FEATURES], dtype=torch.float64), torch.zeros(len(state[KNOWN])).double()
    weights = weights.to(sums.device)
    for upload in uploads:
        share = torch.ones(len(upload.classes), device=sums.device) if upload.counts is None else upload.counts
        sums.index_add_(0, upload.classes, upload.features.double() * share.double()[:, None])
        weights.index_add_(0, upload.classes, share.double())
    fresh = weights > 0
    means = (sums / weights.clamp(min=1e-12)[:, None]).float()
    return torch.where(fresh[:, None], means, state[FEATURES]), fresh | state[KNOWN]


def predict(setup: ClientSetup, state: State, images: Tensor) -> Tensor:
    """Return minus the mean squared distance to every class's prototype; classes without one score -inf."""
    if not state[KNOWN].any():
        return personal_model.predict(setup, state, images)
    put(setup.model, state, "model")
    features = represent(setup.model, images)
    distance = torch.cdist(features, state[FEATURES]).square() / features.shape[1]
    return (-distance).masked_fill(~state[KNOWN], -torch.inf)


def message_sizes(facts: FederationSizes) -> tuple[Item, ...]:
    """Return one prototype for every (client, class) pair, and every known class's to every client."""
    pairs = facts.need("pairs")
    known = facts.clients * (facts.known_classes or facts.classes)
    sent = [Item("upload", "prototype.features", pairs * facts.width), labels("prototype.classes", pairs)]
    if facts.options is not None and facts.options.averaging == "counts":
        sent.append(labels("prototype.counts", pairs))
    return (
        *sent,
        Item("broadcast", "prototype.features", known * facts.width),
        Item("broadcast", "prototype.classes", known, in_paper_count=False, itemsize=INTEGER),
    )


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
    message_sizes=message_sizes,
    extra_predictors={"head": personal_model.predict},
)
