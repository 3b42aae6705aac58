"""FedProto, FedTGP and FD: clients train towards a global row of each class, made of class means that clients upload.

- ``fedproto``, mean prototypes: Tan et al.: FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022.
  The regulariser is the squared distance averaged over batch and features, as in the reference libraries: lambda = 10 is
  about the paper's 0.1 with an unaveraged distance. Prediction is the nearest global prototype; before the first broadcast,
  and as a second figure ``head``, the client's own head predicts.
- ``fedtgp``: a small network on the server generates T_c = F(e_c) for every class from a trainable embedding e_c, and is
  trained, with e, on the uploaded prototypes p_i of class y_i by mean_i cross-entropy(-(||p_i - T_c|| + margin [c = y_i])_c,
  y_i). The margin of a round is at most ``margin`` and else, as in the authors' code, max_c min_c' ||m_c - m_c'||, with m_c
  the mean of the class's uploads. Zhang, Liu, Hua, Cao: FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced
  Contrastive Learning for Data and Model Heterogeneity in Federated Learning, AAAI 2024.
- ``fd``, mean softmax outputs: Jeong, Oh, Kim, Park, Bennis, Kim: Communication-Efficient On-Device Machine Learning:
  Federated Distillation and Augmentation under Non-IID Private Data, NeurIPS 2018 workshop on machine learning on the phone.
  A client minimises CE(z, y) + lambda CE(z, t_y), z its logits and t_y the global mean output of the sample's class, or its
  own detached output where there is none yet. (HtFLlib takes mean logits for t_y, with which the loss has no lower bound.)
  The receiver counts in the mean, too; the paper leaves it out, HtFLlib does not.

Means are over all training samples, in evaluation mode after training. A class that no client sent in a round keeps its last
global mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, relu

from fedpriv.federation.local_training import class_means, classify, classify_by, represent_by
from fedpriv.federation.method import ClientSetup, ServerSetup, Uploads
from fedpriv.federation.states import Outcome, State, on_device, parameters
from fedpriv.methods import weights
from fedpriv.models.split import Blueprint
from fedpriv.uploads.ledger import FederationSizes, Scalars
from fedpriv.uploads.payloads import ClassLogits, Message, Prototypes, find_payload, get_payload
from fedpriv.util.seeds import global_seed


@dataclass(frozen=True)
class ClassTable:
    """Names in a state of the global rows ``(C, d)`` of classes, and of which are known ``(C,)``."""

    kind: type[Prototypes] | type[ClassLogits]
    values: str
    known: str

    def _empty(self, blueprint: Blueprint, device: torch.device) -> State:
        width = blueprint.width if self.kind is Prototypes else blueprint.n_classes
        return {
            self.values: torch.zeros(blueprint.n_classes, width, device=device),
            self.known: torch.zeros(blueprint.n_classes, dtype=torch.bool, device=device),
        }

    def init(self, setup: ClientSetup, rng: torch.Generator) -> State:
        """Return a client's initial model; no row is known yet."""
        return weights.init(setup, rng) | self._empty(setup.blueprint, setup.train.labels.device)

    def start(self, setup: ServerSetup, rng: torch.Generator) -> Outcome:
        """Start the server without rows; the first broadcast is empty."""
        return self._empty(setup.blueprint, setup.device), ()

    def receive(self, setup: ClientSetup, state: State, broadcast: Message) -> State:
        """Take over the broadcast rows."""
        received = find_payload(broadcast, self.kind)
        if received is None:
            return state
        values, known = state[self.values].clone(), state[self.known].clone()
        values[received.classes], known[received.classes] = received.rows(), True
        return state | {self.values: values, self.known: known}

    def average(self, setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> Outcome:
        """Average each class's rows over the clients that sent it, by the uploaded counts where there are any."""
        sums = torch.zeros_like(state[self.values], dtype=torch.float64)
        totals = torch.zeros(len(sums), dtype=torch.float64, device=sums.device)
        for _, upload in uploads:
            sent = get_payload(upload, self.kind)
            counts = sent.said("counts")
            share = torch.ones_like(sent.classes, dtype=torch.float64) if counts is None else counts.double()
            sums.index_add_(0, sent.classes, sent.rows().double() * share[:, None])
            totals.index_add_(0, sent.classes, share)
        fresh = totals > 0
        means = (sums / totals.clamp(min=1e-12)[:, None]).float()
        values, known = torch.where(fresh[:, None], means, state[self.values]), fresh | state[self.known]
        classes = known.nonzero().squeeze(1)
        return {self.values: values, self.known: known}, (self.kind(values[classes], classes),)


FEATURES, KNOWN = "prototypes.features", "prototypes.known"
PROTOTYPES = ClassTable(Prototypes, FEATURES, KNOWN)
OUTPUTS = ClassTable(ClassLogits, "logits.values", "logits.known")


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


def train_towards_prototypes(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> Outcome:
    """Train by cross-entropy + lambda * mean squared distance to the class's global prototype; upload prototypes."""
    state, model = PROTOTYPES.receive(setup, state, broadcast), setup.model
    anchors, known, weight = state[FEATURES], state[KNOWN], float(setup.options.weight)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        features = model.represent(images)
        # A class without a global prototype contributes zero but stays in the mean, as in the reference libraries.
        distance = (features - anchors[labels]).square().mean(1) * known[labels]
        return cross_entropy(model.head(features), labels) + weight * distance.mean()

    counted = getattr(setup.options, "averaging", "uniform") == "counts"
    return state | weights.trained_model(setup, state, loss, rng), (weights.prototypes(setup, counted),)


def predict(setup: ClientSetup, state: State, images: Tensor) -> Tensor:
    """Return minus the mean squared distance to every class's prototype; classes without one score -inf."""
    if not state[KNOWN].any():
        return classify_by(setup, state, images)
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


@dataclass(frozen=True)
class PrototypeTraining(weights.ServerTraining):
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


def start_generator(setup: ServerSetup, rng: torch.Generator) -> Outcome:
    """Build the generator; the first broadcast is empty, so that nobody trains towards random prototypes."""
    classes, width = setup.blueprint.n_classes, setup.blueprint.width
    with global_seed(weights.draw_seed(rng)), torch.device("cpu"):
        embedding, first, second = nn.Embedding(classes, width), nn.Linear(width, width), nn.Linear(width, width)
    layers = nn.ModuleDict({"embedding": embedding, "first": first, "second": second})
    return on_device(setup.device, parameters(layers)), ()


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


def train_generator(setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> Outcome:
    """Train the generator on the uploads and broadcast a prototype for every class."""
    rows = [get_payload(upload, Prototypes) for _, upload in uploads]
    features, classes = torch.cat([row.features for row in rows]), torch.cat([row.classes for row in rows])
    margin = adaptive_margin(features, classes, setup.options.margin)

    def loss(trained: State, index: Tensor) -> Tensor:
        return separation_loss(features[index], classes[index], generate(trained), margin)

    state = weights.descend(state, features, loss, setup.options.server, rng)
    generated = generate(state)
    return state, (Prototypes(generated, torch.arange(len(generated), device=generated.device)),)


@dataclass(frozen=True)
class FdOptions:
    """Hyperparameters of FD: ``weight``, the lambda of distillation; 0 gives local training."""

    weight: Annotated[float, Ge(0)] = 1.0


def train_towards_outputs(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> Outcome:
    """Train by cross-entropy and distillation; upload the mean output of each class."""
    state, model = OUTPUTS.receive(setup, state, broadcast), setup.model
    values, known = state[OUTPUTS.values], state[OUTPUTS.known]
    distil = bool(known.any())

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        logits: Tensor = model(images)
        value = cross_entropy(logits, labels)
        if distil:
            wanted = torch.where(known[labels][:, None], values[labels], logits.detach().softmax(1))
            value = value + setup.options.weight * cross_entropy(logits, wanted)
        return value

    state = state | weights.trained_model(setup, state, loss, rng)
    means, classes, _ = class_means(classify(model, setup.train.images).softmax(1), setup.train.labels)
    return state, (ClassLogits(means, classes),)


METHOD = replace(
    weights.LOCAL,
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
    extra_predictors={"head": classify_by},
)
FEDTGP = replace(
    METHOD,
    name="fedtgp",
    about="FedTGP: a small network on the server generates class prototypes that keep a margin from each other.",
    source="Zhang et al., AAAI 2024",
    options=FedTgpOptions,
    start=start_generator,
    server_step=train_generator,
    # Every class's prototype is broadcast, held by somebody or not.
    sizes=lambda facts: broadcast_scalars(facts, facts.classes),
)
FD = replace(
    weights.LOCAL,
    name="fd",
    about="FD (federated distillation, FedDistill): exchange the mean output of each class.",
    source="Jeong et al., NeurIPS 2018 workshop",
    options=FdOptions,
    uploads=("logits",),
    broadcasts=("logits",),
    start=OUTPUTS.start,
    init=OUTPUTS.init,
    apply_broadcast=OUTPUTS.receive,
    client_step=train_towards_outputs,
    server_step=OUTPUTS.average,
)
