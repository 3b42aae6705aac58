"""FedTGP: clients train towards prototypes that a small network on the server generates.

Clients train as in FedProto; a small network on the server generates T_c = F(e_c) for every class from a trainable
embedding e_c, and is trained, with e, on the uploaded prototypes p_i of class y_i by mean_i cross-entropy(-(||p_i -
T_c|| + margin [c = y_i])_c, y_i). The margin of a round is at most ``margin`` and else, as in the authors' code,
max_c min_c' ||m_c - m_c'||, with m_c the mean of the class's uploads. Zhang, Liu, Hua, Cao: FedTGP: Trainable Global
Prototypes with Adaptive-Margin-Enhanced Contrastive Learning for Data and Model Heterogeneity in Federated Learning,
AAAI 2024.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, relu

from fedpriv.federation.local_training import class_means
from fedpriv.federation.method import ServerSetup, Uploads
from fedpriv.federation.states import State, take
from fedpriv.methods import weights
from fedpriv.methods.fedproto import METHOD as FEDPROTO
from fedpriv.methods.fedproto import broadcast_scalars
from fedpriv.methods.weights import ServerTraining, descend
from fedpriv.uploads.payloads import Message, Prototypes, get_payload
from fedpriv.util.seeds import global_seed


@dataclass(frozen=True)
class PrototypeTraining(ServerTraining):
    """The server's training of the prototypes: the reference code takes the clients' step size and batches."""

    epochs: Annotated[int, Ge(1)] = 100


@dataclass(frozen=True)
class FedTgpOptions:
    """Hyperparameters of FedTGP.

    Attributes:
        weight: lambda, the weight of the clients' regulariser; 0 gives local training. The reference code's default is 1;
            10, its value for CIFAR-100 at a learning rate of 0.01, diverges at 0.1.
        margin: upper bound of the margin, in units of the representation.
        server: how the server trains the prototypes.
    """

    weight: Annotated[float, Ge(0)] = 1.0
    margin: Annotated[float, Ge(0)] = 100.0
    server: PrototypeTraining = field(default_factory=PrototypeTraining)


def start_generator(setup: ServerSetup, rng: torch.Generator) -> tuple[State, Message]:
    """Build the generator; the first broadcast is empty, so that nobody trains towards random prototypes."""
    classes, width = setup.blueprint.n_classes, setup.blueprint.width
    with global_seed(weights.draw_seed(rng)), torch.device("cpu"):
        layers = {"embedding": nn.Embedding(classes, width), "first": nn.Linear(width, width)}
        layers["second"] = nn.Linear(width, width)
    state = {key: value for name, layer in layers.items() for key, value in take(layer, name).items()}
    return {key: value.to(setup.device) for key, value in state.items()}, ()


def generate(state: State) -> Tensor:
    """Return the prototypes ``(C, d)`` of all classes: second(relu(first(embedding)))."""
    hidden = relu(linear(state["embedding.weight"], state["first.weight"], state["first.bias"]))
    return linear(hidden, state["second.weight"], state["second.bias"])


def adaptive_margin(features: Tensor, classes: Tensor, bound: float) -> float:
    """Return the largest distance of a class's mean row of ``(n, d)`` from its nearest other, at most ``bound``."""
    means, present, _ = class_means(features, classes)
    if len(present) < 2:
        return bound
    distances = torch.cdist(means, means, compute_mode="donot_use_mm_for_euclid_dist")
    return min(float(distances.fill_diagonal_(torch.inf).min(1).values.max()), bound)


def separation_loss(features: Tensor, classes: Tensor, prototypes: Tensor, margin: float) -> Tensor:
    """Return mean cross-entropy of minus the distances ``(n, C)`` from all prototypes, the true one's plus the margin."""
    squares = features.square().sum(1)[:, None] + prototypes.square().sum(1) - 2 * features @ prototypes.T
    # The root's slope is infinite at zero, where rounding may even make the square negative.
    distance = squares.clamp(min=1e-12).sqrt()
    handicap = torch.zeros_like(distance).scatter_(1, classes[:, None], margin)
    return cross_entropy(-(distance + handicap), classes)


def train_generator(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> tuple[State, Message]:
    """Train the generator on the uploads and broadcast a prototype for every class."""
    rows = [get_payload(upload, Prototypes) for _, upload in uploads]
    features, classes = torch.cat([row.features for row in rows]), torch.cat([row.classes for row in rows])
    margin = adaptive_margin(features, classes, setup.options.margin)

    def loss(trained: State, index: Tensor) -> Tensor:
        return separation_loss(features[index], classes[index], generate(trained), margin)

    state = descend(state, features, loss, setup.options.server, rng)
    generated = generate(state)
    return state, (Prototypes(generated, torch.arange(len(generated), device=generated.device)),)


METHOD = replace(
    FEDPROTO,
    name="fedtgp",
    about="FedTGP: a small network on the server generates class prototypes that keep a margin from each other.",
    source="Zhang et al., AAAI 2024",
    options=FedTgpOptions,
    start=start_generator,
    server_step=train_generator,
    # Every class's prototype is broadcast, held by somebody or not.
    sizes=lambda facts: broadcast_scalars(facts, facts.classes),
)
