"""FedGen: the server trains a generator of representations on the clients' heads, and clients train their heads on it.

Source: Zhu, Hong, Zhou: Data-Free Knowledge Distillation for Heterogeneous Federated Learning, ICML 2021, algorithm
1, in the form of HtFLlib and PFLlib, which leave out the paper's diversity loss and its KL term. With the generator
G, noise u uniform on [0, 1), and classes y drawn from all clients' training labels together, a client minimises

    CE(f(g(x)), y) + weight * CE(f(G(u, y')), y')

over its model (not over G), and the server minimises CE(sum_k n_k f_k(G(u, y)) / n, y) over G by Adam, its moments
new every round. Heads are linear, so the mean of their logits is the logit of their mean, which is broadcast anyway.
G(u, y) = Linear(ReLU(BatchNorm(Linear([u, onehot(y)])))) normalises by the batch it is given, on both sides.

``fedgen`` uploads heads of any architectures; ``fedgen-homogeneous``, as PFLlib has it, whole models. Both average by
n_k / n; with weight 0 the second is FedAvg. The label histogram is sent in clear with a client's first upload; the server
broadcasts the sum and the generator every round from the second on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, one_hot

from fedpriv.federation.method import ClientSetup, Method, ServerSetup, Uploads
from fedpriv.federation.states import Outcome, State, outer, parameters, put, take
from fedpriv.methods import fedavg, weights
from fedpriv.methods.weights import Kind
from fedpriv.uploads.ledger import FederationSizes, Scalars
from fedpriv.uploads.payloads import (
    Classifier,
    Generator,
    LabelCounts,
    Message,
    Model,
    PublicLoss,
    find_payload,
    get_payload,
)
from fedpriv.util.seeds import global_seed

REPORTED, LABELS, GENERATOR = "fedgen.reported", "labels", "generator"


@dataclass(frozen=True)
class Options:
    """Hyperparameters of FedGen; the defaults are HtFLlib's, which suit clients that train with 0.01, not 0.1.

    Attributes:
        weight: of the cross-entropy on generated representations; 0 leaves the plain average.
        noise: length z of the noise vector.
        hidden: width h of the generator's hidden layer.
        learning_rate: of Adam on the generator.
        steps: generator steps a round.
        batch_size: generated representations a server step (batch normalisation needs two).
    """

    weight: Annotated[float, Ge(0)] = 1.0
    noise: Annotated[int, Ge(1)] = 32
    hidden: Annotated[int, Ge(1)] = 512
    learning_rate: Annotated[float, Gt(0)] = 0.005
    steps: Annotated[int, Ge(0)] = 100
    batch_size: Annotated[int, Ge(2)] = 10


class FeatureGenerator(nn.Module):
    """From noise and class to a representation."""

    def __init__(self, n_classes: int, width: int, noise: int, hidden: int) -> None:
        super().__init__()
        self.n_classes = n_classes
        self.noise = noise
        self.layers = nn.Sequential(
            nn.Linear(noise + n_classes, hidden),
            nn.BatchNorm1d(hidden, track_running_stats=False),
            nn.ReLU(),
            nn.Linear(hidden, width),
        )

    def forward(self, classes: Tensor) -> Tensor:
        """Return representations ``(n, d)`` of classes ``(n,)``, n >= 2; the noise is of torch's global generator."""
        noise = torch.rand(len(classes), self.noise, device=classes.device)
        features: Tensor = self.layers(torch.cat([noise, one_hot(classes, self.n_classes).float()], 1))
        return features


def make_generator(setup: ClientSetup | ServerSetup, seed: int, device: torch.device) -> FeatureGenerator:
    """Return a generator of the federation's sizes, its weights a function of the seed."""
    blueprint, options = setup.blueprint, setup.options
    with global_seed(seed):
        made = FeatureGenerator(blueprint.n_classes, blueprint.width, options.noise, options.hidden)
    return made.to(device)


def draw_classes(histogram: Tensor, number: int) -> Tensor:
    """Draw classes ``(number,)`` in proportion to a histogram ``(C,)``, from torch's global generator."""
    return torch.multinomial(histogram.double(), number, replacement=True)


def init(setup: ClientSetup, rng: torch.Generator) -> State:
    """Return the initial model; the label histogram has not been sent."""
    return weights.init(setup, rng) | {REPORTED: torch.tensor(False)}


