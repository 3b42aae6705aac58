"""Local training without any exchange, the baseline that federation must beat, and what methods add to it together.

Weights travel and are averaged; a server trains on a round's uploads. The kind of payload says which of the model's
learnable parameters travel: all (``Model``), the head (``Classifier``), or all but the head (``Extractor``). Buffers such as
batch-norm statistics stay with the client, as in the reference libraries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from fedpriv.federation.defense import Loss
from fedpriv.federation.local_training import class_means, classification_loss, classify_by, represent, train
from fedpriv.federation.method import ClientSetup, Method, NoOptions, ServerSetup, Uploads
from fedpriv.federation.states import Outcome, State, outer, parameters, put, take, weighted_mean
from fedpriv.models.build import build_model
from fedpriv.models.split import SplitModel
from fedpriv.uploads.payloads import Classifier, Extractor, Message, Model, Prototypes, SampleCount, get_payload

Kind = type[Model] | type[Extractor] | type[Classifier]


def draw_seed(rng: torch.Generator) -> int:
    """Draw a seed for building a model."""
    return int(torch.randint(2**62, (1,), generator=rng))


def side_generator(rng: torch.Generator) -> torch.Generator:
    """Return a generator that depends on ``rng`` but leaves it where it is, for work beside the local training."""
    return torch.Generator().manual_seed(draw_seed(rng.clone_state()))


def init(setup: ClientSetup, rng: torch.Generator) -> State:
    """Return the initial weights of the client's model under the prefix ``model``."""
    return take(build_model(setup.blueprint, draw_seed(rng)), "model")


def part(kind: Kind, model: SplitModel) -> State:
    """Return copies of the parameters that payloads of a kind hold."""
    if kind is Classifier:
        return parameters(model.head)
    return {n: value for n, value in parameters(model).items() if kind is Model or not n.startswith("head.")}


def start(kind: Kind, setup: ServerSetup, rng: torch.Generator) -> Outcome:
    """Build the initial global weights and broadcast them."""
    weights = part(kind, build_model(setup.blueprint, draw_seed(rng)).to(setup.device))
    return outer(weights, "global"), (kind(weights),)


def receive(kind: Kind, setup: ClientSetup, state: State, broadcast: Message) -> State:
    """Replace a part of the client's parameters by the broadcast one."""
    weights = {name: value.clone() for name, value in get_payload(broadcast, kind).state.items()}
    return state | outer(weights, "model.head" if kind is Classifier else "model")


def trained_model(setup: ClientSetup, state: State, loss: Loss, rng: torch.Generator) -> State:
    """Train the client's model from the weights of a state; leaves the result in ``setup.model`` too."""
    put(setup.model, state, "model")
    train(setup.model, setup.train, setup.training, rng, loss, setup.trace)
    return take(setup.model, "model")


def train_locally(kind: Kind, setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> State:
    """Receive, and train the whole model by cross-entropy; leaves the result in ``setup.model`` too."""
    return trained_model(setup, receive(kind, setup, state, broadcast), classification_loss(setup.model), rng)


def sample_count(setup: ClientSetup) -> SampleCount:
    """Return the client's number of training samples, n_k."""
    return SampleCount(torch.tensor([len(setup.train)]))


def weighed(kind: Kind, setup: ClientSetup) -> Message:
    """Return the upload of a part of ``setup.model`` with the number of samples."""
    return kind(part(kind, setup.model)), sample_count(setup)


def client_step(kind: Kind, setup: ClientSetup, state: State, broadcast: Message, rng: torch.Generator) -> Outcome:
    """Train the whole model by cross-entropy; upload a part of it with the number of samples."""
    return train_locally(kind, setup, state, broadcast, rng), weighed(kind, setup)


def prototypes(setup: ClientSetup, counted: bool = False) -> Prototypes:
    """Return the mean representation of every class that the client holds, by ``setup.model`` as it is."""
    means, classes, numbers = class_means(represent(setup.model, setup.train.images), setup.train.labels)
    return Prototypes(means, classes, numbers if counted else None)


def counts(uploads: Uploads) -> list[int]:
    """Return the numbers of samples of a round's clients."""
    return [int(get_payload(upload, SampleCount).count) for _, upload in uploads]


def average(kind: Kind, setup: ServerSetup, state: State, uploads: Uploads, rng: torch.Generator) -> Outcome:
    """Return sum_k n_k w_k / sum_k n_k over the uploaded weights, as state and as broadcast."""
    weights = weighted_mean([get_payload(upload, kind).state for _, upload in uploads], counts(uploads))
    return outer(weights, "global"), (kind(weights),)


@dataclass(frozen=True)
class ServerTraining:
    """The server's training on a round's uploads: plain SGD, started afresh every round."""

    learning_rate: Annotated[float, Gt(0)] = 0.01
    batch_size: Annotated[int, Ge(1)] = 10  # uploaded rows, or samples, a step
    epochs: Annotated[int, Ge(1)] = 1  # passes over them


def descend(
    state: State, rows: Tensor, loss: Callable[[State, Tensor], Tensor], how: ServerTraining, rng: torch.Generator
) -> State:
    """Return tensors after SGD on ``loss(tensors, index)`` of batches of ``rows`` in a drawn order, tail included."""
    trained = {name: value.clone().requires_grad_() for name, value in state.items()}
    for _ in range(how.epochs):
        order = torch.randperm(len(rows), generator=rng).to(rows.device)
        for index in order.split(how.batch_size) if len(order) else ():
            slopes = torch.autograd.grad(loss(trained, index), list(trained.values()))
            for value, slope in zip(trained.values(), slopes, strict=True):
                value.data.add_(slope, alpha=-how.learning_rate)
    return {name: value.detach() for name, value in trained.items()}


LOCAL = Method(
    name="local",
    source="no federation",
    options=NoOptions,
    uploads=(),
    broadcasts=(),
    start=lambda setup, rng: ({}, ()),
    init=init,
    apply_broadcast=lambda setup, state, broadcast: state,
    client_step=lambda setup, state, sent, rng: (
        trained_model(setup, state, classification_loss(setup.model), rng),
        (),
    ),
    server_step=lambda setup, state, uploads, rng: (state, ()),
    predict=classify_by,
)
"""A model for each client that predicts by itself: what other methods change."""
