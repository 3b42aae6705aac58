"""A generator of representations that the server trains on the clients' heads: what both forms of FedGen share.

The generator is G(u, y) = Linear(ReLU(BatchNorm(Linear([u, onehot(y)])))) with noise u uniform on [0, 1). It
normalises by the batch it is given, on both sides, and so has no running statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, one_hot

from fedpriv.federation.local_training import train
from fedpriv.federation.method import ClientSetup, ServerSetup, Uploads
from fedpriv.federation.states import State, outer, parameters, put, take
from fedpriv.methods.shared import weights
from fedpriv.util.seeds import global_seed
from fedpriv.wire.ledger import FederationSizes, Scalars
from fedpriv.wire.payloads import Generator, LabelCounts, Message, find_payload, get_payload

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


def train_with_generator(setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> State:
    """Train by CE on images + weight * CE of the head on generated representations, as many as images (at least two).

    Without a generator in the broadcast images alone train. Leaves the result in ``setup.model`` too.
    """
    options: Options = setup.options
    model = setup.model
    put(model, state, "model")
    sent = find_payload(broadcast, Generator)
    generator = None
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
        return value + options.weight * cross_entropy(model.head(features), classes)

    train(model, setup.train, setup.training, rng, loss, setup.trace)
    return take(model, "model") | {REPORTED: torch.ones_like(state[REPORTED])}


def first_report(setup: ClientSetup, state: State) -> Message:
    """Return the client's label histogram where the state says that it has not been sent, else nothing."""
    if state[REPORTED]:
        return ()
    return (LabelCounts(torch.bincount(setup.train.labels, minlength=setup.n_classes)),)


def start(setup: ServerSetup, rng: torch.Generator) -> State:
    """Return the initial generator and an empty histogram."""
    generator = make_generator(setup, weights.draw_seed(rng), setup.device)
    histogram = torch.zeros(setup.blueprint.n_classes, dtype=torch.int64, device=setup.device)
    return take(generator, GENERATOR) | {LABELS: histogram}


def server_step(
    setup: ServerSetup,
    state: State,
    uploads: Uploads,
    head: tuple[Tensor, Tensor],
    rng: torch.Generator,
) -> tuple[State, Message]:
    """Add newly sent histograms; train the generator on the averaged head, weight ``(C, d)`` and bias ``(C,)``."""
    histogram = state[LABELS]
    for _, upload in uploads:
        sent = find_payload(upload, LabelCounts)
        histogram = histogram if sent is None else histogram + sent.counts
    generator = make_generator(setup, 0, setup.device)
    put(generator, state, GENERATOR)
    train_generator(generator, histogram, head, setup.options, weights.draw_seed(rng))
    message = (Generator(parameters(generator)), LabelCounts(histogram))
    return take(generator, GENERATOR) | {LABELS: histogram}, message


def train_generator(
    generator: FeatureGenerator, histogram: Tensor, head: tuple[Tensor, Tensor], options: Options, seed: int
) -> None:
    """Minimise CE(head(G(u, y)), y) over the generator by Adam, in place."""
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