def client_step(kind: Kind, setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> Outcome:
    """Train by CE on images + weight * CE of the head on generated representations, as many as images (at least two).

    Without a generator in the broadcast images alone train. Uploads head or model with the number of samples, and the
    first time the label histogram.
    """
    model, weight = setup.model, float(setup.options.weight)
    sent, generator = find_payload(broadcast, Generator), None
    if sent is not None:
        generator = make_generator(setup, 0, setup.train.labels.device)
        put(generator, outer(dict(sent.state), GENERATOR), GENERATOR)
        histogram = get_payload(broadcast, LabelCounts).counts

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        value = cross_entropy(model(images), labels)
        if generator is None:
            return value
        classes = draw_classes(histogram, max(2, len(labels)))
        with torch.no_grad():
            features = generator(classes)
        return value + weight * cross_entropy(model.head(features), classes)

    trained = weights.trained_model(setup, weights.receive(kind, setup, state, broadcast), loss, rng)
    upload = weights.weighed(kind, setup)
    if not state[REPORTED]:
        upload = (*upload, LabelCounts(torch.bincount(setup.train.labels, minlength=setup.n_classes)))
    return trained | {REPORTED: torch.ones_like(state[REPORTED])}, upload


def start(kind: Kind, setup: ServerSetup, rng: torch.Generator) -> Outcome:
    """Build the initial weights, which are broadcast, and the initial generator, which is not yet."""
    averaged, sent = weights.start(kind, setup, rng)
    generator = make_generator(setup, weights.draw_seed(rng), setup.device)
    histogram = torch.zeros(setup.blueprint.n_classes, dtype=torch.int64, device=setup.device)
    return averaged | take(generator, GENERATOR) | {LABELS: histogram}, sent


def server_step(kind: Kind, setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> Outcome:
    """Average heads or models, train the generator on the average's head; broadcast both, and the label histogram."""
    averaged, sent = weights.average(kind, setup, state, uploads, rng)
    prefix = "global." if kind is Classifier else "global.head."
    histogram = state[LABELS]
    for _, upload in uploads:
        reported = find_payload(upload, LabelCounts)
        histogram = histogram if reported is None else histogram + reported.counts
    generator = make_generator(setup, 0, setup.device)
    put(generator, state, GENERATOR)
    head = averaged[f"{prefix}weight"], averaged[f"{prefix}bias"]
    train_generator(generator, histogram, head, setup.options, weights.draw_seed(rng))
    message = (*sent, Generator(parameters(generator)), LabelCounts(histogram))
    return averaged | take(generator, GENERATOR) | {LABELS: histogram}, message


def train_generator(
    generator: FeatureGenerator, histogram: Tensor, head: tuple[Tensor, Tensor], options: Options, seed: int
) -> None:
    """Minimise CE(head(G(u, y)), y) over the generator by Adam, in place; the head is (``(C, d)``, ``(C,)``)."""
    optimiser = torch.optim.Adam(generator.parameters(), lr=options.learning_rate)
    with global_seed(seed):
        for _ in range(options.steps):
            classes = draw_classes(histogram, options.batch_size)
            loss = cross_entropy(linear(generator(classes), *head), classes)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


def sizes(facts: FederationSizes) -> Scalars:
    """Return a generator's (z + C) h + h, 2 h, and h d + d parameters for every client."""
    noise, hidden = facts.options.noise, facts.options.hidden
    generator = (noise + facts.classes + 3) * hidden + (hidden + 1) * facts.width
    return {("broadcast", "generator.state"): facts.clients * generator}


def public_loss(options: Options, round_: int) -> PublicLoss:
    """From the second round on generated representations, drawn in private, train the head of a model too."""
    if round_ == 1 or options.weight == 0:
        return PublicLoss()
    return PublicLoss(head_apart=True, disturbed_later=True)


def _generating(kind: Kind, **changes: Any) -> Method:
    return fedavg.averaging(
        kind,
        source="Zhu et al., ICML 2021",
        options=Options,
        uploads=(kind.kind, "sample-count", "label-counts"),
        broadcasts=(kind.kind, "generator", "label-counts"),
        start=partial(start, kind),
        init=init,
        client_step=partial(client_step, kind),
        server_step=partial(server_step, kind),
        sizes=sizes,
        linear_aggregation=False,
        **changes,
    )


METHOD = _generating(Classifier, name="fedgen")
HOMOGENEOUS = _generating(Model, name="fedgen-homogeneous", homogeneous=True, public_loss=public_loss)
